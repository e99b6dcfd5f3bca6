"""Parses YAML and JSON strictly, with the line of each field.

Scalars are resolved as kubectl resolves them. Duplicate keys and values that JSON cannot represent
are errors. JSON has a parser of its own, because YAML parsers reject some valid JSON: surrogate
pairs in escapes, DEL, long keys, and a line break before the colon.
"""

import json
import json.decoder
import json.scanner
import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import yaml

from kftrainer.kube.positions import Position, line_of, positions_in
from kftrainer.kube.yaml_limits import check_expansion

MAX_VALUES = 2_000_000  # per document
MAX_DEPTH = 100
SURROGATES = re.compile("[\ud800-\udfff]")  # lone surrogates
INTEGER_LIMIT = 2**63  # the API server's integers have 64 bits
MAX_SHOWN = 40  # characters of a value that messages repeat
TOO_DEEP = "nested too deeply"
NOT_YAML = "not valid YAML"
NOT_JSON = "not valid JSON"
_NOUNS = {"int": "an integer", "float": "a number", "timestamp": "a time"}  # by YAML tag
_SPACE = re.compile(r"[ \t\r\n]*")

_Scan = Callable[[str, int], tuple[Any, int]]


class ParseError(Exception):
    """The text is neither valid YAML nor valid JSON; the message is one line."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(" ".join(message.split()))
        self.line = line


@dataclass(frozen=True, slots=True)
class Parsed:
    """The value of one document and the positions of its fields."""

    value: Any
    position: Position = field(compare=False)

    @property
    def line(self) -> int:
        """The line in which the document begins."""
        return self.position.line


def parse(text: str, *, only_json: bool = False) -> Iterator[Parsed]:
    """Yield the documents; raise ParseError."""
    if only_json or text.lstrip()[:1] in ("{", "["):
        try:
            yield from list(_parse_json(text))
        except ParseError:
            if only_json:
                raise
        else:
            return
    yield from _parse_yaml(text)


# ---- JSON


@dataclass(frozen=True, slots=True)
class _Located:
    """A JSON value and its offset in the text."""

    value: Any
    offset: int


class _Decoder(json.JSONDecoder):
    """The decoder of the standard library, with the offset of each value in the text."""

    def __init__(self) -> None:
        super().__init__(
            object_pairs_hook=_object, parse_int=_integer, parse_constant=_reject_constant
        )
        self.parse_object = _parse_object
        self.parse_array = _parse_array
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _parse_object(start: tuple[str, int], strict: bool, scan: _Scan, *hooks: Any) -> Any:  # noqa: FBT001  the decoder's signature
    return json.decoder.JSONObject(start, strict, _locating(scan), *hooks)  # type: ignore[attr-defined]


def _parse_array(start: tuple[str, int], scan: _Scan, *hooks: Any) -> Any:
    return json.decoder.JSONArray(start, _locating(scan), *hooks)  # type: ignore[attr-defined]


def _locating(scan: _Scan) -> _Scan:
    def scan_located(text: str, offset: int) -> tuple[_Located, int]:
        value, end = scan(text, offset)
        return _Located(value, offset), end

    return scan_located


def _parse_json(text: str) -> Iterator[Parsed]:
    decoder = _Decoder()
    breaks = [found.start() for found in re.finditer("\n", text)]
    end = _skip_space(text, 0)
    while end < len(text):
        start, line = end, bisect_right(breaks, end) + 1
        try:
            value, end = decoder.raw_decode(text, start)
            position = _position(_Located(value, start), line, text, breaks)
            parsed = Parsed(_plain(_values(value), position), position)
        except json.JSONDecodeError as error:
            reason = error.msg.removesuffix(" at")  # our messages begin with the position
            raise ParseError(f"{NOT_JSON}: {reason}", error.lineno) from None
        except RecursionError:
            raise ParseError(TOO_DEEP, line) from None
        except ParseError as error:
            raise ParseError(str(error), error.line or line) from None
        yield parsed
        end = _skip_space(text, end)


def _skip_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return found.end() if found else start


def _values(value: Any) -> Any:
    """Return the value without the offsets in it."""
    if isinstance(value, dict):
        return {key: _values(each.value) for key, each in value.items()}
    return [_values(each.value) for each in value] if isinstance(value, list) else value


def _position(located: _Located, line: int, text: str, breaks: list[int]) -> Position:
    def below(each: _Located, offset: int) -> Position:
        return _position(each, bisect_right(breaks, offset) + 1, text, breaks)

    match located.value:
        case dict() as fields:
            # Only space and a colon are between a value and the quote that ends its key.
            return Position(
                line,
                {
                    key: below(each, text.rindex('"', 0, each.offset))
                    for key, each in fields.items()
                },
            )
        case list() as items:
            return Position(line, [below(each, each.offset) for each in items])
        case _:
            return Position(line)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ParseError(_duplicate(key))
        result[key] = value
    return result


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # Python limits the number of digits
        raise ParseError(f"{NOT_JSON}: {_unreadable(digits, 'int')}") from None


def _reject_constant(word: str) -> None:
    raise ParseError(f"{NOT_JSON}: {word} is not a JSON value")


# ---- YAML


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML loader that resolves scalars as kubectl does and rejects duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  as in the base class

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  the base class's signature
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # PyYAML trusts tags such as !!int
            reason = _unreadable(node.value, node.tag.rpartition(":")[2])
            raise ParseError(f"{NOT_YAML}: {reason}", line_of(node)) from None

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  the base class's signature
        if not isinstance(node, yaml.MappingNode):
            raise ParseError(f"{NOT_YAML}: must be an object", line_of(node))
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ParseError(f"{NOT_YAML}: a key must be a string", line_of(key_node))
            if key_node.value in seen:
                raise ParseError(_duplicate(key_node.value), line_of(key_node))
            seen.add(key_node.value)
        self.flatten_mapping(node)
        # Keys in JSON are strings, whatever they would be as YAML values.
        return {key.value: self.construct_object(each, deep) for key, each in node.value}


# As in the YAML library of Kubernetes; PyYAML's own read 1:30 as 90, and 1e3 as a string.
for _tag, _pattern, _first in (
    (
        "bool",
        r"y|Y|yes|Yes|YES|true|True|TRUE|on|On|ON|n|N|no|No|NO|false|False|FALSE|off|Off|OFF",
        "yYtToOnNfF",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (
        "int",
        r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[1-9][0-9_]*|0)",
        "-+0123456789",
    ),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)"
        r"|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first)
    )


def _construct_bool(loader: Any, node: yaml.ScalarNode) -> bool:
    return str(loader.construct_scalar(node)).lower() in ("y", "yes", "true", "on")


def _reject_bytes(_loader: Any, node: yaml.Node) -> None:
    raise ParseError(_not_in_json("!!binary"), line_of(node))


_Loader.add_constructor("tag:yaml.org,2002:bool", _construct_bool)
_Loader.add_constructor("tag:yaml.org,2002:binary", _reject_bytes)


def _parse_yaml(text: str) -> Iterator[Parsed]:
    loader = None
    try:
        _check_depth(text)
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            check_expansion(node)
            value, position = loader.construct_document(node), positions_in(node)
            yield Parsed(_plain(value, position), position)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(each for each in (error.problem, error.context) if each)
        raise ParseError(f"{NOT_YAML}: {reason}", mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        raise _unacceptable(error, text) from None
    finally:
        if loader is not None:
            loader.dispose()


def _unacceptable(error: yaml.reader.ReaderError, text: str) -> ParseError:
    """Return the error for a character that YAML does not allow."""
    character = error.character if isinstance(error.character, str) else chr(error.character)
    line = text[: text.find(character)].count("\n") + 1
    return ParseError(f"{NOT_YAML}: {error.reason}: U+{ord(character):04X}", line)


def _check_depth(text: str) -> None:
    """Check the nesting depth first: the C loader would crash the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ParseError(TOO_DEEP, event.start_mark.line + 1)


# ---- both


def _plain(value: Any, position: Position) -> Any:
    """Return a copy without shared values; reject cycles and values that JSON does not have."""
    left = MAX_VALUES

    def copy(each: Any, depth: int, at: Position) -> Any:
        nonlocal left
        left -= 1
        if depth > MAX_DEPTH:
            raise ParseError(TOO_DEEP, at.line)
        if left < 0:
            raise ParseError(f"too large: more than {MAX_VALUES} values", at.line)
        if isinstance(each, dict):
            return {
                copy(key, depth + 1, at): copy(inner, depth + 1, at.child(str(key)) or at)
                for key, inner in each.items()
            }
        if isinstance(each, list):
            return [
                copy(inner, depth + 1, at.child(str(index)) or at)
                for index, inner in enumerate(each)
            ]
        if isinstance(each, int) and abs(each) >= INTEGER_LIMIT:
            raise ParseError(f"contains {_shortened(each)}, which exceeds 64 bits", at.line)
        if not _is_json(each):
            raise ParseError(_not_in_json(f"{str(each)[:MAX_SHOWN]!a}"), at.line)
        return each

    return copy(value, 0, position)


def _is_json(value: object) -> bool:
    match value:
        case None | bool() | int():
            return True
        case float():
            return isfinite(value)
        case str():
            return value.isascii() or not SURROGATES.search(value)
        case _:
            return False


def _not_in_json(shown: str) -> str:
    return f"contains {shown}, which JSON cannot represent"


def _duplicate(key: str) -> str:
    return f"duplicate key {key!r}"


def _unreadable(text: object, kind: str) -> str:
    return f"'{_shortened(text)}' is not {_NOUNS.get(kind, f'a valid {kind}')}"


def _shortened(value: object) -> str:
    shown = str(value)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
