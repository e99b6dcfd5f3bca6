"""A transport with strict field validation, and a check for lost fields."""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.kube.client.transport import NOTHING, HttpTransport, Response
from kftrainer.kube.warning_log import warnings_in


class StrictTransport(HttpTransport):
    """Requests strict field validation and records warnings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warnings: list[str] = []

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] = NOTHING, **rest: Any
    ) -> Response:
        strict = query if method == "GET" else {**query, "fieldValidation": "Strict"}
        response = await super().request(method, path, query=strict, **rest)
        self.warnings += warnings_in(response.headers.get("Warning", ""))
        return response


def dropped_fields(sent: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Return paths whose stored value differs; the server may add fields, not items."""
    match sent, kept:
        case Mapping(), Mapping():
            for key, value in sent.items():
                yield from dropped_fields(value, kept.get(key), f"{path}.{key}")
        case list(), list() if len(sent) == len(kept):
            for index, pair in enumerate(zip(sent, kept, strict=True)):
                yield from dropped_fields(*pair, f"{path}[{index}]")
        case _ if type(sent) is not type(kept) or sent != kept:
            yield f"{path}: {sent!r} became {kept!r}"
