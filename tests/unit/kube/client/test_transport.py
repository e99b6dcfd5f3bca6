"""The transport against a server with faults that an API server does not have."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.credentials import ClientCertificate, Connection
from kftrainer.kube.client.errors import RequestTimeoutError, TooManyRequestsError, TransportError
from kftrainer.kube.client.retry import RETRIES_REQUESTED
from kftrainer.kube.client.transport import HttpTransport, Response
from tests.support.fake_clock import FakeClock

NO_RESPONSE = b""  # read the request and do not respond while the client is connected
BREAK = None  # read the request and close the connection
Act = bytes | None
TEST_WITHIN = 60.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def answer(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", body]).encode()


class Server:
    """Answers one request after the other with its `acts`, and records the requests."""

    def __init__(self, acts: Sequence[Act]) -> None:
        self._acts = list(acts)
        self.requests: list[str] = []
        self.accepted: list[str] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answered(reader, writer):
                pass
        finally:
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return False
        for header in head.split("\r\n"):
            if header.lower().startswith("content-length:"):
                await reader.readexactly(int(header.partition(":")[2]))
            if header.lower().startswith("accept:"):
                self.accepted.append(header.partition(": ")[2])
        self.requests.append(head.rpartition(" HTTP/")[0])
        act = self._acts.pop(0)
        if act is BREAK:
            return False
        if act == NO_RESPONSE:
            await reader.read()
            return False
        writer.write(act)
        await writer.drain()
        return b"Connection: close" not in act


@asynccontextmanager
async def serving(
    *acts: Act, honors_retry_after: bool = True
) -> AsyncIterator[tuple[Server, HttpTransport, FakeClock]]:
    server, clock = Server(acts), FakeClock()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    connection = Connection(f"http://{host}:{port}/prefix", None, ClientCertificate())
    transport = HttpTransport(
        connection,
        user_agent="kftrainer-tests/1",
        clock=clock,
        honors_retry_after=honors_retry_after,
    )
    try:
        async with asyncio.timeout(TEST_WITHIN):  # the clock advances only for awaited work
            yield server, transport, clock
    finally:
        await transport.close()
        listener.close()
        await until(no_other_task, within=30, what="the end of the server's tasks")


async def no_other_task() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


def is_sleeping(clock: FakeClock) -> Callable[[], Awaitable[bool]]:
    async def is_sleeping() -> bool:
        return bool(clock.sleeping)

    return is_sleeping


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
async def test_request_is_retried_after_the_delay_of_the_server(method: str) -> None:
    async with (
        serving(answer(429, "Too many requests", Retry_After="2"), OK) as (
            server,
            transport,
            clock,
        ),
        asyncio.TaskGroup() as tasks,
    ):
        request = tasks.create_task(transport.request(method, "/pods", body=b"{}"))
        await until(is_sleeping(clock), within=30, what="the pause")
        assert clock.sleeping == [2.0]
        assert len(server.requests) == 1
        await clock.advance(2.0)
        assert (await request).status == 200
        assert server.requests == [f"{method} /prefix/pods"] * 2


async def test_request_fails_after_ten_retries() -> None:
    responses = [answer(503, Retry_After="1") for _ in range(RETRIES_REQUESTED + 1)]
    async with serving(*responses) as (server, transport, clock), asyncio.TaskGroup() as tasks:
        request = tasks.create_task(transport.request("GET", "/pods"))
        for _ in range(RETRIES_REQUESTED):
            await until(is_sleeping(clock), within=30, what="the pause")
            await clock.advance(1.0)
        assert (await request).status == 503
        assert len(server.requests) == RETRIES_REQUESTED + 1


@pytest.mark.parametrize(
    "response", [answer(500), answer(503, Retry_After="99"), answer(404, Retry_After="1")]
)
async def test_response_without_usable_retry_after_is_final(response: bytes) -> None:
    async with serving(response) as (server, transport, _):
        assert (await transport.request("GET", "/pods")).status >= 400
        assert len(server.requests) == 1


async def read_with_a_break(transport: HttpTransport, clock: FakeClock) -> Response:
    try:
        async with asyncio.TaskGroup() as tasks:
            request = tasks.create_task(transport.request("GET", "/pods"))
            await until(is_sleeping(clock), within=30, what="the pause")
            assert clock.sleeping == [clock.monotonic() + 1.0]
            await clock.advance(1.0)
    except* TransportError as errors:
        raise errors.exceptions[0] from None
    return request.result()


async def test_a_read_whose_connection_breaks_is_repeated_once_after_a_second() -> None:
    async with serving(BREAK, OK, BREAK, BREAK) as (server, transport, clock):
        assert (await read_with_a_break(transport, clock)).status == 200
        with pytest.raises(TransportError, match="GET /pods: the connection broke"):
            await read_with_a_break(transport, clock)
        assert len(server.requests) == 4


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("before", [0, 1], ids=["new connection", "kept connection"])
async def test_a_write_whose_connection_breaks_is_never_sent_again(
    method: str, before: int
) -> None:
    async with serving(*[OK] * before, BREAK, OK) as (server, transport, _):
        for _ in range(before):
            await transport.request("GET", "/pods")
        with pytest.raises(TransportError, match="the connection broke"):
            await transport.request(method, "/pods", body=b"{}")
        assert server.connections == 1
        assert server.requests[before:] == [f"{method} /prefix/pods"]


async def test_truncated_body_is_an_error() -> None:
    cut = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{}"
    async with serving(cut) as (_, transport, _):
        with pytest.raises(TransportError, match="the connection broke"):
            await transport.request("PUT", "/pods", body=b"{}")


async def test_silent_server_times_out() -> None:
    async with serving(NO_RESPONSE) as (server, transport, _):
        with pytest.raises(RequestTimeoutError, match="GET /pods: no response in time"):
            await transport.request("GET", "/pods", timeout=1.0)
        assert len(server.requests) <= 1  # none if it was us who were late


async def test_refused_connection_is_reported_immediately() -> None:
    connection = Connection("http://127.0.0.1:1", None, ClientCertificate())
    async with HttpTransport(connection, user_agent="x", clock=FakeClock()) as transport:
        with pytest.raises(TransportError, match="Cannot connect"):
            await transport.request("GET", "/pods")


async def test_a_redirect_is_not_followed() -> None:
    async with serving(answer(302, Location="/elsewhere")) as (server, transport, _):
        assert (await transport.request("GET", "/pods")).status == 302
        assert len(server.requests) == 1


async def test_proxy_in_the_environment_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(OK) as (_, transport, _):
        assert (await transport.request("GET", "/pods")).status == 200


async def test_repeated_header_is_joined() -> None:
    twice = OK.replace(b"\r\n\r\n", b'\r\nWarning: 299 - "one"\r\nwarning: 299 - "two"\r\n\r\n')
    async with serving(twice) as (_, transport, _):
        response = await transport.request("GET", "/pods")
        assert response.headers["Warning"] == '299 - "one", 299 - "two"'


async def test_queries_are_escaped() -> None:
    async with serving(OK) as (server, transport, _):
        await transport.request("GET", "/pods", query={"labelSelector": "a in (b,c),d!=e+f&g"})
        assert server.requests == ["GET /prefix/pods?labelSelector=a+in+(b,c),d!%3De%2Bf%26g"]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
KEPT, CLOSED = CHUNKED + b"\r\n", CHUNKED + b"Connection: close\r\n\r\n"


async def read(transport: HttpTransport, into: bytearray) -> None:
    async with transport.stream("/pods", query={"watch": "true"}, timeout=60) as chunks:
        async for chunk in chunks:
            into += chunk


async def test_a_transport_that_does_not_honor_retry_after_returns_the_response() -> None:
    busy = answer(429, "Too many requests", Retry_After="2")
    async with serving(busy, honors_retry_after=False) as (server, transport, _):
        response = await transport.request("GET", "/pods")
        assert (response.status, len(server.requests)) == (429, 1)


async def test_a_stream_ends_where_the_server_ends_it_and_its_connection_is_kept() -> None:
    got = bytearray()
    async with serving(KEPT + b"2\r\n{}\r\n2\r\n[]\r\n0\r\n\r\n", OK) as (server, transport, _):
        await read(transport, got)
        assert got == b"{}[]"
        await transport.request("GET", "/pods", lane="watch")
        assert server.connections == 1


async def test_truncated_stream_raises_after_the_received_data() -> None:
    got = bytearray()
    async with serving(CLOSED + b"2\r\n{}\r\n9\r\nhalf") as (_, transport, _):
        with pytest.raises(TransportError, match="GET /pods: the connection broke"):
            await read(transport, got)
    assert got.startswith(b"{}")


async def test_rejected_stream_has_retry_after_and_is_not_retried() -> None:
    async with serving(answer(429, "Too many requests", Retry_After="2")) as (server, transport, _):
        with pytest.raises(TooManyRequestsError, match="Too many requests") as raised:
            await read(transport, bytearray())
        assert raised.value.retry_after == 2
        assert len(server.requests) == 1


async def test_stream_left_early_closes_its_connection() -> None:
    async with serving(KEPT + b"2\r\n{}\r\n", OK) as (server, transport, _):
        async with transport.stream("/pods", query={}, timeout=60) as chunks:
            assert await anext(chunks) == b"{}"
        await transport.request("GET", "/pods", lane="watch")
        assert server.connections == 2


async def test_accept_header_is_json_or_the_requested_type() -> None:
    async with serving(OK, OK, OK, OK) as (server, transport, _):
        await transport.request("GET", "/pods")
        await transport.request("GET", "/pods", accept="text/plain")
        for accept in ({}, {"accept": "text/plain"}):
            async with transport.stream("/pods", query={}, timeout=60, **accept) as chunks:
                assert b"".join([each async for each in chunks]) == b"{}"
        assert server.accepted == ["application/json", "text/plain"] * 2
