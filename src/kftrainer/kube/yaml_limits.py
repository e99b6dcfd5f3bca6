"""Limits on the size of a YAML document after expanding aliases and merge keys. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

# Values and characters of one document that expansion adds to its text. The YAML library of
# Kubernetes accepts about as many values from aliases.
MAX_REPEATED_VALUES = 400_000
MAX_REPEATED_CHARACTERS = 64 * 2**20
MAX_DEPTH = 100


class ExpansionError(yaml.MarkedYAMLError):
    """A document that is too large or infinite after aliases and merge keys are expanded."""

    def __init__(self, problem: str, node: yaml.Node) -> None:
        super().__init__(problem=problem, problem_mark=node.start_mark)


@dataclass(frozen=True, slots=True)
class _Size:
    """Size of a node when every alias in it is replaced by a copy of its value."""

    values: int = 1
    characters: int = 0
    depth: int = 1

    def plus(self, inner: "_Size") -> "_Size":
        return _Size(
            self.values + inner.values,
            self.characters + inner.characters,
            max(self.depth, 1 + inner.depth),
        )


def check_expansion(document: yaml.Node) -> None:
    """Raise ExpansionError, with the line, if the expanded document exceeds the limits.

    Call it before the document is constructed, because PyYAML copies merged values. Linear in the
    text: the size of a node that aliases refer to is computed once. An alias follows its anchor, so
    the recursion is only as deep as the text is nested.
    """
    sizes: dict[int, _Size | None] = {}  # by node id; None while it is computed
    text, latest = _Size(0), document  # size of the text so far, and its last node

    def size_of(node: yaml.Node) -> _Size:
        nonlocal text, latest
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise ExpansionError("an alias refers to a value that contains the alias", latest)
            return known
        sizes[id(node)] = None
        own = _Size(characters=len(node.value)) if isinstance(node, yaml.ScalarNode) else _Size()
        text, latest, total = text.plus(own), node, own
        for inner in _applier(node):
            total = total.plus(size_of(inner))
            _check(total, text, latest)
        sizes[id(node)] = total
        return total

    size_of(document)


def _applier(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value


def _check(expanded: _Size, text: _Size, node: yaml.Node) -> None:
    if expanded.values - text.values > MAX_REPEATED_VALUES:
        limit = f"{MAX_REPEATED_VALUES} values"
    elif expanded.characters - text.characters > MAX_REPEATED_CHARACTERS:
        limit = f"{MAX_REPEATED_CHARACTERS} characters"
    elif expanded.depth > MAX_DEPTH:
        limit = f"{MAX_DEPTH} levels"
    else:
        return
    raise ExpansionError(f"aliases and merge keys expand to more than {limit}", node)
