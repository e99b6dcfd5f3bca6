"""Whether a document has the structure that a CRD's schema says, as the API server looks at it.

Rules in CEL, patterns and ranges are left to the server and to our own types.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kftrainer.kube.defaulting import Schema, schema_of_field
from kftrainer.kube.model import FIELD_NAME, Problem

HEAD = ("apiVersion", "kind", "metadata")  # of every object, whatever its schema says


def pruned(document: Mapping[str, Any], schema: Schema) -> tuple[dict[str, Any], list[str]]:
    """A copy of an object without the fields that the schema does not know, and their paths."""
    unknown: list[str] = []
    head = {field: document[field] for field in HEAD if field in document}
    rest = {field: value for field, value in document.items() if field not in head}
    kept = _pruned(rest, schema, "", unknown)
    return {**head, **kept}, unknown


def misfits(value: Any, schema: Schema | None, path: str = "") -> Iterator[Problem]:
    """What is not of the type that the schema says, is missing, or is not one of those allowed."""
    if schema is None or (value is None and schema.get("nullable")):
        return
    kind = "integer or string" if schema.get("x-kubernetes-int-or-string") else schema.get("type")
    if kind is not None:
        words, fits = _TYPES[kind]
        if not fits(value):
            yield Problem(path, f"must be {words}")
            return
    allowed = schema.get("enum")
    if allowed and value not in allowed:
        yield Problem(path, f"must be one of {', '.join(map(str, allowed))}")
    elif isinstance(value, Mapping):
        yield from _misfits_of_object(value, schema, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from misfits(item, schema.get("items"), f"{path}[{index}]")


def below(path: str, field: str) -> str:
    """The path of a field, or of a key of a map, in what is at the path."""
    if not FIELD_NAME.fullmatch(field):
        return f"{path}[{field}]"
    return f"{path}.{field}" if path else field


def _misfits_of_object(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[Problem]:
    for field in schema.get("required") or ():
        if field not in value:
            yield Problem(below(path, field), "is required")
    for field, each in value.items():
        yield from misfits(each, schema_of_field(schema, field), below(path, field))


def _pruned(value: Any, schema: Schema, path: str, unknown: list[str]) -> Any:
    if isinstance(value, Mapping):
        return _pruned_object(value, schema, path, unknown)
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [
            _pruned(item, items, f"{path}[{index}]", unknown) for index, item in enumerate(value)
        ]
    return value


def _pruned_object(
    value: Mapping[str, Any], schema: Schema, path: str, unknown: list[str]
) -> dict[str, Any]:
    kept = {}
    for field, each in value.items():
        inner, where = schema_of_field(schema, field), below(path, field)
        if inner is not None:
            kept[field] = _pruned(each, inner, where, unknown)
        elif schema.get("x-kubernetes-preserve-unknown-fields"):
            kept[field] = each
        else:
            unknown.append(where)
    return kept


def _is_whole(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "object": ("an object", lambda value: isinstance(value, Mapping)),
    "array": ("a list", lambda value: isinstance(value, list)),
    "string": ("a string", lambda value: isinstance(value, str)),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "integer": ("an integer", _is_whole),
    "number": ("a number", _is_number),
    "integer or string": (
        "an integer or a string",
        lambda value: isinstance(value, str) or _is_whole(value),
    ),
}
