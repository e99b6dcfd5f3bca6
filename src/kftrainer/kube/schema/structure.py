"""Validation of a document's structure against a CRD's schema, as in the API server."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from kftrainer.kube.objects.field_errors import ErrorType, FieldError, invalid, required
from kftrainer.kube.objects.model import FIELD_NAME, Problem
from kftrainer.kube.schema.defaulting import Schema, schema_of_field
from kftrainer.kube.schema.suggestions import closest
from kftrainer.kube.schema.values import bound_errors

HEAD = ("apiVersion", "kind", "metadata")  # in every object, whatever its schema
FLOATS_ARE_EXACT = 2**53  # below this, floats represent all integers exactly
STRUCTURE = (ErrorType.TYPE_INVALID, ErrorType.REQUIRED, ErrorType.NOT_SUPPORTED)
Unknown = list[tuple[str, str, Collection[str]]]  # path, name, and the known names at this path


def pruned(document: Mapping[str, Any], schema: Schema) -> tuple[dict[str, Any], list[str]]:
    """Return a copy of an object without unknown fields, and the paths of these."""
    unknown: Unknown = []
    head = {field: document[field] for field in HEAD if field in document}
    rest = {field: value for field, value in document.items() if field not in head}
    kept = _pruned(rest, schema, "", unknown)
    return {**head, **kept}, [path for path, _, _ in unknown]


def unknown_fields(value: Any, schema: Schema, path: str = "") -> Iterator[FieldError]:
    """Yield an error for each field that is not in the schema.

    The API server rejects such fields under strict field validation, which kubectl requests;
    otherwise it drops them.
    """
    unknown: Unknown = []
    _pruned(value, schema, path, unknown)
    for where, name, known in unknown:
        near = closest(name, known)
        yield FieldError(where, ErrorType.UNKNOWN, f"did you mean {near}?" if near else "")


def misfits(value: Any, schema: Schema | None, path: str = "") -> Iterator[Problem]:
    """Yield problems of structure: wrong types, missing fields, values not in the enum."""
    for error in schema_errors(value, schema, path):
        if error.type in STRUCTURE:
            message = "is required" if error.type is ErrorType.REQUIRED else error.detail
            yield Problem(error.path, message)


def schema_errors(value: Any, schema: Schema | None, path: str = "") -> Iterator[FieldError]:
    """Yield all errors against the schema, except violations of its CEL rules."""
    if schema is None or (value is None and schema.get("nullable")):
        return
    kind = "integer or string" if schema.get("x-kubernetes-int-or-string") else schema.get("type")
    if kind is not None:
        words, fits = _TYPES[kind]
        if not fits(value):
            detail = f"must be {words}{_hint(value, kind, schema)}"
            yield FieldError(path, ErrorType.TYPE_INVALID, detail, value)
            return
    yield from bound_errors(value, schema, path)
    if isinstance(value, Mapping):
        yield from _errors_of_object(value, schema, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from schema_errors(item, schema.get("items"), f"{path}[{index}]")
    choices = schema.get("anyOf")
    if choices and all(any(schema_errors(value, choice)) for choice in choices):
        yield invalid(path, value, "must match one of the alternatives (anyOf) in its schema")


def _hint(value: Any, kind: str, schema: Schema) -> str:
    """Return how to correct common mistakes, or nothing."""
    match kind:
        case "string" if _is_scalar(value):  # in YAML, 3, yes and 1e3 without quotes
            return ": put it in quotes"
        case "array" if isinstance(value, Mapping) and "x-kubernetes-list-map-keys" in schema:
            key = schema["x-kubernetes-list-map-keys"][0]
            return f": write each entry as an item, such as - {key}: …"
        case "array" if isinstance(value, str | int | float):
            return ": write each item on a line of its own, after a dash"
        case _:
            return ""


def below(path: str, field: str) -> str:
    """Return the path of a field or map key below a path."""
    if not FIELD_NAME.fullmatch(field):
        return f"{path}[{field}]"
    return f"{path}.{field}" if path else field


def _errors_of_object(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    for field in schema.get("required") or ():
        if field not in value:
            yield required(below(path, field))
    for field, each in value.items():
        yield from schema_errors(each, schema_of_field(schema, field), below(path, field))


def _pruned(value: Any, schema: Schema, path: str, unknown: Unknown) -> Any:
    if isinstance(value, Mapping):
        return _pruned_object(value, schema, path, unknown)
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [
            _pruned(item, items, f"{path}[{index}]", unknown) for index, item in enumerate(value)
        ]
    return value


def _pruned_object(
    value: Mapping[str, Any], schema: Schema, path: str, unknown: Unknown
) -> dict[str, Any]:
    kept = {}
    for field, each in value.items():
        inner, where = schema_of_field(schema, field), below(path, field)
        if inner is not None:
            kept[field] = _pruned(each, inner, where, unknown)
        elif schema.get("x-kubernetes-preserve-unknown-fields"):
            kept[field] = each
        else:
            unknown.append((where, field, schema.get("properties") or ()))
    return kept


def _is_whole(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer() and abs(value) < FLOATS_ARE_EXACT
    return isinstance(value, int) and not isinstance(value, bool)


def _is_scalar(value: object) -> bool:
    return isinstance(value, int | float)


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
