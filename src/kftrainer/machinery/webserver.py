"""HTTP servers as services; with `connection`, the only ones that know the HTTP library."""

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import HttpVersion11, web

from kftrainer.machinery.clock import Clock, SystemClock
from kftrainer.machinery.connection import Connection, Connections, Limits

PLAIN_TEXT = "text/plain; charset=utf-8"
OFF = ("", "0")
CLOSE_WITHIN = 5.0
SHAKE_HANDS_WITHIN = 5.0  # until then nothing counts or bounds a connection but this
WAITING_TO_CONNECT = 128
HIGHEST_PORT = 65535
DEFAULT_LIMITS = Limits()
SYSTEM_CLOCK = SystemClock()


class BindError(Exception):
    """A server cannot listen where it should; the text is for the operator."""


async def no_body() -> bytes:
    """The body of a request that has none."""
    return b""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as far as handlers look at it; the names of headers are in any case.

    The body is read when a handler wants it, and raises BodyError if it does not come as it should.
    """

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    read_body: Callable[[], Awaitable[bytes]] = no_body


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler answers; text is for people, so no browser should guess what it is."""

    status: int
    body: str | bytes
    content_type: str = PLAIN_TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Asked], Awaitable[Answer]]
NOT_FOUND = Answer(404, "404 page not found\n")
# What reading raises when the other side has gone, or has sent what is no HTTP. A timeout is an
# OSError, too; the library has a RuntimeError for those who had gone before anybody read.
BROKEN_OFF = (OSError, RuntimeError, web.RequestPayloadError)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodyError(Exception):
    """The body cannot be had; the caller should be given this answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.answer = Answer(status, f"{text}\n")


def parse_bind(address: str) -> tuple[str | None, int] | None:
    """Host and port of `host:port` or `:port`, where no host means all; None means off."""
    if address in OFF:
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise BindError(f"{address} is no address: write host:port or :port, or 0 for none.")
    if len(port) > len(str(HIGHEST_PORT)) or int(port) > HIGHEST_PORT:
        raise BindError(f"{address} is no address: the highest port is {HIGHEST_PORT}.")
    return host.strip("[]") or None, int(port)


class WebServer:
    """Answers requests at an address from the moment that it is ready; off, it merely waits."""

    def __init__(  # noqa: PLR0913  all that is said of a server
        self,
        name: str,
        address: str,
        handler: Handler,
        *,
        tls: ssl.SSLContext | None = None,
        limits: Limits = DEFAULT_LIMITS,
        linger: float = 0.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """With `linger`, it goes on for so many seconds after it was told to stop.

        Those who are sent here by others, as by the endpoints of a Service, learn of it late.
        """
        self.name = name
        self._address = address
        self._bind = parse_bind(address)
        self._handler = handler
        self._tls = tls
        self._limits = limits
        self._linger = linger
        self._clock = clock
        self._stopping = False
        self._memory = _Memory(limits.bodies)
        self.port: int | None = None  # once it listens; the one given, or one that was free for 0

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Serve until `stop` is set; requests under way are answered for a few seconds more."""
        if self._bind is None:
            ready()
            await stop.wait()
            return
        connections = Connections(self._answer, self._limits)
        listener = await self._listen(connections, *self._bind)
        try:
            ready()
            await stop.wait()
            self._stopping = True
            if self._linger:
                await self._clock.sleep(self._linger)
        finally:
            listener.close()
            await connections.finish(CLOSE_WITHIN)

    async def _listen(
        self, connections: Connections, host: str | None, port: int
    ) -> asyncio.Server:
        try:
            listener = await asyncio.get_running_loop().create_server(
                connections,
                host,
                port,
                ssl=self._tls,
                ssl_handshake_timeout=SHAKE_HANDS_WITHIN if self._tls else None,
                backlog=WAITING_TO_CONNECT,
            )
        except OSError as error:
            raise BindError(
                f"{self.name} cannot listen: {_in_words(self._address, error)}"
            ) from None
        self.port = listener.sockets[0].getsockname()[1]
        return listener

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        connection = request.protocol
        assert isinstance(connection, Connection)  # noqa: S101
        connection.request_begins()
        body = _Body(request, self._limits, self._memory)
        try:
            answer = await self._handler(
                Asked(
                    request.method,
                    request.path,
                    list(request.query.items()),
                    request.headers,
                    body.read,
                )
            )
            is_over = await body.is_over()
            return _response(answer, is_last=self._stopping or not is_over)
        finally:
            body.forget()


class _Memory:
    """How many bytes the larger bodies of all requests under way take, and may take."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0


class _Body:
    """The body of one request, which takes memory until it is forgotten."""

    def __init__(self, request: web.BaseRequest, limits: Limits, memory: _Memory) -> None:
        self._request = request
        self._limits = limits
        self._memory = memory
        self._size = 0
        self._counted = 0

    async def read(self) -> bytes:
        """All of it, once; raises BodyError."""
        if (self._request.content_length or 0) > self._limits.body:
            raise self._too_large()
        await self._ask_for_it()
        deadline = asyncio.timeout(self._limits.body_within)
        try:
            # Small ones have mostly come with their headers, and need no timer.
            if self._request.content.is_eof():
                return await self._read()
            async with deadline:
                return await self._read()
        except BROKEN_OFF:
            if deadline.expired():
                raise BodyError(408, "The body did not come in time.") from None
            raise BodyError(400, "The body broke off.") from None

    async def _read(self) -> bytes:
        chunks = []
        while chunk := await self._request.content.readany():
            chunks.append(chunk)
            self._size += len(chunk)
            if self._size > self._limits.body:
                raise self._too_large()
            if self._size > self._limits.small_body:
                self._count()
        return b"".join(chunks)

    def _count(self) -> None:
        self._memory.held += self._size - self._counted
        self._counted = self._size
        if self._memory.held > self._memory.most:
            raise BodyError(429, "Too many large bodies at a time: try again.")

    async def _ask_for_it(self) -> None:
        """Some send their headers, and the body only when they are told that it is wanted."""
        request = self._request
        if (
            request.headers.get("Expect", "").lower() == "100-continue"
            and request.version >= HttpVersion11
            and not request.content.is_eof()
        ):
            with suppress(ConnectionError):  # reading tells of it
                await request.writer.write(CONTINUE)
            request.writer.output_size = 0  # of the answer itself nothing has been sent

    def _too_large(self) -> BodyError:
        return BodyError(413, f"The body is larger than {self._limits.body} bytes.")

    async def is_over(self) -> bool:
        """Whether nothing of it is left to come; what nobody has read is waited for a little.

        Who is still sending when we close the connection may never see the answer.
        """
        content = self._request.content
        if content.is_eof():
            return True
        try:
            async with asyncio.timeout(self._limits.drain_within):
                while not content.is_eof():
                    async with asyncio.timeout(self._limits.drain_quiet):
                        await content.readany()
        except BROKEN_OFF:
            return False
        return True

    def forget(self) -> None:
        self._memory.held -= self._counted


def _response(answer: Answer, *, is_last: bool) -> web.Response:
    body = answer.body.encode() if isinstance(answer.body, str) else answer.body
    headers = {
        "Content-Type": answer.content_type,
        "X-Content-Type-Options": "nosniff",
        **answer.headers,
    }
    response = web.Response(status=answer.status, body=body, headers=headers)
    if is_last:
        response.force_close()
    return response


def _in_words(address: str, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"another program listens on {address}."
        case errno.EACCES:
            return f"listening on {address} is not permitted; ports below 1024 are for root."
        case errno.EADDRNOTAVAIL:
            return f"this machine does not have the address {address}."
        case _:
            return f"{address}: {error.strerror or error}."
