"""One request and its answer, as the HTTP library has them; its errors go no further than here."""

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
    """The rest of an answer's body, in the pieces in which it comes."""

    def __init__(self, what: str, answer: aiohttp.ClientResponse) -> None:
        self._what = what
        self._answer = answer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        with translated(self._what):
            chunk = await self._answer.content.readany()
        if not chunk:
            raise StopAsyncIteration
        return chunk


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Say in our words what went wrong with this request."""
    try:
        yield
    except TimeoutError as error:
        raise RequestTimeoutError(f"{what}: no answer in time") from error
    except aiohttp.ClientConnectorError as error:  # there was no connection that could break
        raise TransportError(f"{what}: {error}") from error
    except BROKEN as error:
        raise ConnectionBrokenError(f"{what}: the connection broke: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise TransportError(f"{what}: {error}") from error


def hang_up(answer: aiohttp.ClientResponse) -> None:
    """End the connection at once, unless the answer was read to its end and it can be kept."""
    # Closing it is no end: TLS would say goodbye, and wait for a server that may never answer.
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


def payload(body: bytes | None) -> bytes | io.BytesIO | None:
    """The body as the HTTP library likes it."""
    # It warns of large bytes, which are written at once; a file is written in pieces.
    return io.BytesIO(body) if body is not None and len(body) > WRITTEN_AT_ONCE else body


def folded(headers: CIMultiDictProxy[str]) -> Mapping[str, str]:
    """Headers with one value to a name; the only one that the API server repeats is Warning."""
    warnings = headers.getall("Warning", [])
    if len(warnings) <= 1:
        return headers
    one_each = CIMultiDict(headers)
    one_each["Warning"] = ", ".join(warnings)
    return one_each
