"""Decoding of JSON from the API server, which may be nested more deeply than decoders accept.

The API server accepts 10,000 levels in fields without a schema, for example in the data of a
ControllerRevision. A list page or a watch event with such an object must not prevent that the
others are read, so what is nested too deeply is replaced by null.

The result still has more levels than can be encoded: a changed object is never written back.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

DEEPEST: Final = 400  # orjson decodes 1024 levels and encodes 254
TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)


def decode_json(body: bytes) -> Any:
    """Decode JSON without the values below the deepest level; JSONDecodeError if it is invalid."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # The error has no type of its own for too many levels. Other invalid JSON fails again.
        return orjson.loads(b"".join(_shallow(body)))


def _shallow(body: bytes) -> Iterator[bytes]:
    """Yield the parts of the body, with null for what is nested too deeply."""
    depth, begun = 0, 0  # `begun` is the start of the part that is copied next
    for token in TOKEN.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                yield body[begun : token.start()]
                yield b"null"
        elif first in b"]}":
            if depth == DEEPEST + 1:
                begun = token.end()
            depth -= 1
    if depth <= DEEPEST:
        yield body[begun:]
