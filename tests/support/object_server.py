"""An in-memory API server with a few objects, for tests with a fake clock."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson

from kftrainer.kube.client.transport import Response

Object = dict[str, Any]


def refusal(code: int, reason: str, message: str = "") -> Response:
    """An error in the format of the API server."""
    fields = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return Response(code, {}, orjson.dumps(fields))


class ObjectServer:
    """A Transport to a server that lists and deletes; tests respond to the rest.

    Objects are kept by the paths of their collections; one with finalizers stays when it is
    deleted. `answer` may answer any request before the server does.
    """

    def __init__(self, collections: Mapping[str, list[Object]]) -> None:
        self.collections = {path: [*objects] for path, objects in collections.items()}
        self.requests: list[str] = []
        self.bodies: list[Any] = []  # of writes
        self.answer: Callable[[str, str], Response | None] = lambda _method, _path: None

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, **_: object
    ) -> Response:
        """Return the response immediately."""
        self.requests.append(f"{method} {path}")
        if body:
            self.bodies.append(orjson.loads(body))
        if (answer := self.answer(method, path)) is not None:
            return answer
        return self._delete(path) if method == "DELETE" else self._list(path)

    def _list(self, path: str) -> Response:
        if path not in self.collections:
            return refusal(404, "NotFound", "the server could not find the requested resource")
        items = [{"metadata": each} for each in self.collections[path]]
        return _answer({"metadata": {"resourceVersion": "1"}, "items": items})

    def _delete(self, path: str) -> Response:
        where, _, name = path.rpartition("/")
        collection = next(
            kept
            for listed, kept in self.collections.items()
            if listed.rpartition("/")[2] == where.rpartition("/")[2]
        )
        for each in [each for each in collection if each["name"] == name]:
            if each.get("finalizers"):
                each["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            else:
                collection.remove(each)
            return _answer({})
        return refusal(404, "NotFound", f"{name} not found")

    def stream(self, path: str, **_: object) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Watches are not supported."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""


def _answer(body: object) -> Response:
    return Response(200, {}, orjson.dumps(body))
