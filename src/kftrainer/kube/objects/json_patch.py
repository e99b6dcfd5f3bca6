"""JSON patches (RFC 6902) between two versions of a document. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Operation = Mapping[str, Any]


def json_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Sequence[Operation]:
    """Return the operations that change one document into the other, in a fixed order.

    Only values that differ are written. A list that changes its length is replaced as a whole.
    Parts that both documents share are not compared.
    """
    return [*_changes("", before, after)]


def _changes(pointer: str, before: Any, after: Any) -> Iterator[Operation]:
    if before is after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _field_changes(pointer, before, after)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _changes(f"{pointer}/{index}", old, new)
    elif type(before) is not type(after) or before != after:  # 1, 1.0 and True are equal
        yield {"op": "replace", "path": pointer, "value": after}


def _field_changes(
    pointer: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Operation]:
    for field, old in before.items():
        path = f"{pointer}/{_escaped(field)}"
        if field in after:
            yield from _changes(path, old, after[field])
        else:
            yield {"op": "remove", "path": path}
    for field, new in after.items():
        if field not in before:
            yield {"op": "add", "path": f"{pointer}/{_escaped(field)}", "value": new}


def _escaped(field: str) -> str:
    return field.replace("~", "~0").replace("/", "~1")
