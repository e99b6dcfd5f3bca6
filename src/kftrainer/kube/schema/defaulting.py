"""Defaults of a CRD's schema, applied as the API server applies them."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]  # OpenAPI schema, as in a CustomResourceDefinition


def defaulted(value: Any, schema: Schema | None) -> Any:
    """Return a copy with defaults for the missing fields of existing objects.

    A null that the schema does not allow counts as missing: it is replaced by the default, or
    removed if there is none. In lists it stays, so that the items keep their positions.
    """
    if isinstance(value, Mapping):
        return _defaulted_object(value, schema or {})
    if isinstance(value, list):
        items = (schema or {}).get("items")
        return [_defaulted_item(each, items) for each in value]
    return value


def schema_of_field(schema: Schema, field: str) -> Schema | None:
    """Return the schema of a field of an object; None if there is none."""
    found: Schema | None = (schema.get("properties") or {}).get(field)
    if found is None and isinstance(others := schema.get("additionalProperties"), Mapping):
        return others
    return found


def _defaulted_object(value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    filled = {}
    for field, each in value.items():
        inner = schema_of_field(schema, field)
        if not _counts_as_missing(each, inner):
            filled[field] = defaulted(each, inner)
        elif _has_default(inner):
            filled[field] = _default(inner)
    for field, inner in (schema.get("properties") or {}).items():
        if field not in filled and _has_default(inner):
            filled[field] = _default(inner)
    return filled


def _defaulted_item(item: Any, schema: Schema | None) -> Any:
    if _counts_as_missing(item, schema) and _has_default(schema):
        return _default(schema)
    return defaulted(item, schema)


def _counts_as_missing(value: object, schema: Schema | None) -> bool:
    return value is None and schema is not None and not schema.get("nullable")


def _has_default(schema: Schema | None) -> bool:
    return schema is not None and schema.get("default") is not None


def _default(schema: Schema | None) -> Any:
    """Return the default, which may be an object with defaults of its own."""
    return defaulted((schema or {})["default"], schema)
