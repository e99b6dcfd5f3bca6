"""Finds the line of each field of a document."""

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
    """The line in which a value or its key begins, and the positions of its children."""

    line: int
    inner: Inner = None

    def below(self, step: str) -> "Spot | None":
        """Return the position of a field, a map key or a list item, or None."""
        if isinstance(self.inner, Mapping):
            return self.inner.get(step)
        if self.inner is not None and step.isdecimal() and int(step) < len(self.inner):
            return self.inner[int(step)]
        return None

    def nearest(self, path: str) -> "Spot":
        """Return the position of the field at this path, or of its nearest existing parent."""
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
    """Return the positions of a YAML document; its merge keys must be resolved."""
    seen: dict[int, Inner] = {}  # an alias has the position of its anchor

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
    """Return the positions of the valid JSON value that begins at `start` in this line."""
    words = _Words(text, start, line)
    return _spot(words, words.take(), line)


class _Words:
    """Tokenizer for JSON that tracks the current line."""

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
    """Return the position of the value that begins with this token."""
    if first == "{":
        return Spot(line, dict(_fields(words)))
    if first == "[":
        return Spot(line, [*_items(words)])
    return Spot(line)


def _fields(words: _Words) -> Iterator[tuple[str, Spot]]:
    while (word := words.take()) not in ("}", ""):
        if word != ",":
            line, key = words.line, json.loads(word)
            words.take()  # skip the colon
            yield key, _spot(words, words.take(), line)


def _items(words: _Words) -> Iterator[Spot]:
    while (word := words.take()) not in ("]", ""):
        if word != ",":
            yield _spot(words, word, words.line)
