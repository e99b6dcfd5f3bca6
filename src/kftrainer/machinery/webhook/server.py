"""HTTP servers as Runnables. Only this module and `connection` use the HTTP library."""

import asyncio
import errno
import socket
import ssl
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import HttpVersion11, web

from kftrainer.machinery.manager.clock import Clock, SystemClock
from kftrainer.machinery.queue.fair_queue import FairQueue, QueueFullError
from kftrainer.machinery.webhook.connection import Client, Connection, Connections
from kftrainer.machinery.webhook.limits import Limits
from kftrainer.machinery.webhook.per_client_rate_limiter import CURRENT_CLIENT
from kftrainer.machinery.webhook.tls_listener import TlsListener, only_names

PLAIN_TEXT = "text/plain; charset=utf-8"
OFF = ("", "0")
CLOSE_WITHIN = 5.0
WAITING_TO_CONNECT = 128
HIGHEST_PORT = 65535
NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
DEFAULT_LIMITS = Limits()
SYSTEM_CLOCK = SystemClock()


class BindError(Exception):
    """A server cannot listen on its address; the message is for the operator."""


async def no_body() -> bytes:
    """Return the empty body of a request without one."""
    return b""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as handlers receive it; header names are case-insensitive.

    The body is read on demand; `read_body` raises BodyError if it cannot be received.
    """

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    read_body: Callable[[], Awaitable[bytes]] = no_body


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A handler's response; plain text by default, and browsers must not guess its type."""

    status: int
    body: str | bytes
    content_type: str = PLAIN_TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
NOT_FOUND = HttpResponse(404, "404 page not found\n")
# Raised by reading if the client has disconnected or sent invalid HTTP. A timeout is an OSError;
# the library raises RuntimeError if the client disconnected before the body was read.
INCOMPLETE = (OSError, RuntimeError, web.RequestPayloadError)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodyError(Exception):
    """The body cannot be read; `response` is to be sent."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = HttpResponse(status, f"{text}\n")


def parse_bind(address: str) -> tuple[str | None, int] | None:
    """Parse `host:port` or `:port` (all hosts); return None if the server is disabled."""
    if address in OFF:
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise BindError(f"{address} is not a valid address: use host:port, :port or 0.")
    if len(port) > len(str(HIGHEST_PORT)) or int(port) > HIGHEST_PORT:
        raise BindError(f"{address} is not a valid address: the highest port is {HIGHEST_PORT}.")
    return host.strip("[]") or None, int(port)


class WebServer:
    """HTTP server at an address; does nothing if the address disables it."""

    def __init__(  # noqa: PLR0913  independent settings of a server
        self,
        name: str,
        address: str,
        handler: Handler,
        *,
        tls: ssl.SSLContext | None = None,
        client_names: Collection[str] = (),
        limits: Limits = DEFAULT_LIMITS,
        linger: float = 0.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Configure the server; it starts to listen in `run`.

        With `client_names`, a client's certificate must have one of these common names. With
        `linger`, the server accepts requests for this many seconds after `stop` is set, because
        load balancers and the endpoints of a Service are updated with a delay.
        """
        self.name = name
        self._address = address
        self._bind = parse_bind(address)
        self._handler = handler
        self._tls = tls
        self._client_names = client_names
        self._limits = limits
        self._linger = linger
        self._clock = clock
        self._stopping = False
        self._shared = _Shared(limits)
        self.port: int | None = None  # set while listening; for port 0, the port that was chosen

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Serve until `stop` is set; then requests in progress have a few seconds to complete."""
        if self._bind is None:
            ready()
            await stop.wait()
            return
        admits = only_names(self._client_names) if self._client_names else None
        connections = Connections(self._respond, self._limits, admits)
        async with self._listening(connections, *self._bind):
            ready()
            await stop.wait()
            self._stopping = True
            if self._linger:
                await self._clock.sleep(self._linger)

    @asynccontextmanager
    async def _listening(
        self, connections: Connections, host: str | None, port: int
    ) -> AsyncIterator[None]:
        """Accept connections for the duration of the block, then complete requests in progress."""
        if self._tls is None:
            with self._bind_errors():
                listener = await asyncio.get_running_loop().create_server(
                    connections, host, port, backlog=WAITING_TO_CONNECT
                )
            self.port = listener.sockets[0].getsockname()[1]
            try:
                yield
            finally:
                listener.close()
                await connections.finish(CLOSE_WITHIN)
            return
        async with AsyncExitStack() as stack:
            with self._bind_errors():
                sockets = await bound_sockets(host, port, stack)
            self.port = sockets[0].getsockname()[1]
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            accepting = tasks.create_task(TlsListener(connections, self._tls).run(sockets))
            try:
                yield
            finally:
                accepting.cancel()
                await asyncio.wait([accepting])
                for each in sockets:
                    each.close()
                await connections.finish(CLOSE_WITHIN)

    @contextmanager
    def _bind_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BindError(
                f"{self.name} cannot listen: {_in_words(self._address, error)}"
            ) from None

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        connection = request.protocol
        assert isinstance(connection, Connection)  # noqa: S101
        connection.request_begins()
        assert connection.client is not None  # noqa: S101
        CURRENT_CLIENT.set(connection.client.address)
        body = _Body(request, self._limits, self._shared, connection.client)
        try:
            response = await self._handler(
                HttpRequest(
                    request.method,
                    request.path,
                    list(request.query.items()),
                    request.headers,
                    body.read,
                )
            )
            is_over = await body.is_over()
            return _response(response, is_last=self._stopping or not is_over)
        finally:
            body.forget()


async def bound_sockets(
    host: str | None, port: int, stack: AsyncExitStack
) -> Sequence[socket.socket]:
    """Return sockets that listen on all addresses of the host; the stack closes them."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.settimeout(0)
            listener.bind(address)
        except OSError as error:
            if error.errno not in NO_SUCH_FAMILY:
                raise
            failure = error  # a host without IPv6 may still resolve IPv6 addresses
        else:
            listener.listen(WAITING_TO_CONNECT)
            sockets.append(listener)
    if not sockets and failure is not None:
        raise failure
    return sockets


class _Shared:
    """State shared by the requests of all clients: memory for bodies, and the queue."""

    def __init__(self, limits: Limits) -> None:
        self.held = 0  # bytes of the larger bodies of all requests in progress
        self.queue = FairQueue(limits.requests, limits.requests_per_client, limits.connections)


class _Body:
    """The body of one request; holds memory and a queue slot until `forget` is called."""

    def __init__(
        self, request: web.BaseRequest, limits: Limits, shared: _Shared, client: Client
    ) -> None:
        self._request = request
        self._limits = limits
        self._shared = shared
        self._client = client
        self._size = 0
        self._counted = 0
        self._is_large = False
        self._has_started = False

    async def read(self) -> bytes:
        """Return the whole body when it is this client's turn; raise BodyError."""
        if (self._request.content_length or 0) > self._limits.body:
            raise self._too_large()
        content = await self._in_time()
        await self._start()
        return content

    async def _in_time(self) -> bytes:
        await self._send_continue()
        deadline = asyncio.timeout(self._limits.body_within)
        try:
            # Most small bodies arrive together with the headers and need no timer.
            if self._request.content.is_eof():
                return await self._read()
            async with deadline:
                return await self._read()
        except INCOMPLETE:
            if deadline.expired():
                raise BodyError(408, "The body was not received in time.") from None
            raise BodyError(400, "The body is incomplete.") from None

    async def _read(self) -> bytes:
        if (self._request.content_length or 0) > self._limits.small_body:
            await self._acquire_large()
        chunks = []
        while chunk := await self._request.content.readany():
            chunks.append(chunk)
            self._size += len(chunk)
            if self._size > self._limits.body:
                raise self._too_large()
            if self._size > self._limits.small_body:
                await self._acquire_large()
                self._count()
        return b"".join(chunks)

    async def _acquire_large(self) -> None:
        """Wait until this client has few enough large bodies in progress."""
        if not self._is_large:
            await self._client.large_bodies.acquire()
            self._is_large = True

    def _count(self) -> None:
        self._shared.held += self._size - self._counted
        self._counted = self._size
        if self._shared.held > self._limits.bodies:
            raise BodyError(429, "Too many large bodies at a time: try again.")

    async def _start(self) -> None:
        """Wait for this client's turn."""
        try:
            async with asyncio.timeout(self._limits.start_within):
                await self._shared.queue.acquire(self._client.address)
        except (TimeoutError, QueueFullError):
            raise BodyError(429, "Too many requests at a time: try again.") from None
        self._has_started = True

    async def _send_continue(self) -> None:
        """Send `100 Continue` if the client waits for it before it sends the body."""
        request = self._request
        if (
            request.headers.get("Expect", "").lower() == "100-continue"
            and request.version >= HttpVersion11
            and not request.content.is_eof()
        ):
            with suppress(ConnectionError):  # reported by the following read
                await request.writer.write(CONTINUE)
            request.writer.output_size = 0  # nothing of the response itself has been sent

    def _too_large(self) -> BodyError:
        return BodyError(413, f"The body is larger than {self._limits.body} bytes.")

    async def is_over(self) -> bool:
        """Return whether the body was received completely; wait briefly for an unread remainder.

        A client that is still sending when the connection is closed may not receive the response.
        """
        content = self._request.content
        if content.is_eof():
            return True
        try:
            async with asyncio.timeout(self._limits.drain_within):
                while not content.is_eof():
                    async with asyncio.timeout(self._limits.drain_quiet):
                        await content.readany()
        except INCOMPLETE:
            return False
        return True

    def forget(self) -> None:
        self._shared.held -= self._counted
        if self._is_large:
            self._client.large_bodies.release()
        if self._has_started:
            self._shared.queue.release(self._client.address)


def _response(response: HttpResponse, *, is_last: bool) -> web.Response:
    body = response.body.encode() if isinstance(response.body, str) else response.body
    headers = {
        "Content-Type": response.content_type,
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    encoded = web.Response(status=response.status, body=body, headers=headers)
    if is_last:
        encoded.force_close()
    return encoded


def _in_words(address: str, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"another program listens on {address}"
        case errno.EACCES:
            return f"listening on {address} is not permitted; ports below 1024 are for root"
        case errno.EADDRNOTAVAIL:
            return f"this machine does not have the address {address}"
        case _:
            return f"{address}: {error.strerror or error}"
