"""Removal of field values from error messages of other components. Pure.

The API server and most webhooks format a field error as `path: Type: value: detail`. A value that
is an object or a list is printed in full, including literal environment values of a pod template.
Path, type and detail are kept; short scalars are kept as well.
"""

import re
from bisect import bisect_left
from itertools import accumulate

OMITTED = "(omitted)"
LONGEST_SCALAR = 120  # characters, as in the field errors of our own webhook

# `got` is part of the type errors of server-side apply: "expected string, got &value...{...}".
_COMPOSITE = r"[&*]?(?:[A-Za-z_][\w.]*)?[\[{(]"
_MARKER = re.compile(
    rf"(?:Invalid|Duplicate|Unsupported) value: |Not found: |Too many: |\bgot (?={_COMPOSITE})"
)
_STARTS_COMPOSITE = re.compile(_COMPOSITE)
_END_OF_SCALAR = re.compile(r": |, |\]|$")
# Decoders quote the text around the byte that they could not read.
_CONTEXT_START, _CONTEXT_END = "...|", "|..."
_BRACKETS = re.compile(r"[\[\](){}]")
_BRACKET_OR_QUOTE = re.compile(r"[\[\](){}\"]")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)', re.DOTALL)
_DEPTHS = {**dict.fromkeys("[{(", 1), **dict.fromkeys("]})", -1)}


def redacted(message: str) -> str:
    """Return the message without composite or long values, in linear time."""
    if _MARKER.search(message) is None:
        return _without_context(message)
    brackets = _Brackets(message)
    parts: list[str] = []
    position = depth = 0
    while (marker := _MARKER.search(message, position)) is not None:
        start = marker.end()
        depth = max(0, depth + brackets.balance(position, start))
        end = _end_of_value(message, start, depth, brackets)
        parts += [message[position:start], _shown(message[start:end])]
        position = end
    return _without_context("".join(parts) + message[position:])


class _Brackets:
    """The brackets of a text, inside and outside of strings."""

    def __init__(self, text: str) -> None:
        found = [(each.start(), _DEPTHS[each.group()]) for each in _BRACKETS.finditer(text)]
        self._positions = [position for position, _ in found]
        self._depths = [0, *accumulate(depth for _, depth in found)]
        # For each bracket, where the depth is lowest from there to the end.
        self._lowest = list(range(len(self._depths)))
        for index in reversed(range(len(found))):
            later = self._lowest[index + 1]
            if self._depths[later] < self._depths[index]:
                self._lowest[index] = later

    def balance(self, start: int, end: int) -> int:
        """Return the number of opening minus closing brackets in this range."""
        return self._depths[self._index(end)] - self._depths[self._index(start)]

    def surplus_end(self, start: int, depth: int) -> int:
        """Return the end of the last unmatched closing bracket.

        `depth` is the number of brackets that are open at the start.
        """
        index = self._index(start)
        lowest = self._lowest[index]
        if self._depths[lowest] >= self._depths[index] - depth:
            return start
        return self._positions[lowest - 1] + 1

    def _index(self, position: int) -> int:
        return bisect_left(self._positions, position)


def _without_context(message: str) -> str:
    start = message.find(_CONTEXT_START)
    if start < 0:
        return message
    end = message.rfind(_CONTEXT_END, start + 1)
    rest = message[end + len(_CONTEXT_END) :] if end >= 0 else ""
    return f"{message[:start]}{_CONTEXT_START}{OMITTED}{_CONTEXT_END}{rest}"


def _shown(value: str) -> str:
    if len(value) > LONGEST_SCALAR or _STARTS_COMPOSITE.match(value):
        return OMITTED
    return value


def _end_of_value(text: str, start: int, depth: int, brackets: _Brackets) -> int:
    if quoted := _QUOTED.match(text, start):
        return quoted.end()
    if _STARTS_COMPOSITE.match(text, start):
        # Not every dump quotes its strings, so a bracket in a string may seem to end the value. The
        # rest then closes more brackets than were open before, and belongs to the value.
        return brackets.surplus_end(_end_of_composite(text, start), depth)
    end = _END_OF_SCALAR.search(text, start)
    return end.start() if end else len(text)


def _end_of_composite(text: str, start: int) -> int:
    depth, position = 0, start
    while (found := _BRACKET_OR_QUOTE.search(text, position)) is not None:
        if quoted := _QUOTED.match(text, found.start()):
            position = quoted.end()
            continue
        position = found.end()
        depth += _DEPTHS[found.group()]
        if depth <= 0 and text.startswith((": ", ", ", "]"), position):
            return position
    return len(text)
