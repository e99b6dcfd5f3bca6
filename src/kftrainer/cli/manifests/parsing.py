"""Parses YAML and JSON into values, with the lines in which they begin."""

import json
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import yaml

from kftrainer.cli.manifests.positions import Spot, spot_of_json, spot_of_yaml
from kftrainer.kube.yaml_limits import check_expansion

MOST_VALUES = 2_000_000  # per document
DEEPEST = 100
SURROGATES = re.compile("[\ud800-\udfff]")  # lone surrogates
LARGEST = 2**63  # the API server's integers have 64 bits
LONGEST_SHOWN = 40  # characters of a value that messages repeat
_NOUNS = {"int": "an integer", "float": "a number", "timestamp": "a time"}  # by YAML tag


class MarkupError(Exception):
    """The text is neither valid YAML nor valid JSON; the message is one line."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(" ".join(message.split()))
        self.line = line


@dataclass(frozen=True, slots=True)
class Markup:
    """One document: its value, its line, and the lines of the items of a List."""

    value: Any
    line: int
    item_lines: tuple[int, ...] = ()
    spot: Spot | None = field(default=None, compare=False)  # if requested


def parse(text: str, *, only_json: bool = False, with_spots: bool = False) -> Iterator[Markup]:
    """Yield the documents, with positions of fields if requested; raise MarkupError."""
    if only_json or text.lstrip()[:1] in ("{", "["):
        try:
            yield from list(_parse_json(text, with_spots=with_spots))
        except MarkupError:
            if only_json:
                raise
        else:
            return
    yield from _parse_yaml(text, with_spots=with_spots)


def _parse_json(text: str, *, with_spots: bool) -> Iterator[Markup]:
    decoder = json.JSONDecoder(
        object_pairs_hook=_object, parse_int=_integer, parse_constant=_refuse_constant
    )
    end, line, counted = _skip_space(text, 0), 1, 0
    while end < len(text):
        line, counted, start = line + text.count("\n", counted, end), end, end
        try:
            value, end = decoder.raw_decode(text, end)
        except json.JSONDecodeError as error:
            said = error.msg.removesuffix(" at")  # our messages begin with the position
            raise MarkupError(f"it is not JSON: {said}", error.lineno) from None
        except RecursionError:
            raise MarkupError("it is nested too deeply", line) from None
        except MarkupError as error:
            raise MarkupError(str(error), line) from None
        plain = _plain(value, line)
        yield Markup(plain, line, spot=spot_of_json(text, start, line) if with_spots else None)
        end = _skip_space(text, end)


def _skip_space(text: str, start: int) -> int:
    found = re.compile(r"[ \t\r\n]*").match(text, start)
    return found.end() if found else start


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise MarkupError(f"key {key!r} is said twice")
        made[key] = value
    return made


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # Python limits the number of digits
        raise MarkupError(f"it is not JSON: {_unreadable(digits, 'int')}") from None


def _refuse_constant(word: str) -> None:
    raise MarkupError(f"it is not JSON: {word} is no value")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML loader that resolves scalars as kubectl does and rejects duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  as in the base class

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  the base class's signature
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # PyYAML trusts tags such as !!int
            said = _unreadable(node.value, node.tag.rpartition(":")[2])
            raise MarkupError(f"it is not YAML: {said}", node.start_mark.line + 1) from None

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  the base class's signature
        if not isinstance(node, yaml.MappingNode):
            raise MarkupError("it is not YAML: it must be an object", node.start_mark.line + 1)
        seen = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise MarkupError("a key must be a word", line)
            if key_node.value in seen:
                raise MarkupError(f"key {key_node.value!r} is said twice", line)
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


def _refuse_bytes(_loader: Any, node: yaml.Node) -> None:
    raise MarkupError("it has bytes in it, which JSON does not have", node.start_mark.line + 1)


_Loader.add_constructor("tag:yaml.org,2002:bool", _construct_bool)
_Loader.add_constructor("tag:yaml.org,2002:binary", _refuse_bytes)


def _parse_yaml(text: str, *, with_spots: bool) -> Iterator[Markup]:
    loader = None
    try:
        _refuse_depth(text)
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            line = node.start_mark.line + 1
            check_expansion(node)
            value = _plain(loader.construct_document(node), line)
            spot = spot_of_yaml(node) if with_spots else None
            yield Markup(value, line, tuple(_item_lines(node)), spot)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(each for each in (error.problem, error.context) if each)
        raise MarkupError(f"it is not YAML: {said}", mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        raise _unacceptable(error, text) from None
    finally:
        if loader is not None:
            loader.dispose()


def _unacceptable(error: yaml.reader.ReaderError, text: str) -> MarkupError:
    """Return the error for a character that YAML does not allow."""
    character = error.character if isinstance(error.character, str) else chr(error.character)
    line = text[: text.find(character)].count("\n") + 1
    return MarkupError(f"it is not YAML: {error.reason}: U+{ord(character):04X}", line)


def _unreadable(text: object, kind: str) -> str:
    shown = str(text)
    if len(shown) > LONGEST_SHOWN:
        shown = f"{shown[:LONGEST_SHOWN]}…"
    return f"'{shown}' cannot be read as {_NOUNS.get(kind, kind)}"


def _refuse_depth(text: str) -> None:
    """Check the nesting depth first: the C loader would crash the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise MarkupError("it is nested too deeply", event.start_mark.line + 1)


def _item_lines(node: yaml.Node) -> Iterator[int]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    for key, each in pairs:
        if key.value == "items" and isinstance(each, yaml.SequenceNode):
            for item in each.value:
                yield item.start_mark.line + 1


def _plain(value: Any, line: int) -> Any:
    """Return a copy without shared values; reject cycles and values that JSON does not have."""
    left = MOST_VALUES

    def copy(each: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > DEEPEST or left < 0:
            raise MarkupError("it is too large, or refers to itself", line)
        if isinstance(each, dict):
            return {copy(key, depth + 1): copy(inner, depth + 1) for key, inner in each.items()}
        if isinstance(each, list):
            return [copy(inner, depth + 1) for inner in each]
        if not _is_json(each):
            raise MarkupError(
                f"it has {str(each)[:LONGEST_SHOWN]!a} in it, which JSON does not have", line
            )
        return each

    return copy(value, 0)


def _is_json(value: object) -> bool:
    match value:
        case None | bool():
            return True
        case int():
            return abs(value) < LARGEST
        case float():
            return isfinite(value)
        case str():
            return value.isascii() or not SURROGATES.search(value)
        case _:
            return False
