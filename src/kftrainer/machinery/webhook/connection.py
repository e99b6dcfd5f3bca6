"""The connections of a server: bounded in number, and in the time that a request may take to come.

With `webserver`, the only server-side module that knows the HTTP library.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import cast

import structlog
from aiohttp import web

log = structlog.get_logger(__name__)

GOOD = 200
SERVER_ERROR = 500
END_OF_HEADERS = b"\r\n\r\n"
USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has one
AT_ONCE = 0.05  # nearly: the library takes 0 for never


@dataclass(frozen=True, slots=True)
class Limits:
    """What callers may ask of a server."""

    body: int = 7 * 1024 * 1024  # as controller-runtime; two objects of the largest size fit in
    small_body: int = 256 * 1024  # up to which nobody is refused because of the bodies of others
    bodies: int = 64 * 1024 * 1024  # all larger ones together that are under way
    # Until the first byte. In a burst the API server opens connections which it then does not need,
    # and keeps them for 90 s: we must not be the first to close them, as below.
    silent_within: float = 100.0
    headers_within: float = 10.0  # from their first byte on
    body_within: float = 10.0
    # To read an answer; also how long those may be idle who have had none that was good.
    answer_within: float = 10.0
    connections: int = 1000
    # Longer than callers keep a connection that is idle (the API server 90 s, Prometheus 300 s):
    # if we closed it first, a request that is on its way at that moment would fail.
    idle_within: float = 330.0
    drain_within: float = 2.0  # a body that nobody wants to read
    drain_quiet: float = 0.2  # without a byte of it, after which nothing more is waited for
    # Of one client, that is, of one source address. The rest waits; nothing is refused at once.
    handshakes: int = 32  # in progress at a time, each for a few seconds at most
    large_bodies: int = 4  # being read or processed at a time
    # Requests that are processed at a time: of all clients, and of one. An API server sends 200 at
    # a time by default. They start in turn by client, so one client cannot delay another for long.
    requests: int = 480
    requests_per_client: int = 240
    start_within: float = 10.0


class Client:
    """A source address with at least one connection."""

    __slots__ = ("address", "connections", "handshakes", "idle", "large_bodies", "strangers")

    def __init__(self, address: str, limits: Limits) -> None:
        self.address = address
        self.connections: dict[Connection, None] = {}
        # Both in the order in which they began to wait. Strangers have never had a good answer.
        self.strangers: dict[Connection, None] = {}
        self.idle: dict[Connection, None] = {}
        self.handshakes = asyncio.Semaphore(limits.handshakes)
        self.large_bodies = asyncio.Semaphore(limits.large_bodies)


class Connections:
    """The connections of one server; called for each new one."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: Limits,
        admits: Callable[[asyncio.BaseTransport], bool] | None = None,
    ) -> None:
        """With `admits`, a connection for which it returns False is closed."""
        self.limits = limits
        self.admits = admits or (lambda _: True)
        self._clients: dict[str, Client] = {}  # by address; each has a connection
        self._open = 0
        self._full = False
        self._server = web.Server(answer)
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> "Connection":
        return Connection(self, self._server, self._loop)

    def opened(self, connection: "Connection", address: str) -> bool:
        """Add a connection, which may still be in its TLS handshake; False if it must be closed.

        If there are too many, it takes the place of one of the client that has the most, or else
        of one of its own client that waits: nobody locks others out by opening many.
        """
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = Client(address, self.limits)
        connection.client = client
        client.connections[connection] = None
        client.strangers[connection] = None
        self._open += 1
        if self._open > self.limits.connections:
            if not self._full:  # say it once: whoever opens so many would fill the logs, too
                self._full = True
                log.warning("connections.too_many", most=self.limits.connections)
            if not self._make_room(client, connection):
                self.closed(connection)
                return False
        return True

    def _make_room(self, newcomer: Client, connection: "Connection") -> bool:
        """Close a connection other than the new one; False if there is none to close."""
        largest = max(self._clients.values(), key=lambda each: len(each.connections))
        if len(largest.connections) > len(newcomer.connections):
            victim = next(chain(largest.strangers, largest.idle, reversed(largest.connections)))
        else:
            own = (each for each in newcomer.strangers if each is not connection)
            found = next(chain(own, newcomer.idle), None)
            if found is None:
                return False
            victim = found
        self.closed(victim)
        victim.cut_off()
        return True

    def waits(self, connection: "Connection") -> None:
        """Nothing would be lost if it were closed now."""
        client = connection.client
        if client is not None and connection in client.connections:
            (client.idle if connection.is_known else client.strangers)[connection] = None

    def works(self, connection: "Connection") -> None:
        """A request is under way on it."""
        if (client := connection.client) is not None:
            client.strangers.pop(connection, None)
            client.idle.pop(connection, None)

    def closed(self, connection: "Connection") -> None:
        """Remove a connection, if that has not been done."""
        client = connection.client
        if client is None or connection not in client.connections:
            return
        for each in (client.connections, client.strangers, client.idle):
            each.pop(connection, None)
        if not client.connections:
            del self._clients[client.address]
        self._open -= 1
        if self._open <= self.limits.connections // 2:
            self._full = False

    async def finish(self, within: float) -> None:
        """Close those that are idle, and the others when their requests are answered."""
        await asyncio.sleep(0)  # what has come by now is a request under way
        self._server.pre_shutdown()
        try:
            async with asyncio.timeout(within):
                await self._server.shutdown(within)
        except TimeoutError:  # the library would wait once more as long
            await self._server.shutdown(AT_ONCE)
            for client in list(self._clients.values()):
                for connection in list(client.connections):
                    connection.cut_off()


class _Arrived:
    """Counts the bytes that come after the headers of a request."""

    __slots__ = ("_beyond", "_last")

    def __init__(self) -> None:
        self._beyond: int | None = None
        self._last = b""

    def add(self, data: bytes) -> None:
        before, self._last = self._last, (self._last + data[-4:])[-4:]
        if self._beyond is not None:
            self._beyond += len(data)
            return
        data = before + data
        end = data.find(END_OF_HEADERS)
        if end >= 0:
            self._beyond = len(data) - end - len(END_OF_HEADERS)

    @property
    def has_headers(self) -> bool:
        """Whether the headers of a request are complete."""
        return self._beyond is not None

    def end_with(self, request: web.BaseRequest) -> bool:
        """Whether nothing has come after this request, which is over."""
        if "Transfer-Encoding" in request.headers:
            return self._last == END_OF_HEADERS  # headers that have begun cannot end like that
        return self._beyond == request.content.total_bytes


class Connection(web.RequestHandler):
    """A connection that is cut off when its caller is too slow.

    The library limits how large headers are and how long a connection may be idle, but would wait
    for the end of headers that have begun for as long as somebody sends a byte now and then, and
    for as long as it takes until an answer is read.
    """

    __slots__ = (
        "_all",
        "_answering",
        "_arrived",
        "_due",
        "_end_handshake",
        "_expecting",
        "_wire",
        "client",
        "is_known",
    )

    def __init__(
        self, everyone: Connections, server: web.Server, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # as the library itself allows
            keepalive_timeout=everyone.limits.idle_within,
            lingering_time=0.0,  # the server waits for the rest of bodies, and before it answers
            auto_decompress=False,  # what is small here may be huge when it is unpacked
        )
        self.is_known = False  # whether a request has been answered well
        self._all = everyone
        self._expecting = False  # the end of headers that have begun
        self._answering = False
        self._arrived = _Arrived()
        self._due: asyncio.TimerHandle | None = None
        self._end_handshake: Callable[[], object] | None = None  # while there is one
        self._wire: asyncio.Transport | None = None
        self.client: Client | None = None

    def accept(self, address: str, close: Callable[[], object]) -> Client | None:
        """Count the connection from now on, before its TLS handshake; None if it may not be.

        `close` ends the handshake.
        """
        if not self._all.opened(self, address):
            return None
        self._end_handshake = close
        return self.client

    def handshake_ended(self) -> None:
        """Forget the connection, unless its handshake has succeeded."""
        self._end_handshake = None
        if self._wire is None:
            self._all.closed(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request, unless there are too many who do."""
        super().connection_made(transport)
        # What uvloop hands over is one by what it does, not by its type.
        self._wire = cast("asyncio.Transport", transport)
        self._end_handshake = None
        give_up_after(self._all.limits.answer_within, self._wire)
        address = address_in(transport.get_extra_info("peername"))
        is_counted = self.client is not None or self._all.opened(self, address)
        if is_counted and self._all.admits(transport):
            self._wait(self._all.limits.silent_within, self._too_late)
        else:
            self._wire.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._wire = None
        self._stop_waiting()
        self._all.closed(self)

    def data_received(self, data: bytes) -> None:
        """The first bytes, and those after a request, are headers."""
        if data:
            if not self._answering and not self._expecting:
                self._expect_headers()
            self._arrived.add(data)
        super().data_received(data)

    def request_begins(self) -> None:
        """The headers are complete."""
        self._answering = True
        self._expecting = False
        self._stop_waiting()
        self._all.works(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write the answer; the connection may be idle then."""
        self._answering = True
        self._expecting = False
        self._wait(self._all.limits.answer_within, self._look_back)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answering = False
            self.is_known |= resp.status == GOOD
            self._request_ends(request, is_last=not resp.keep_alive)

    def _request_ends(self, request: web.BaseRequest, *, is_last: bool) -> None:
        arrived, self._arrived = self._arrived, _Arrived()
        if self._wire is None or is_last:
            return
        if arrived.end_with(request):
            self._all.waits(self)
        else:
            self._expect_headers()

    def _expect_headers(self) -> None:
        self._expecting = True
        if self.is_known:  # of a stranger there may never be more than their beginning
            self._all.works(self)
        self._wait(self._all.limits.headers_within, self._too_late)

    def _look_back(self) -> None:
        """Some time after an answer: it should have been read, and who asked be no stranger."""
        self._due = None
        wire = self._wire
        if wire is not None and (
            not self.is_known or wire.is_closing() or wire.get_write_buffer_size() > 0
        ):
            self._too_late()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        if self._wire is not None:
            self._due = asyncio.get_running_loop().call_later(seconds, then)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _too_late(self) -> None:
        """Its time is up; but read first what has come by now, for it may be us who are late."""
        self._wait(AT_ONCE, self._give_up)

    def _give_up(self) -> None:
        self._due = None
        is_about_to_begin = self._expecting and self._arrived.has_headers
        if self._wire is not None and not is_about_to_begin:
            log.debug("connection.cut_off", peer=self._wire.get_extra_info("peername"))
            self.cut_off()  # whoever sends so slowly may never read either

    def cut_off(self) -> None:
        """Close it at once; what has not been sent yet never will be."""
        if self._wire is not None:
            self._wire.abort()
        elif self._end_handshake is not None:
            self._end_handshake()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP with a line instead of a traceback in the logs."""
        if status >= SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        log.debug("connection.no_http", peer=request.remote, error=type(exc).__name__)
        response = web.Response(status=status, text="This is no HTTP request.\n")
        response.force_close()
        return response


def address_in(peer: object) -> str:
    """Return the address in a peer's name; IPv4 addresses look the same on all sockets."""
    return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) else ""


def give_up_after(seconds: float, wire: asyncio.Transport) -> None:
    """Have the kernel break the connection when nothing that we send is taken for so long.

    Below TLS there is a buffer that nobody up here can look into, and it takes a whole answer.
    """
    if USER_TIMEOUT is not None and (line := wire.get_extra_info("socket")) is not None:
        with suppress(OSError):  # it is gone already
            line.setsockopt(socket.IPPROTO_TCP, USER_TIMEOUT, int(seconds * 1000))
