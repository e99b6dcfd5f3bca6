"""HTTP servers as services: the only server-side module that knows the HTTP library."""

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web

PLAIN_TEXT = "text/plain; charset=utf-8"
OFF = ("", "0")
CLOSE_WITHIN = 5.0


class BindError(Exception):
    """A server cannot listen where it should; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as far as handlers look at it; the names of headers are in any case."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler answers; text is for people, so no browser should guess what it is."""

    status: int
    body: str | bytes
    content_type: str = PLAIN_TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Asked], Awaitable[Answer]]
NOT_FOUND = Answer(404, "404 page not found\n")


def parse_bind(address: str) -> tuple[str | None, int] | None:
    """Host and port of `host:port` or `:port`, where no host means all; None means off."""
    if address in OFF:
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise BindError(f"{address} is no address: write host:port or :port, or 0 for none.")
    return host.strip("[]") or None, int(port)


class WebServer:
    """Answers requests at an address from the moment that it is ready; off, it merely waits."""

    def __init__(
        self, name: str, address: str, handler: Handler, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.name = name
        self._address = address
        self._bind = parse_bind(address)
        self._handler = handler
        self._tls = tls
        self.port: int | None = None  # once it listens; the one given, or one that was free for 0

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Serve until `stop` is set; requests under way are answered for a few seconds more."""
        if self._bind is None:
            ready()
            await stop.wait()
            return
        server = web.Server(self._answer, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=CLOSE_WITHIN)
        await runner.setup()
        try:
            await self._listen(runner, *self._bind)
            ready()
            await stop.wait()
        finally:
            await runner.cleanup()

    async def _listen(self, runner: web.ServerRunner, host: str | None, port: int) -> None:
        site = web.TCPSite(runner, host, port, ssl_context=self._tls)
        try:
            await site.start()
        except OSError as error:
            raise BindError(
                f"{self.name} cannot listen: {_in_words(self._address, error)}"
            ) from None
        self.port = runner.addresses[0][1]

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        asked = Asked(request.method, request.path, list(request.query.items()), request.headers)
        answer = await self._handler(asked)
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        headers = {
            "Content-Type": answer.content_type,
            "X-Content-Type-Options": "nosniff",
            **answer.headers,
        }
        return web.Response(status=answer.status, body=body, headers=headers)


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
