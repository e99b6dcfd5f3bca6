"""Line numbers of the fields of a document. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

Children = Mapping[str, "Position"] | Sequence["Position"] | None
_STEP = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


@dataclass(frozen=True, slots=True)
class Position:
    """The line in which a value or its key begins, and the positions of its children."""

    line: int
    children: Children = None

    def child(self, step: str) -> "Position | None":
        """Return the position of a field, a map key or a list item, or None."""
        if isinstance(self.children, Mapping):
            return self.children.get(step)
        if self.children is not None and step.isdecimal() and int(step) < len(self.children):
            return self.children[int(step)]
        return None

    def nearest(self, path: str) -> "Position":
        """Return the position of the field at this path, or of its nearest existing parent."""
        position = self
        for step in _steps(path):
            found = position.child(step)
            if found is None:
                break
            position = found
        return position


def _steps(path: str) -> Iterator[str]:
    for bracketed, word in _STEP.findall(path):
        yield word or bracketed


def positions_in(node: yaml.Node) -> Position:
    """Return the positions of a YAML document; its merge keys must be resolved."""
    seen: dict[int, Children] = {}  # an alias has the position of its anchor

    def children(each: yaml.Node) -> Children:
        if isinstance(each, yaml.ScalarNode):
            return None
        if id(each) not in seen:
            seen[id(each)] = _children_of(each)
        return seen[id(each)]

    def _children_of(each: yaml.Node) -> Children:
        if isinstance(each, yaml.SequenceNode):
            return [Position(line_of(item), children(item)) for item in each.value]
        return {key.value: Position(line_of(key), children(value)) for key, value in each.value}

    return Position(line_of(node), children(node))


def line_of(node: yaml.Node) -> int:
    """Return the line in which the node begins; the first line is 1."""
    return int(node.start_mark.line) + 1
