"""What callers may not do to a server: send too much, too slowly, or from too many connections."""

import asyncio
import gc
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from aiohttp import web

from kftrainer.devcluster.waiting import until
from kftrainer.machinery.certs.serving import self_signed
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.lifetime import Budget, running
from kftrainer.machinery.webhook import connection
from kftrainer.machinery.webhook import server as webserver
from kftrainer.machinery.webhook.connection import (
    AT_ONCE,
    USER_TIMEOUT,
    Connection,
    Connections,
)
from kftrainer.machinery.webhook.limits import Limits
from kftrainer.machinery.webhook.server import (
    BodyError,
    Handler,
    HttpRequest,
    HttpResponse,
    WebServer,
)
from tests.support.raw_https import trusting

WITHIN = 60  # seconds that any of these may take, on a slow machine
HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


async def size(request: HttpRequest) -> HttpResponse:
    try:
        return HttpResponse(200, f"{len(await request.read_body())} bytes")
    except BodyError as error:
        return error.response


@dataclass
class Caller:
    """A connection to the server, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def post(self, body: bytes) -> tuple[int, bytes]:
        await self.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return int(head.split()[1]), await self.reader.readexactly(int(length))

    async def is_closed(self) -> bool:
        """Waits until the other side has closed, and discards its data."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        return True


class Serving:
    """A server that is running, for those who call it."""

    def __init__(self, server: WebServer, callers: list[Caller]) -> None:
        self._server = server
        self._callers = callers

    async def call(self, tls: ssl.SSLContext | None = None) -> Caller:
        port = self._server.port
        caller = Caller(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
        self._callers.append(caller)
        return caller


@asynccontextmanager
async def serving(
    limits: Limits, handler: Handler = size, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Serving]:
    callers: list[Caller] = []
    server = WebServer("test", "127.0.0.1:0", handler, limits=limits, tls=tls)
    async with asyncio.timeout(WITHIN), running(server, budget=Budget(SystemClock(), 5)):
        try:
            yield Serving(server, callers)
        finally:
            for caller in callers:
                caller.writer.close()


async def test_a_body_reaches_the_handler_and_the_connection_is_kept() -> None:
    async with serving(Limits(body=1000)) as server:
        caller = await server.call()
        assert await caller.post(b"x" * 1000) == (200, b"1000 bytes")
        assert await caller.post(b"") == (200, b"0 bytes")
        await caller.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n")
        await caller.send(b"2\r\nde\r\n0\r\n\r\n")
        assert await caller.answer() == (200, b"5 bytes")


async def test_body_with_too_large_content_length_is_rejected_before_reading() -> None:
    async with serving(Limits(body=1000, drain_within=0.1)) as server:
        caller = await server.call()
        await caller.send(HEAD + b"Content-Length: 1001\r\n\r\n")
        assert await caller.answer() == (413, b"The body is larger than 1000 bytes.\n")
        assert await caller.is_closed()


async def test_body_without_content_length_is_read_up_to_the_limit() -> None:
    async with serving(Limits(body=1000, drain_within=0.1)) as server:
        caller = await server.call()
        await caller.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001)
        assert (await caller.answer())[0] == 413
        assert await caller.is_closed()


async def test_bodies_together_have_a_limit_too() -> None:
    read: asyncio.Queue[int] = asyncio.Queue()
    gate = asyncio.Event()

    async def size_later(http_request: HttpRequest) -> HttpResponse:
        answer = await size(http_request)
        read.put_nowait(answer.status)
        await gate.wait()
        return answer

    async with (
        serving(
            Limits(body=1000, small_body=100, bodies=1500, drain_within=0.1), size_later
        ) as server,
        asyncio.TaskGroup() as group,
    ):
        caller = await server.call()
        gate.set()
        for _ in range(10):  # which neither take room nor give any
            assert await caller.post(b"x" * 100) == (200, b"100 bytes")
            read.get_nowait()
        gate.clear()
        first = group.create_task(caller.post(b"x" * 1000))
        assert await read.get() == 200
        group.create_task((await server.call()).post(b"x" * 1000))
        assert await read.get() == 429
        group.create_task((await server.call()).post(b"x" * 100))
        assert await read.get() == 200
        gate.set()
        await first
        assert await caller.post(b"x" * 1000) == (200, b"1000 bytes")


async def test_unfinished_body_times_out() -> None:
    async with serving(Limits(body_within=0.2, drain_within=0.1)) as server:
        caller = await server.call()
        await caller.send(HEAD + b"Content-Length: 10\r\n\r\n", b"1234")
        assert await caller.answer() == (408, b"The body was not received in time.\n")
        assert await caller.is_closed()


async def test_malformed_body_encoding_is_a_bad_request() -> None:
    async with serving(Limits(drain_within=0.1)) as server:
        caller = await server.call()
        await caller.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert (await caller.answer())[0] == 400
        assert await caller.is_closed()


async def test_disconnected_client_leaves_no_tasks() -> None:
    is_deleted = asyncio.Event()

    async def respond(http_request: HttpRequest) -> HttpResponse:
        answer = await size(http_request)
        if answer.status == 400:
            is_deleted.set()
        return answer

    async with serving(Limits(small_body=0, bodies=1000), respond) as server:
        for _ in range(3):
            caller = await server.call()
            await caller.send(HEAD + b"Content-Length: 900\r\n\r\n" + b"x" * 800)
            caller.writer.close()
            await is_deleted.wait()
            is_deleted.clear()
        assert await (await server.call()).post(b"x" * 900) == (200, b"900 bytes")


async def test_a_body_is_not_unpacked() -> None:
    async with serving(Limits()) as server:
        caller = await server.call()
        await caller.send(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
        assert await caller.answer() == (200, b"3 bytes")


async def test_headers_that_never_end_are_cut_off() -> None:
    async with serving(Limits(headers_within=0.2)) as server:
        caller = await server.call()
        await caller.send(HEAD)
        assert await caller.is_closed()


async def test_silent_connection_is_closed() -> None:
    async with serving(Limits(silent_within=0.2)) as server:
        assert await (await server.call()).is_closed()


async def test_idle_timeout_is_longer_than_the_header_timeout() -> None:
    async with serving(Limits(headers_within=0.2)) as server:
        caller = await server.call()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await caller.is_closed()
        assert await caller.post(b"abc") == (200, b"3 bytes")


@pytest.mark.parametrize("sent", [b"", HEAD])
async def test_request_received_in_time_is_served_by_a_slow_server(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "AT_ONCE", 5.0)  # that of a machine which stalls before, too
    async with serving(Limits(silent_within=0.5, headers_within=0.5)) as server:
        caller = await server.call()
        await caller.send(sent)
        assert await (await server.call()).post(b"") == (200, b"0 bytes")  # so it has been read
        request = HEAD + b"Content-Length: 1\r\n\r\nx"
        caller.writer.write(request[len(sent) :])  # to the socket, where it waits for the loop
        time.sleep(0.6)  # noqa: ASYNC251  it is this that is tried
        assert await caller.answer() == (200, b"1 bytes")


async def test_header_timeout_does_not_apply_after_headers_are_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library takes a moment to begin, which is longer than this."""
    monkeypatch.setattr(connection, "AT_ONCE", 0.0)
    async with serving(Limits(headers_within=1.5)) as server:
        caller = await server.call()
        await caller.send(HEAD)
        assert await (await server.call()).post(b"") == (200, b"0 bytes")  # so it has been read
        caller.writer.write(b"Content-Length: 1\r\n\r\nx")
        time.sleep(1.6)  # noqa: ASYNC251  so that the headers and their deadline come together
        assert await caller.answer() == (200, b"1 bytes")


async def test_headers_that_trickle_are_cut_off_on_a_connection_that_was_good() -> None:
    async with serving(Limits(headers_within=1.0)) as server:
        caller = await server.call()
        assert await caller.post(b"abc") == (200, b"3 bytes")
        await caller.send(b"P")
        assert await caller.is_closed()


async def test_an_idle_connection_is_kept_longer_than_headers_may_take() -> None:
    async with serving(Limits(headers_within=0.7)) as server:
        caller = await server.call()
        assert await caller.post(b"abc") == (200, b"3 bytes")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await caller.is_closed()
        assert await caller.post(b"abc") == (200, b"3 bytes")


async def test_an_idle_connection_is_closed_in_the_end() -> None:
    async with serving(Limits(idle_within=1.0)) as server:
        caller = await server.call()
        assert await caller.post(b"abc") == (200, b"3 bytes")
        assert await caller.is_closed()


async def test_a_slow_handler_is_not_mistaken_for_slow_headers() -> None:
    async def think(_: HttpRequest) -> HttpResponse:
        await asyncio.sleep(1.5)
        return HttpResponse(200, "done")

    async with serving(Limits(headers_within=0.7), think) as server:
        assert await (await server.call()).post(b"") == (200, b"done")


async def good(server: Serving) -> Caller:
    """A caller who has had an answer."""
    caller = await server.call()
    assert await caller.post(b"a") == (200, b"1 bytes")
    return caller


async def test_excess_connection_evicts_the_longest_idle_one() -> None:
    async with serving(Limits(connections=3)) as server:
        first, second, third = [await good(server) for _ in range(3)]
        assert await first.post(b"a") == (200, b"1 bytes")
        await good(server)
        assert await second.is_closed()
        for caller in (third, first):
            assert await caller.post(b"a") == (200, b"1 bytes")


async def test_unverified_connections_are_evicted_first() -> None:
    async with serving(Limits(connections=3)) as server:
        known, silent, slow = await good(server), await server.call(), await server.call()
        await slow.send(HEAD)
        for stalled_caller in (silent, slow):
            await good(server)
            assert await stalled_caller.is_closed()
        assert await known.post(b"a") == (200, b"1 bytes")


async def test_one_connection_too_many_is_closed_at_once_if_none_is_idle() -> None:
    gate, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def wait(http_request: HttpRequest) -> HttpResponse:
        begun.release()
        await gate.wait()
        return await size(http_request)

    async with (
        serving(Limits(connections=2), wait) as server,
        asyncio.TaskGroup() as group,
    ):
        busy = [await server.call(), await server.call()]
        http_request = [group.create_task(each.post(b"abc")) for each in busy]
        for _ in busy:
            await begun.acquire()
        assert await (await server.call()).is_closed()
        gate.set()
        assert [await each for each in http_request] == [(200, b"3 bytes")] * 2
        assert await (await server.call()).post(b"abc") == (200, b"3 bytes")


async def test_connection_without_successful_response_has_a_short_idle_timeout() -> None:
    async def respond_404(http_request: HttpRequest) -> HttpResponse:
        return HttpResponse(404 if http_request.path == "/x" else 200, "")

    async with serving(Limits(response_within=0.2), respond_404) as server:
        stalled_caller, known = await server.call(), await server.call()
        assert await stalled_caller.post(b"") == (404, b"")
        await known.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await known.answer() == (200, b"")
        assert await known.post(b"") == (404, b"")
        assert await stalled_caller.is_closed()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await known.is_closed()


@pytest.mark.parametrize("ending", [b"", b"Connection: close\r\n"])
async def test_client_that_never_reads_the_response_is_closed(
    ending: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "USER_TIMEOUT", None)  # the kernel might be first

    begun = asyncio.Event()

    async def respond_at_length(http_request: HttpRequest) -> HttpResponse:
        if http_request.path != "/much":
            return HttpResponse(200, b"x")
        begun.set()
        return HttpResponse(200, b"x" * 20_000_000)

    async with serving(Limits(response_within=2.0, connections=1), respond_at_length) as server:
        stalled = await server.call()
        assert await stalled.post(b"") == (200, b"x")
        stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stalled.send(b"GET /much HTTP/1.1\r\nHost: x\r\n" + ending + b"\r\n")

        async def is_room() -> bool:
            caller = await server.call()
            try:
                return await caller.post(b"") == (200, b"x")
            except (ConnectionError, asyncio.IncompleteReadError):
                caller.writer.close()
                return False

        await begun.wait()
        assert not await is_room(), "it is in progress and is not replaced"
        await until(is_room, within=WITHIN, what="the connection of who does not read closed")


@pytest.mark.skipif(USER_TIMEOUT is None, reason="the kernel has no TCP_USER_TIMEOUT")
@pytest.mark.parametrize(("length", "ending"), [(20_000_000, b""), (1, b"Connection: close\r\n")])
async def test_client_that_never_reads_the_response_is_closed_below_tls_too(
    length: int, ending: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def respond(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b"x" * length)

    closed, forget = asyncio.Event(), Connections.closed

    def closed_and_recorded(open_connections: Connections, connection: Connection) -> None:
        forget(open_connections, connection)
        closed.set()

    monkeypatch.setattr(Connections, "closed", closed_and_recorded)
    tls = self_signed(SystemClock().now())
    async with serving(Limits(response_within=0.5), respond, tls) as server:
        stalled = await server.call(trusting())
        stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stalled.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + ending + b"\r\n")
        await closed.wait()
        stalled.writer.transport.abort()


@pytest.mark.parametrize(
    "request_", [HEAD + b"Content-Length: 3\r\n\r\nabc", HEAD + CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"]
)
async def test_headers_behind_a_request_are_cut_off_like_others(request_: bytes) -> None:
    async with serving(Limits(headers_within=1.0)) as server:
        pipelining, sequential = await server.call(), await server.call()
        await sequential.send(request_)
        assert await sequential.answer() == (200, b"3 bytes")
        await pipelining.send(request_ + b"POST /x HTTP/1.1\r\nHo")
        assert await pipelining.answer() == (200, b"3 bytes")
        assert await pipelining.is_closed()
        await sequential.send(request_)  # who sent nothing more was kept
        assert await sequential.answer() == (200, b"3 bytes")


async def test_pipelined_headers_have_the_same_timeout() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def wait(http_request: HttpRequest) -> HttpResponse:
        begun.set()
        await gate.wait()
        return await size(http_request)

    async with serving(Limits(headers_within=0.2), wait) as server:
        caller = await server.call()
        await caller.send(HEAD + b"Content-Length: 3\r\n\r", b"\nab")
        await begun.wait()
        await caller.send(b"cPOST")
        gate.set()
        assert await caller.answer() == (200, b"3 bytes")
        assert await caller.is_closed()


async def test_pipelined_requests_all_get_responses() -> None:
    async with serving(Limits()) as server:
        caller = await server.call()
        await caller.send((HEAD + b"Content-Length: 3\r\n\r\nabc") * 5)
        assert [await caller.answer() for _ in range(5)] == [(200, b"3 bytes")] * 5


async def test_expect_continue_is_answered() -> None:
    async with serving(Limits(body=1000, drain_within=0.1)) as server:
        caller = await server.call()
        await caller.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        interim = await caller.reader.readuntil(b"\r\n\r\n")
        assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
        await caller.send(b"abc")
        assert await caller.answer() == (200, b"3 bytes")
        await caller.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
        assert (await caller.answer())[0] == 413


async def test_invalid_http_is_logged_in_one_line_without_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(Limits()) as server:
        for junk in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
            caller = await server.call()
            await caller.send(junk)
            assert await caller.answer() == (400, b"Not a valid HTTP request.\n")
            assert await caller.is_closed()
        caller = await server.call()
        await caller.post(b"abc")
        await caller.send(b"Good morning!\r\n\r\n")
        assert (await caller.answer())[0] == 400
    assert [record.message for record in caplog.records] == []


async def test_requests_in_flight_get_responses_before_shutdown() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def wait(_: HttpRequest) -> HttpResponse:
        begun.set()
        await gate.wait()
        return HttpResponse(200, "done")

    stop, ready = asyncio.Event(), asyncio.Event()
    server = WebServer("test", "127.0.0.1:0", wait)
    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
        running_server = group.create_task(server.run(ready.set, stop))
        await ready.wait()
        busy = Caller(*await asyncio.open_connection("127.0.0.1", server.port))
        idle = Caller(*await asyncio.open_connection("127.0.0.1", server.port))
        pending = group.create_task(busy.post(b""))
        await begun.wait()
        stop.set()
        assert await idle.is_closed()
        assert not running_server.done()
        gate.set()
        assert await pending == (200, b"done")
        await running_server
        assert await busy.is_closed()
        for caller in (busy, idle):
            caller.writer.close()
    gc.collect()  # a transport that was forgotten would warn here


async def test_a_request_that_does_not_end_holds_up_stopping_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webserver, "CLOSE_WITHIN", 0.5)
    waits: list[float | None] = []
    shut_down = web.Server.shutdown

    async def counted(server: web.Server, within: float | None = None) -> None:
        waits.append(within)
        await shut_down(server, within)

    monkeypatch.setattr(web.Server, "shutdown", counted)
    begun, stop, ready = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def never(_: HttpRequest) -> HttpResponse:
        begun.set()
        await asyncio.Event().wait()
        return HttpResponse(200, "done")

    server = WebServer("test", "127.0.0.1:0", never)
    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
        run = group.create_task(server.run(ready.set, stop))
        await ready.wait()
        caller = Caller(*await asyncio.open_connection("127.0.0.1", server.port))
        await caller.send(HEAD + b"Content-Length: 0\r\n\r\n")
        await begun.wait()
        stop.set()
        await run
        assert waits == [0.5, AT_ONCE]
        assert await caller.is_closed()
        caller.writer.close()
