"""The connections of a server: bounded in number, and in the time that a request may take to come.

With `webserver`, the only server-side module that knows the HTTP library.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

import structlog
from aiohttp import web

log = structlog.get_logger(__name__)

SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Limits:
    """What callers may ask of a server."""

    body: int = 7 * 1024 * 1024  # as controller-runtime; two objects of the largest size fit in
    bodies: int = 64 * 1024 * 1024  # of all requests together that are under way
    headers_within: float = 10.0
    body_within: float = 10.0
    connections: int = 1000
    # Longer than callers keep a connection that is idle (the API server 90 s, Prometheus 300 s):
    # if we closed it first, a request that is on its way at that moment would fail.
    idle_within: float = 330.0
    drain_within: float = 2.0  # a body that nobody wants to read


class Connections:
    """The connections of one server; called for each new one."""

    def __init__(
        self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], limits: Limits
    ) -> None:
        self.limits = limits
        self._open = 0
        self._full = False
        self._server = web.Server(answer)
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> "Connection":
        return Connection(self, self._server, self._loop)

    def opened(self) -> bool:
        """There is one more; says whether there may be."""
        self._open += 1
        if self._open <= self.limits.connections:
            return True
        if not self._full:  # say it once: whoever opens so many would fill the logs, too
            self._full = True
            log.warning("connections.too_many", most=self.limits.connections)
        return False

    def closed(self) -> None:
        """There is one less."""
        self._open -= 1
        if self._open <= self.limits.connections // 2:
            self._full = False

    async def finish(self, within: float) -> None:
        """Close those that are idle, and the others when their requests are answered."""
        await asyncio.sleep(0)  # what has come by now is a request under way
        self._server.pre_shutdown()
        await self._server.shutdown(within)


class Connection(web.RequestHandler):
    """A connection that is cut off when the headers of a request take too long.

    The library limits how large they are and how long a connection may be idle, but would wait for
    the end of headers that have begun for as long as somebody sends a byte now and then.
    """

    __slots__ = ("_all", "_answering", "_cut_off", "_wire")

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
        self._all = everyone
        self._answering = False
        self._cut_off: asyncio.TimerHandle | None = None
        self._wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request, unless there are too many who do."""
        super().connection_made(transport)
        # What uvloop hands over is one by what it does, not by its type.
        self._wire = cast("asyncio.Transport", transport)
        if self._all.opened():
            self._expect_headers()
        else:
            self._wire.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._stop_expecting()
        if self._wire is not None:
            self._wire = None
            self._all.closed()

    def data_received(self, data: bytes) -> None:
        """The first bytes after a request are the headers of the next one."""
        if data and not self._answering:
            self._expect_headers()
        super().data_received(data)

    def request_begins(self) -> None:
        """The headers are complete."""
        self._answering = True
        self._stop_expecting()

    def request_ends(self) -> None:
        """It is answered, or nearly so; the connection may be idle now."""
        self._answering = False

    def _expect_headers(self) -> None:
        if self._cut_off is None:
            loop = asyncio.get_running_loop()
            self._cut_off = loop.call_later(self._all.limits.headers_within, self._too_late)

    def _stop_expecting(self) -> None:
        if self._cut_off is not None:
            self._cut_off.cancel()
            self._cut_off = None

    def _too_late(self) -> None:
        self._cut_off = None
        if self._wire is not None:
            log.debug("connection.cut_off", peer=self._wire.get_extra_info("peername"))
            self._wire.abort()  # whoever sends so slowly may never read either

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
