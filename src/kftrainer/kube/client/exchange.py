"""One aiohttp request and its response; translates the library's errors."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy

from kftrainer.kube.client.errors import RequestTimeoutError, TransportError
from kftrainer.kube.client.retry import ConnectionBrokenError

WRITTEN_AT_ONCE = 2**20  # bytes
BROKEN = (
    aiohttp.ClientOSError,
    aiohttp.ClientConnectionResetError,
    aiohttp.ClientPayloadError,
    aiohttp.ServerDisconnectedError,
    ConnectionResetError,
)


class Chunks:
    """The remaining body of a response, in chunks as received."""

    def __init__(self, what: str, response: aiohttp.ClientResponse) -> None:
        self._what = what
        self._response = response

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        with translated(self._what):
            chunk = await self._response.content.readany()
        if not chunk:
            raise StopAsyncIteration
        return chunk


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translate the HTTP library's errors into TransportErrors."""
    try:
        yield
    except TimeoutError as error:
        raise RequestTimeoutError(f"{what}: no response in time") from error
    except aiohttp.ClientConnectorError as error:  # no connection was established
        raise TransportError(f"{what}: {error}") from error
    except BROKEN as error:
        raise ConnectionBrokenError(f"{what}: the connection broke: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise TransportError(f"{what}: {error}") from error


def abort(response: aiohttp.ClientResponse) -> None:
    """Close the connection at once, unless the response was read completely."""
    # close() alone would start a TLS shutdown and wait for a server that may not respond.
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def payload(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return the body in a form suitable for the HTTP library."""
    # aiohttp warns about large bytes objects, which it writes at once; it writes files in chunks.
    return io.BytesIO(body) if body is not None and len(body) > WRITTEN_AT_ONCE else body


def folded(headers: CIMultiDictProxy[str]) -> Mapping[str, str]:
    """Return headers with one value per name; the API server repeats only Warning."""
    warnings = headers.getall("Warning", [])
    if len(warnings) <= 1:
        return headers
    one_each = CIMultiDict(headers)
    one_each["Warning"] = ", ".join(warnings)
    return one_each
