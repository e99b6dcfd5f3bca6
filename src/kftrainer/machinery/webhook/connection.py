"""Connections of a server, with limits on their number and on how long a request may take.

Only this module and `server` use the HTTP library on the server side.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain
from typing import cast

import structlog
from aiohttp import web

from kftrainer.machinery.webhook.limits import Limits

log = structlog.get_logger(__name__)

GOOD = 200
SERVER_ERROR = 500
END_OF_HEADERS = b"\r\n\r\n"
USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)  # available on Linux
AT_ONCE = 0.05  # seconds; the library interprets 0 as no timeout


class Client:
    """A source address with at least one connection."""

    __slots__ = ("address", "connections", "handshakes", "idle", "large_bodies", "unproven")

    def __init__(self, address: str, limits: Limits) -> None:
        self.address = address
        self.connections: dict[Connection, None] = {}
        # Both in the order in which they started to wait. `unproven` never got a successful
        # response.
        self.unproven: dict[Connection, None] = {}
        self.idle: dict[Connection, None] = {}
        self.handshakes = asyncio.Semaphore(limits.handshakes)
        self.large_bodies = asyncio.Semaphore(limits.large_bodies)


class Connections:
    """The connections of one server; a factory for asyncio's `create_server`."""

    def __init__(
        self,
        respond: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: Limits,
        admits: Callable[[asyncio.BaseTransport], bool] | None = None,
    ) -> None:
        """If `admits` is given, connections for which it returns False are closed."""
        self.limits = limits
        self.admits = admits or (lambda _: True)
        self._clients: dict[str, Client] = {}  # by address; each has at least one connection
        self._open = 0
        self._full = False
        self._server = web.Server(respond)
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> "Connection":
        return Connection(self, self._server, self._loop)

    def opened(self, connection: "Connection", address: str) -> bool:
        """Add a connection, possibly before its TLS handshake; return False if it must be closed.

        If the limit is exceeded, a connection of the client with the most connections is closed
        instead, or else a waiting connection of the same client. One client cannot lock out others
        by opening many connections.
        """
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = Client(address, self.limits)
        connection.client = client
        client.connections[connection] = None
        client.unproven[connection] = None
        self._open += 1
        if self._open > self.limits.connections:
            if not self._full:  # log once: repeated entries would flood the log
                self._full = True
                log.warning("connection_limit_reached", most=self.limits.connections)
            if not self._make_room(client, connection):
                self.closed(connection)
                return False
        return True

    def _make_room(self, client: Client, connection: "Connection") -> bool:
        """Close a connection other than the new one; return False if none can be closed."""
        largest = max(self._clients.values(), key=lambda each: len(each.connections))
        if len(largest.connections) > len(client.connections):
            evicted = next(chain(largest.unproven, largest.idle, reversed(largest.connections)))
        else:
            own = (each for each in client.unproven if each is not connection)
            found = next(chain(own, client.idle), None)
            if found is None:
                return False
            evicted = found
        self.closed(evicted)
        evicted.cut_off()
        return True

    def mark_idle(self, connection: "Connection") -> None:
        """Mark the connection as waiting: closing it now would lose no request."""
        client = connection.client
        if client is not None and connection in client.connections:
            (client.idle if connection.is_known else client.unproven)[connection] = None

    def mark_busy(self, connection: "Connection") -> None:
        """Mark the connection as busy with a request."""
        if (client := connection.client) is not None:
            client.unproven.pop(connection, None)
            client.idle.pop(connection, None)

    def closed(self, connection: "Connection") -> None:
        """Remove a connection; idempotent."""
        client = connection.client
        if client is None or connection not in client.connections:
            return
        for each in (client.connections, client.unproven, client.idle):
            each.pop(connection, None)
        if not client.connections:
            del self._clients[client.address]
        self._open -= 1
        if self._open <= self.limits.connections // 2:
            self._full = False

    async def finish(self, within: float) -> None:
        """Close idle connections, and the others once their requests are answered."""
        await asyncio.sleep(0)  # data received by now counts as a request in progress
        self._server.pre_shutdown()
        try:
            async with asyncio.timeout(within):
                await self._server.shutdown(within)
        except TimeoutError:  # the library would wait for the same time again
            await self._server.shutdown(AT_ONCE)
            for client in list(self._clients.values()):
                for connection in list(client.connections):
                    connection.cut_off()


class _Arrived:
    """Counts the bytes received after the headers of a request."""

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
        """Return whether nothing was received after this request, which has ended."""
        if "Transfer-Encoding" in request.headers:
            return self._last == END_OF_HEADERS  # partial headers cannot end this way
        return self._beyond == request.content.total_bytes


class Connection(web.RequestHandler):
    """A connection that is closed when its client is too slow.

    The library limits the size of headers and the idle time, but it has no deadline for headers
    that arrive byte by byte, nor for clients that do not read the response.
    """

    __slots__ = (
        "_all",
        "_arrived",
        "_due",
        "_end_handshake",
        "_expecting",
        "_responding",
        "_transport",
        "client",
        "is_known",
    )

    def __init__(
        self, connections: Connections, server: web.Server, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # None is accepted by the library
            keepalive_timeout=connections.limits.idle_within,
            lingering_time=0.0,  # the server itself drains bodies, before it sends the response
            auto_decompress=False,  # a small compressed body may expand to a huge one
        )
        self.is_known = False  # whether it has had a successful response
        self._all = connections
        self._expecting = False  # waiting for the end of headers that have begun
        self._responding = False
        self._arrived = _Arrived()
        self._due: asyncio.TimerHandle | None = None
        self._end_handshake: Callable[[], object] | None = None  # only during the handshake
        self._transport: asyncio.Transport | None = None
        self.client: Client | None = None

    def accept(self, address: str, close: Callable[[], object]) -> Client | None:
        """Count the connection, before its TLS handshake; return None if it is rejected.

        `close` ends the handshake.
        """
        if not self._all.opened(self, address):
            return None
        self._end_handshake = close
        return self.client

    def handshake_ended(self) -> None:
        """Remove the connection, unless its handshake has succeeded."""
        self._end_handshake = None
        if self._transport is None:
            self._all.closed(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for a request, unless the connection exceeds a limit or is not admitted."""
        super().connection_made(transport)
        # uvloop's transports have this interface but are not subclasses.
        self._transport = cast("asyncio.Transport", transport)
        self._end_handshake = None
        set_user_timeout(self._all.limits.response_within, self._transport)
        address = address_in(transport.get_extra_info("peername"))
        is_counted = self.client is not None or self._all.opened(self, address)
        if is_counted and self._all.admits(transport):
            self._wait(self._all.limits.silent_within, self._too_late)
        else:
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection."""
        super().connection_lost(exc)
        self._transport = None
        self._stop_waiting()
        self._all.closed(self)

    def data_received(self, data: bytes) -> None:
        """Start the header deadline with the first bytes of a request."""
        if data:
            if not self._responding and not self._expecting:
                self._expect_headers()
            self._arrived.add(data)
        super().data_received(data)

    def request_begins(self) -> None:
        """Record that the headers are complete and a request is in progress."""
        self._responding = True
        self._expecting = False
        self._stop_waiting()
        self._all.mark_busy(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write the response; the connection may be idle afterwards."""
        self._responding = True
        self._expecting = False
        self._wait(self._all.limits.response_within, self._check_response_read)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._responding = False
            self.is_known |= resp.status == GOOD
            self._request_ends(request, is_last=not resp.keep_alive)

    def _request_ends(self, request: web.BaseRequest, *, is_last: bool) -> None:
        arrived, self._arrived = self._arrived, _Arrived()
        if self._transport is None or is_last:
            return
        if arrived.end_with(request):
            self._all.mark_idle(self)
        else:
            self._expect_headers()

    def _expect_headers(self) -> None:
        self._expecting = True
        if self.is_known:  # an unproven client may never complete them
            self._all.mark_busy(self)
        self._wait(self._all.limits.headers_within, self._too_late)

    def _check_response_read(self) -> None:
        """Close the connection if the response is unread or no request ever succeeded."""
        self._due = None
        transport = self._transport
        if transport is not None and (
            not self.is_known or transport.is_closing() or transport.get_write_buffer_size() > 0
        ):
            self._too_late()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        if self._transport is not None:
            self._due = asyncio.get_running_loop().call_later(seconds, then)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _too_late(self) -> None:
        """Close the connection after its deadline, but first read the data that has arrived."""
        self._wait(AT_ONCE, self._abort_if_late)

    def _abort_if_late(self) -> None:
        self._due = None
        is_about_to_begin = self._expecting and self._arrived.has_headers
        if self._transport is not None and not is_about_to_begin:
            log.debug("connection_timed_out", peer=self._transport.get_extra_info("peername"))
            self.cut_off()  # a client that sends this slowly may never read a response either

    def cut_off(self) -> None:
        """Close the connection at once and discard unsent data."""
        if self._transport is not None:
            self._transport.abort()
        elif self._end_handshake is not None:
            self._end_handshake()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to invalid HTTP with one line instead of logging a traceback."""
        if status >= SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        log.debug("http_request_invalid", peer=request.remote, error=type(exc).__name__)
        response = web.Response(status=status, text="Not a valid HTTP request.\n")
        response.force_close()
        return response


def address_in(peer: object) -> str:
    """Return the address of a peer; IPv4-mapped IPv6 addresses are returned as IPv4."""
    return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) else ""


def set_user_timeout(seconds: float, transport: asyncio.Transport) -> None:
    """Make the kernel close the connection when sent data is not acknowledged for this time.

    The buffer below TLS can hold a whole response and cannot be inspected from here.
    """
    if USER_TIMEOUT is not None and (sock := transport.get_extra_info("socket")) is not None:
        with suppress(OSError):  # already closed
            sock.setsockopt(socket.IPPROTO_TCP, USER_TIMEOUT, int(seconds * 1000))
