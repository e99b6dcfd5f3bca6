"""The wire to an API server that holds one Lease, with faults; for tests that rule over time."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson

from kftrainer.kube.client.transport import Lane, Response


class LeaseServer:
    """A Transport to a server with a single object and its resourceVersion."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.requests: list[str] = []
        self.before: Callable[[str], None] = lambda _method: None  # may raise
        self.after_write: Callable[[], None] = lambda: None  # may raise: the answer is lost

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, **_: object
    ) -> Response:
        """Answer at once."""
        self.requests.append(method)
        self.before(method)
        sent = orjson.loads(body) if body else None
        if method == "GET":
            return _answer(404, None) if self.lease is None else _answer(200, self.lease)
        if method == "POST" and self.lease is not None:
            return _answer(409, None)
        if method == "PUT" and _version(sent) != _version(self.lease):
            return _answer(409, None)
        self.write(sent)
        return _answer(200, self.lease)

    def write(self, lease: dict[str, Any]) -> None:
        """Put it there, with a new resourceVersion."""
        version = str(int(_version(self.lease) or 0) + 1)
        metadata = {**lease["metadata"], "resourceVersion": version}
        self.lease = {**lease, "metadata": metadata}
        self.after_write()

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of the lease."""
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec

    def stream(
        self, path: str, *, query: Mapping[str, str], timeout: float, lane: Lane = "watch"
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Leases are not watched."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""


def _version(lease: dict[str, Any] | None) -> str | None:
    return None if lease is None else lease["metadata"].get("resourceVersion")


def _answer(status: int, body: object) -> Response:
    return Response(status, {}, orjson.dumps(body))
