"""HTTP transport to the API server; hides the HTTP library from other modules."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol, Self

import aiohttp
from yarl import URL

from kftrainer.kube.client import exchange, retry
from kftrainer.kube.client.credentials import Connection
from kftrainer.kube.client.errors import TransportError, error_from_response
from kftrainer.kube.client.sessions import Sessions
from kftrainer.kube.client.write_guard import WriteGuard, check, guarded_by
from kftrainer.kube.clock import LOOP_CLOCK, Clock

Lane = Literal["general", "watch", "lease"]
NOTHING: Mapping[str, str] = MappingProxyType({})
REQUEST_TIMEOUT = 60.0
CONNECT_TIMEOUT = 10.0
UNAUTHORIZED = 401
JSON = "application/json"
FIRST_FAILURE = 300  # the API server does not redirect, and a token must not follow a redirect


@dataclass(frozen=True, slots=True)
class Response:
    """A response of any status; header names are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """Sends requests; tests replace it with a fake."""

    async def request(  # noqa: PLR0913  the parts of an HTTP request
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] = NOTHING,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109  covers all attempts
        lane: Lane = "general",
        write_guard: WriteGuard | None = None,
    ) -> Response:
        """Return the response, of any status; raise TransportError if there is none in time."""
        ...

    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        accept: str = JSON,
        timeout: float,
        lane: Lane = "watch",
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream the body of a GET; entering raises ApiError for an error response."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


# code, method, host and seconds; the code is "<error>" without a response, as in client-go.
OnResponse = Callable[[str, str, str, float], None]
NO_RESPONSE = "<error>"


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes | None
    content_type: str
    accept: str
    lane: Lane
    write_guard: WriteGuard | None = None

    @property
    def what(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(slots=True)
class _Outcome:
    code: str = NO_RESPONSE


class HttpTransport:
    """Sends requests with aiohttp; connections are opened on first use.

    Requests are repeated if the response has the header `Retry-After`, unless
    `honors_retry_after` is False: then callers get that response.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str,
        on_response: OnResponse | None = None,
        clock: Clock = LOOP_CLOCK,
        honors_retry_after: bool = True,
    ) -> None:
        self._connection = connection
        self._credentials = connection.credentials
        self._on_response = on_response
        self._clock = clock
        self._honors_retry_after = honors_retry_after
        self._host = URL(connection.host).authority
        self._sessions = Sessions(user_agent)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; requests in progress fail."""
        await self._sessions.close()

    async def request(  # noqa: PLR0913  the parts of an HTTP request
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] = NOTHING,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109  covers all attempts
        lane: Lane = "general",
        write_guard: WriteGuard | None = None,
    ) -> Response:
        """Return the response, of any status; the timeout covers all attempts."""
        request = _Request(method, path, query, body, content_type, accept, lane, write_guard)
        deadline = self._clock.monotonic() + timeout
        retries = retry.Retries()
        while True:
            try:
                response = await self._attempt(request, deadline)
            except TransportError as error:
                again = retry.after_failure(method, error, retries, self._until(deadline))
                if again is None:
                    raise
            else:
                if not self._honors_retry_after:
                    return response
                left = self._until(deadline)
                again = retry.after_response(response.status, response.headers, retries, left)
                if again is None:
                    return response
            retries = again.retries
            await self._clock.sleep(again.pause)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        accept: str = JSON,
        timeout: float,  # noqa: ASYNC109  also covers reading the body
        lane: Lane = "watch",
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream the body of a GET; opening is not retried because callers back off themselves."""
        request = _Request("GET", path, query, None, "", accept, lane)
        response = await self._open(request, self._clock.monotonic() + timeout)
        try:
            if response.status >= FIRST_FAILURE:
                with exchange.translated(request.what):
                    raise error_from_response(
                        response.status, response.headers, await response.read()
                    )
            yield exchange.Chunks(request.what, response)
        finally:
            exchange.abort(response)

    async def _attempt(self, request: _Request, deadline: float) -> Response:
        """Send the request; send it once more after a 401 if a new token was found."""
        authorization = await self._credentials.authorization()
        response = await self._send(request, authorization, deadline)
        if response.status == UNAUTHORIZED and await self._credentials.renew(authorization):
            authorization = await self._credentials.authorization()
            return await self._send(request, authorization, deadline)
        return response

    async def _open(self, request: _Request, deadline: float) -> aiohttp.ClientResponse:
        authorization = await self._credentials.authorization()
        response = await self._begin(request, authorization, deadline)
        if response.status == UNAUTHORIZED and await self._credentials.renew(authorization):
            exchange.abort(response)
            authorization = await self._credentials.authorization()
            return await self._begin(request, authorization, deadline)
        return response

    async def _send(
        self, request: _Request, authorization: str | None, deadline: float
    ) -> Response:
        check(request.write_guard, request.what)
        with self._exchange(request) as outcome:
            with guarded_by(request.write_guard):
                response = await self._fetch(request, authorization, deadline)
            try:
                body = await response.read()
            finally:
                exchange.abort(response)
            outcome.code = str(response.status)
        return Response(response.status, exchange.folded(response.headers), body)

    async def _begin(
        self, request: _Request, authorization: str | None, deadline: float
    ) -> aiohttp.ClientResponse:
        with self._exchange(request) as outcome:
            response = await self._fetch(request, authorization, deadline)
            outcome.code = str(response.status)
        return response

    async def _fetch(
        self, request: _Request, authorization: str | None, deadline: float
    ) -> aiohttp.ClientResponse:
        left = self._until(deadline)
        if left <= 0:  # the time is up before sending; aiohttp treats 0 as no timeout
            raise TimeoutError
        headers = {"Accept": request.accept}
        if authorization is not None:
            headers["Authorization"] = authorization
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        tls = await self._connection.tls_of_new_connections()
        return await self._sessions.of(request.lane).request(
            request.method,
            URL(self._connection.host + request.path),
            params=request.query,
            data=exchange.payload(request.body),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=left, sock_connect=CONNECT_TIMEOUT),
            allow_redirects=False,
            proxy=self._connection.proxy,
            server_hostname=self._connection.server_name,
            ssl=tls if tls is not None else True,
        )

    @contextmanager
    def _exchange(self, request: _Request) -> Iterator[_Outcome]:
        """Translate errors, and report status code and duration to `on_response`."""
        began = self._clock.monotonic()
        outcome = _Outcome()
        try:
            with exchange.translated(request.what):
                yield outcome
        finally:
            if self._on_response is not None:
                seconds = self._clock.monotonic() - began
                self._on_response(outcome.code, request.method, self._host, seconds)

    def _until(self, deadline: float) -> float:
        return deadline - self._clock.monotonic()
