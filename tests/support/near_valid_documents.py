"""Documents that differ from valid ones by a few random changes."""

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

Path = tuple[str | int, ...]

DEEP = 100_000
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    1.5,
    1e308,
    "",
    " ",
    "\x00",
    "\n",
    "-",
    "..",
    "auto",
    "1e99999",
    "9" * 400,
    "\U0001f980" * 50,
    "x" * 5000,
    "$(PATH)",
    "a/b/c",
    "tune",
    [],
    [None],
    [[]],
    ["x"],
    [{}],
    {},
    {"": ""},
    {"name": None},
    {"name": "node"},
    {"name": ["node"]},
    [{"name": "node"}, {"name": "node"}],
)


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where there is something in the document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in inner:
        if isinstance(child, dict | list):
            yield from paths(child, (*path, key))
        else:
            yield (*path, key)


def nested(levels: int) -> Any:
    """Lists and objects by turns, within each other."""
    value: Any = {}
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


class Mutations:
    """Generates them, reproducibly for a seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def document(self, original: dict[str, Any]) -> dict[str, Any]:
        """The document with one to four places of it changed."""
        document = {"it": deepcopy(original)}
        for _ in range(self._rng.choice((1, 1, 1, 2, 4))):
            places = list(paths(document))[1:]
            if not places:
                break
            *above, last = self._rng.choice(places)
            holder: Any = document
            for key in above:
                holder = holder[key]
            self._change(holder, last)
        changed: dict[str, Any] = document.get("it", original)
        return changed

    def _change(self, holder: Any, key: Any) -> None:
        match self._rng.randrange(8):
            case 0:
                del holder[key]
            case 1:
                holder[key] = nested(self._rng.choice((3, 40, 98, 150)))
            case 2 if isinstance(holder[key], list):
                holder[key] = holder[key] * self._rng.choice((2, 20))
            case 3 if isinstance(holder, dict):
                holder[self._rng.choice((f"{key}s", "spec", "metadata", ""))] = holder[key]
            case 4:
                holder[key] = [holder[key]]
            case _:
                holder[key] = deepcopy(self._rng.choice(ODD))

    def body(self, original: dict[str, Any]) -> bytes:
        """The bytes of the document, changed as a document or as bytes."""
        kind = self._rng.randrange(10)
        if kind < 6:
            return json.dumps(self.document(original)).encode()
        return self._broken(json.dumps(original).encode(), kind)

    def _broken(self, body: bytes, kind: int) -> bytes:
        rng = self._rng
        at = rng.randrange(len(body))
        match kind:
            case 6:
                return body[:at]
            case 7:
                return body[:at] + rng.randbytes(rng.randint(1, 4)) + body[at + 1 :]
            case 8:
                return body[:at] + rng.choice(MALFORMED_BYTES) + body[at:]
            case _:
                return rng.choice(MALFORMED_BODIES)


MALFORMED_BYTES = (
    *(b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x00", b'"', b"\\", b"\\ud800", b"}", b"[", b",", b"\n"),
    *(b"null", b"NaN", b"-", b"1e9999", b"/**/", b"9" * 500),
)
MALFORMED_BODIES = (
    *(
        b"",
        b"{}",
        b"[]",
        b"null",
        b"0",
        b'""',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b"\x1f\x8b",
    ),
    *(b"[" * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"request":' * DEEP, b" " * 100_000, b"x" * 9000),
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":' + b"[" * DEEP,
)
