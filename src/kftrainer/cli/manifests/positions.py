"""In which line of a text each field of a document stands."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

Inner = Mapping[str, "Spot"] | Sequence["Spot"] | None
_STEP = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,\n]|[^\s"{}\[\]:,]+')


@dataclass(frozen=True, slots=True)
class Spot:
    """The line that something begins in, or its key does, and where what is in it stands."""

    line: int
    inner: Inner = None

    def below(self, step: str) -> "Spot | None":
        """Where a field, a key of a map or an item of a list stands, if it is there."""
        if isinstance(self.inner, Mapping):
            return self.inner.get(step)
        if self.inner is not None and step.isdecimal() and int(step) < len(self.inner):
            return self.inner[int(step)]
        return None

    def nearest(self, path: str) -> "Spot":
        """Where the field of this path stands, or the nearest around it that is there."""
        spot = self
        for step in _steps(path):
            found = spot.below(step)
            if found is None:
                break
            spot = found
        return spot


def _steps(path: str) -> Iterator[str]:
    for bracketed, word in _STEP.findall(path):
        yield word or bracketed


def spot_of_yaml(node: yaml.Node) -> Spot:
    """The spots of a document that was composed, and constructed: merge keys are resolved."""
    seen: dict[int, Inner] = {}  # what is referred to stands where its anchor is

    def inner(each: yaml.Node) -> Inner:
        if isinstance(each, yaml.ScalarNode):
            return None
        if id(each) not in seen:
            seen[id(each)] = _inner_of(each)
        return seen[id(each)]

    def _inner_of(each: yaml.Node) -> Inner:
        if isinstance(each, yaml.SequenceNode):
            return [Spot(_line(item), inner(item)) for item in each.value]
        return {key.value: Spot(_line(key), inner(value)) for key, value in each.value}

    return Spot(_line(node), inner(node))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def spot_of_json(text: str, start: int, line: int) -> Spot:
    """The spots of the JSON value that begins at `start`, in this line; it must be JSON."""
    words = _Words(text, start, line)
    return _spot(words, words.take(), line)


class _Words:
    """The words of a JSON text one by one, and the line of the last."""

    def __init__(self, text: str, start: int, line: int) -> None:
        self._found = _WORD.finditer(text, start)
        self.line = line

    def take(self) -> str:
        for found in self._found:
            if found[0] != "\n":
                return found[0]
            self.line += 1
        return ""


def _spot(words: _Words, first: str, line: int) -> Spot:
    """The spot of the value that begins with this word."""
    if first == "{":
        return Spot(line, dict(_fields(words)))
    if first == "[":
        return Spot(line, [*_items(words)])
    return Spot(line)


def _fields(words: _Words) -> Iterator[tuple[str, Spot]]:
    while (word := words.take()) not in ("}", ""):
        if word != ",":
            line, key = words.line, json.loads(word)
            words.take()  # the colon
            yield key, _spot(words, words.take(), line)


def _items(words: _Words) -> Iterator[Spot]:
    while (word := words.take()) not in ("]", ""):
        if word != ",":
            yield _spot(words, word, words.line)
