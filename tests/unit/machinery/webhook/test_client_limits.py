"""What one client of a server cannot do to another: each has an address of its own."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from kftrainer.devcluster.waiting import until
from kftrainer.machinery.certs.serving import self_signed
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.lifetime import Budget, running
from kftrainer.machinery.webhook import tls_listener
from kftrainer.machinery.webhook.connection import address_in
from kftrainer.machinery.webhook.limits import Limits
from kftrainer.machinery.webhook.per_client_rate_limiter import CURRENT_CLIENT, PerClientRateLimiter
from kftrainer.machinery.webhook.server import (
    BodyError,
    Handler,
    HttpRequest,
    HttpResponse,
    WebServer,
)
from tests.support.fake_clock import FakeClock
from tests.support.raw_https import trusting

WITHIN = 60.0
OTHER_CLIENT, API_SERVER = "127.0.0.2", "127.0.0.3"
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def size(request: HttpRequest) -> HttpResponse:
    try:
        return HttpResponse(200, f"{len(await request.read_body())}")
    except BodyError as error:
        return error.response


class Callers:
    """Connections to a server from any address of this machine."""

    def __init__(self, port: int | None) -> None:
        self._port = port
        self._opened: list[asyncio.StreamWriter] = []

    async def open(self, source: str, tls: ssl.SSLContext | None = None) -> Streams:
        """Connect from this address."""
        streams = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(source, 0), ssl=tls
        )
        self._opened.append(streams[1])
        return streams

    async def many(self, source: str, number: int) -> Sequence[Streams]:
        """Connect this number of times."""
        return [await self.open(source) for _ in range(number)]

    def close(self) -> None:
        """Close all of them."""
        for writer in self._opened:
            writer.transport.abort()


@asynccontextmanager
async def serving(
    limits: Limits, handler: Handler = size, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Callers]:
    server = WebServer("test", "127.0.0.1:0", handler, limits=limits, tls=tls)
    async with asyncio.timeout(WITHIN), running(server, budget=Budget(SystemClock(), 5)):
        callers = Callers(server.port)
        try:
            yield callers
        finally:
            callers.close()


async def posted(streams: Streams, body: bytes = b"abc") -> int:
    """The status of the answer; 0 if the connection is closed instead."""
    reader, writer = streams
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return await status_from(reader)


async def status_from(reader: asyncio.StreamReader) -> int:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return int(head.split()[1])


class Gate:
    """A handler that holds the other client's requests until the test releases them."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.waiting = 0

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = await size(request)
        if CURRENT_CLIENT.get() == OTHER_CLIENT:
            self.waiting += 1
            await self.opened.wait()
        return answer

    async def wait_until_waiting(self, number: int) -> None:
        async def waiting() -> bool:
            return self.waiting >= number

        await until(waiting, within=WITHIN, what=f"{number} requests in progress")


async def test_idle_connections_of_an_unverified_client_are_evicted_for_another_client() -> None:
    async with serving(Limits(connections=6)) as callers:
        ours = await callers.open(API_SERVER)
        assert await posted(ours) == 200
        theirs = await callers.many(OTHER_CLIENT, 5)
        for each in theirs:  # a successful response makes a client known
            assert await posted(each) == 200
        # Idle for longest, but of a client that has fewer connections.
        assert await posted(await callers.open(API_SERVER)) == 200
        assert await posted(ours) == 200
        assert await posted(theirs[0]) == 0


async def test_busy_connections_of_an_unverified_client_are_evicted_for_another_client() -> None:
    gate = Gate()
    async with serving(Limits(connections=4), gate) as callers, asyncio.TaskGroup() as tasks:
        theirs = [tasks.create_task(posted(each)) for each in await callers.many(OTHER_CLIENT, 4)]
        await gate.wait_until_waiting(4)
        ours = await callers.many(API_SERVER, 2)
        assert [await posted(each) for each in ours] == [200, 200]
        gate.opened.set()
        assert sorted([await each for each in theirs]) == [0, 0, 200, 200]


async def test_unfinished_requests_of_an_unverified_client_do_not_block_others() -> None:
    gate, limits = Gate(), Limits(requests=4, requests_per_client=3)
    async with serving(limits, gate) as callers, asyncio.TaskGroup() as tasks:
        for each in await callers.many(OTHER_CLIENT, 10):
            tasks.create_task(posted(each))
        await gate.wait_until_waiting(3)
        for each in await callers.many(API_SERVER, 3):
            assert await posted(each) == 200
        assert gate.waiting == 3
        gate.opened.set()


async def test_a_request_that_waits_too_long_is_rejected() -> None:
    gate = Gate()
    limits = Limits(requests_per_client=1, start_within=0.2)
    async with serving(limits, gate) as callers, asyncio.TaskGroup() as tasks:
        first, second = await callers.many(OTHER_CLIENT, 2)
        task = tasks.create_task(posted(first))
        await gate.wait_until_waiting(1)
        gate_is_passed = tasks.create_task(posted(second))
        await gate.wait_until_waiting(2)
        gate.opened.set()
        assert (await task, await gate_is_passed) == (200, 429)


async def test_requests_of_all_clients_beyond_the_limit_are_rejected() -> None:
    gate = Gate()
    limits = Limits(requests=1, start_within=0.2)
    async with serving(limits, gate) as callers, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(posted(await callers.open(OTHER_CLIENT)))
        await gate.wait_until_waiting(1)
        assert await posted(await callers.open(API_SERVER)) == 429
        gate.opened.set()
    assert first.result() == 200


async def test_large_bodies_of_an_unverified_client_are_limited_in_memory() -> None:
    gate = Gate()
    limits = Limits(small_body=100, bodies=3500, large_bodies=2)
    async with serving(limits, gate) as callers, asyncio.TaskGroup() as tasks:
        for each in await callers.many(OTHER_CLIENT, 8):
            tasks.create_task(posted(each, b"x" * 1000))
        await gate.wait_until_waiting(2)
        assert await posted(await callers.open(API_SERVER), b"x" * 1000) == 200
        assert gate.waiting == 2
        gate.opened.set()


async def test_connections_in_their_handshake_are_counted() -> None:
    tls = self_signed(SystemClock().now())
    async with serving(Limits(connections=3), tls=tls) as callers:
        silent = await callers.many(OTHER_CLIENT, 3)  # none of which begins a handshake
        ours = await callers.open(API_SERVER, trusting())
        assert await posted(ours) == 200
        assert await status_from(silent[0][0]) == 0


async def test_handshakes_that_do_not_end_do_not_delay_another_client() -> None:
    tls = self_signed(SystemClock().now())
    async with serving(Limits(handshakes=2), tls=tls) as callers:
        await callers.many(OTHER_CLIENT, 5)
        assert await posted(await callers.open(API_SERVER, trusting())) == 200


async def test_unfinished_handshake_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKE_WITHIN", 0.2)
    tls = self_signed(SystemClock().now())
    async with serving(Limits(handshakes=1), tls=tls) as callers:
        reader, _ = await callers.open(OTHER_CLIENT)
        assert await reader.read() == b""
        # Its place is free again.
        assert await posted(await callers.open(OTHER_CLIENT, trusting())) == 200


async def test_a_server_stops_with_handshakes_in_progress() -> None:
    tls = self_signed(SystemClock().now())
    async with serving(Limits(), tls=tls) as callers:
        reader, _ = await callers.open(OTHER_CLIENT)
        assert await posted(await callers.open(API_SERVER, trusting())) == 200
        other = reader
    assert await status_from(other) == 0


async def test_reads_for_one_client_do_not_use_up_the_rate_of_another() -> None:
    clock = FakeClock()
    limiter = PerClientRateLimiter(1.0, 2, clock)

    async def reads_for(client: str, number: int) -> None:
        CURRENT_CLIENT.set(client)
        for _ in range(number):
            await limiter.wait()

    async with asyncio.TaskGroup() as tasks:
        flood = tasks.create_task(reads_for(OTHER_CLIENT, 3))
        await asyncio.sleep(0)
        async with asyncio.timeout(WITHIN):
            await tasks.create_task(reads_for(API_SERVER, 2))
        assert not flood.done()
        await clock.advance(2.0)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("fd00::1", 5, 0, 0), "fd00::1"),
        (None, ""),
    ],
)
def test_addresses_are_the_same_on_all_sockets(peer: object, address: str) -> None:
    assert address_in(peer) == address
