"""Converts the API types to structural schemas for CustomResourceDefinitions."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, BeforeValidator, SkipValidation
from pydantic.fields import FieldInfo

from kftrainer.api import limits
from kftrainer.api.schema.markers import (
    AnyFields,
    Atomic,
    Cel,
    Embedded,
    IntOrString,
    ListMap,
    NotServed,
    SchemaOf,
)
from kftrainer.kube.schema.values import QUANTITY

Schema = dict[str, Any]

SCALARS: Mapping[type[Any], str] = {str: "string", int: "integer", bool: "boolean"}
INTEGER_TOO = "x-kubernetes-int-or-string"
INT_OR_STRING: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    INTEGER_TOO: True,
}
# Markers without effect on the schema, or that are handled elsewhere.
WITHOUT_SCHEMA = (AnyFields, BeforeValidator, Cel, Embedded, IntOrString, NotServed, SchemaOf)
ANY_FIELDS: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
FORBIDDEN = "FieldValueForbidden"
# Fields of every object.
ROOT_FIELDS: Mapping[str, Schema] = {
    "apiVersion": {
        "type": "string",
        "description": "Version of the API that this object is written in.",
    },
    "kind": {"type": "string", "description": "Kind of this object."},
    # A schema may restrict only the name in metadata; rules need it to refer to it.
    "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
}


@dataclass(frozen=True, slots=True)
class Library:
    """Schemas of other projects: the spec of JobSet's CRD, which includes pods."""

    jobset_spec: Schema

    def find(self, path: str) -> Schema:
        """Return the schema at a path such as `replicatedJobs[].template`, without descriptions."""
        schema = self.jobset_spec
        for step in path.split(".") if path else ():
            name = step.removesuffix("[]")
            schema = schema["properties"][name]
            if step.endswith("[]"):
                schema = schema["items"]
        return lean(schema)


def lean(schema: Schema) -> Schema:
    """Return the schema without descriptions (three quarters of its size) and transition rules.

    JobSet forbids changes to parts of a running JobSet; a template is not running.
    """
    kept = {key: value for key, value in schema.items() if key != "description"}
    if "properties" in kept:
        kept["properties"] = {name: lean(each) for name, each in kept["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = lean(kept[key])
    rules = [
        rule for rule in kept.pop("x-kubernetes-validations", ()) if "oldSelf" not in rule["rule"]
    ]
    return {**kept, "x-kubernetes-validations": rules} if rules else kept


def of_root(model: type[BaseModel], library: Library) -> Schema:
    """Return the schema of a whole object."""
    schema = of_model(model, library, besides=ROOT_FIELDS)
    schema = bounded(schema)
    schema["properties"] |= deepcopy(dict(ROOT_FIELDS))
    return schema


def bounded(schema: Schema, name: str = "") -> Schema:
    """Return the schema with a limit for each list, map and string; stricter limits are kept."""
    kept = dict(schema)
    if "properties" in kept:
        fields = kept["properties"].items()
        kept["properties"] = {field: bounded(each, field) for field, each in fields}
    for key, inner in (("items", ""), ("additionalProperties", name)):
        if isinstance(kept.get(key), dict):
            kept[key] = bounded(kept[key], inner)
    if (limit := _limit_of(kept, name)) is not None:
        bound, most = limit
        kept[bound] = min(most, kept.get(bound, most))
    return kept


def _limit_of(schema: Schema, name: str) -> tuple[str, int] | None:
    """Return the keyword and the value of a field's limit.

    A limit in the schema is replaced only by a limit for this field.
    """
    if schema.get("type") == "array":
        bound, own, generic = "maxItems", limits.MAX_ITEMS.get(name), limits.OTHER_ITEMS
    elif "additionalProperties" in schema:
        bound, own, generic = "maxProperties", limits.MAX_PROPERTIES.get(name), limits.OTHER_ITEMS
    elif "enum" not in schema and (schema.get("type") == "string" or INTEGER_TOO in schema):
        own = limits.QUANTITY_LENGTH if schema.get("pattern") == QUANTITY else None
        is_annotation = name == "annotations"  # the value of one
        generic = limits.ANNOTATION_LENGTH if is_annotation else limits.TEXT_LENGTH
        bound = "maxLength"
    else:
        return None
    if own is not None:
        return bound, own
    return None if bound in schema else (bound, generic)


def of_model(model: type[BaseModel], library: Library, *, besides: Collection[str] = ()) -> Schema:
    """Return the schema of an object."""
    named = {field.alias or name: field for name, field in model.model_fields.items()}
    fields = {name: field for name, field in named.items() if name not in besides}
    schema: Schema = {
        "type": "object",
        "description": _sentence(model.__doc__),
    }
    if fields:  # the API server drops empty properties, which would be a diff in the next apply
        schema["properties"] = {name: of_field(each, library) for name, each in fields.items()}
    if required := [name for name, field in fields.items() if field.is_required()]:
        schema["required"] = required
    if (least := getattr(model, "min_properties", None)) is not None:
        schema["minProperties"] = least
    if rules := _validations(getattr(model, "rules", ())):
        schema["x-kubernetes-validations"] = rules
    return schema


def of_field(field: FieldInfo, library: Library) -> Schema:
    """Return the schema of a field: that of its type, extended by the field's settings."""
    schema = of_type(field.annotation, field.metadata, library)
    if isinstance(field.json_schema_extra, dict):
        schema |= field.json_schema_extra
    if field.description:
        schema["description"] = field.description
    if not field.is_required() and field.default is not None:
        schema["default"] = field.default
    return schema


def of_type(annotation: Any, markers: Sequence[Any], library: Library) -> Schema:
    """Return the schema of a type with its markers."""
    annotation, markers = _unwrap(annotation, markers)
    schema = _embedded(annotation, markers, library) or _plain(annotation, markers, library)
    for marker in markers:
        _mark(schema, marker)
    rules = [marker for marker in markers if isinstance(marker, Cel)]
    rules += [_rejection(each, schema) for each in markers if isinstance(each, NotServed)]
    if found := _validations(rules):
        schema["x-kubernetes-validations"] = found
    return schema


def _rejection(marker: NotServed, schema: Schema) -> Cel:
    """Return the rule that rejects the field; an empty list is accepted."""
    rule = "size(self) == 0" if schema["type"] == "array" else "false"
    return Cel(rule, marker.message, reason=FORBIDDEN)


def _unwrap(annotation: Any, markers: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return the type without Annotated and Optional; no field is nullable."""
    markers = list(markers)
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            markers = [*more, *markers]
        elif get_origin(annotation) in (Union, UnionType):
            members = [each for each in get_args(annotation) if each is not NoneType]
            if len(members) != 1:
                return annotation, markers
            annotation = members[0]
        else:
            return annotation, markers


def _embedded(annotation: Any, markers: Sequence[Any], library: Library) -> Schema | None:
    for marker in markers:
        if isinstance(marker, SchemaOf):
            return _listed(annotation, of_model(marker.model, library))
        if isinstance(marker, Embedded):
            return _listed(annotation, library.find(marker.path))
        if isinstance(marker, AnyFields):
            return _listed(annotation, dict(ANY_FIELDS))
    return None


def _listed(annotation: Any, item: Schema) -> Schema:
    """Return the schema of the item, or of a list of items if the type is a list."""
    return {"type": "array", "items": item} if get_origin(annotation) is Sequence else item


def _plain(annotation: Any, markers: Sequence[Any], library: Library) -> Schema:
    if any(isinstance(marker, IntOrString) for marker in markers):
        return deepcopy(INT_OR_STRING)
    if annotation in SCALARS:
        return {"type": SCALARS[annotation]}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": of_type(arguments[0], (), library)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": of_type(arguments[1], (), library)}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return of_model(annotation, library)
    raise TypeError(f"no schema is known for {annotation}")


def _mark(schema: Schema, marker: Any) -> None:
    if isinstance(marker, FieldInfo):
        for each in marker.metadata:
            _mark(schema, each)
        schema |= marker.json_schema_extra if isinstance(marker.json_schema_extra, dict) else {}
    else:
        schema |= _keywords_of(marker, listed=schema.get("type") == "array")


def _keywords_of(marker: Any, *, listed: bool) -> Schema:
    size, kind = ("Items", "list") if listed else ("Length", "map")
    keywords: Schema = {}
    match marker:
        case ListMap(keys=keys):
            keywords = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
        case Atomic():
            keywords = {f"x-kubernetes-{kind}-type": "atomic"}
        case Ge(ge=least):
            keywords = {"minimum": least}
        case Le(le=most):
            keywords = {"maximum": most}
        case MinLen(min_length=least):
            keywords = {f"min{size}": least}
        case MaxLen(max_length=most):
            keywords = {f"max{size}": most}
        case _:
            keywords = _other_keywords(marker)
    return keywords


def _other_keywords(marker: Any) -> Schema:
    if pattern := getattr(marker, "pattern", None):
        return {"pattern": pattern}
    if marker is SkipValidation or isinstance(marker, WITHOUT_SCHEMA):
        return {}
    # A CRD must not be less strict than the types.
    raise TypeError(f"no schema is known for {marker!r}")


def _validations(rules: Sequence[Cel]) -> list[Schema]:
    return [
        {"rule": rule.rule, "message": rule.message}
        | ({"fieldPath": rule.field_path} if rule.field_path else {})
        | ({"reason": rule.reason} if rule.reason else {})
        for rule in rules
    ]


def _sentence(doc: str | None) -> str:
    return " ".join((doc or "").split())
