"""Objects as a Go client writes them back, which decodes them into structs."""

from typing import Any

from kftrainer.api.schema.offline import schema_of
from kftrainer.kube.objects.quantity import Quantity, QuantityError
from kftrainer.kube.schema.defaulting import Schema, schema_of_field
from tests.support.objects import Object

# `sources` of a projected volume is written without omitempty, although it is optional.
WRITTEN = frozenset({"sources"})


def written_by_go(manifest: Object) -> Object:
    """The object after a Go client has read it: the schema of the CRD has Go's types."""
    schema = schema_of(manifest["kind"])
    spec = _written(manifest["spec"], schema["properties"]["spec"])
    return {**manifest, "spec": spec}


def is_quantity(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-int-or-string")) and "numkMGTPE" in schema.get(
        "pattern", ""
    )


def is_map(schema: Schema) -> bool:
    return bool(schema.get("additionalProperties"))


def _written(value: Any, schema: Schema | None) -> Any:
    if schema is None:
        return value
    if isinstance(value, dict):
        return {
            field: _written(each, schema_of_field(schema, field))
            for field, each in value.items()
            if not _is_omitted(field, each, schema)
        }
    if isinstance(value, list):
        return [_written(each, schema.get("items")) for each in value]
    if is_quantity(schema) and not isinstance(value, bool) and value is not None:
        try:
            return str(Quantity.parse(value))
        except QuantityError:
            return value
    return value


def _is_omitted(field: str, value: Any, schema: Schema) -> bool:
    inner = schema_of_field(schema, field)
    if inner is None or field in (schema.get("required") or ()) or field in WRITTEN:
        return False
    return (inner.get("type") == "array" and value == []) or (is_map(inner) and value == {})
