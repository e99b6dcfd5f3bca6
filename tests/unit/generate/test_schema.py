from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from generate.schema import Library, of_model
from kftrainer.api.schema.markers import Atomic, Cel, Embedded, Int32, SchemaOf, list_map
from kftrainer.kube.objects.model import KubeModel, Opaque, OpaqueList

LIBRARY = Library(
    {
        "description": "theirs",
        "properties": {
            "jobs": {
                "items": {
                    "description": "theirs",
                    "properties": {"name": {"type": "string", "description": "theirs"}},
                    "type": "object",
                    "x-kubernetes-validations": [
                        {"rule": "self == oldSelf", "message": "immutable"},
                        {"rule": "has(self.name)", "message": "named"},
                    ],
                },
                "type": "array",
            }
        },
        "type": "object",
    }
)


class Part(KubeModel):
    """A part."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern="^a", description="Its name.")]


class Whole(KubeModel):
    """All kinds of fields."""

    rules: ClassVar[tuple[Cel, ...]] = (Cel("true", "never", field_path=".parts"),)
    min_properties: ClassVar[int] = 1

    count: Annotated[Int32 | None, Field(ge=1, description="How many.")] = None
    percent: Annotated[int, Field(ge=0, le=100)] = 5
    mode: Literal["a", "b"] = "a"
    parts: Annotated[list[Part] | None, list_map("name"), Field(max_length=8)] = None
    words: Annotated[list[Annotated[str, Field(max_length=9)]], Atomic()]
    labels: Annotated[Mapping[str, str] | None, Atomic()] = None
    theirs: Annotated[OpaqueList | None, Embedded("jobs[]"), list_map("name")] = None
    patch: Annotated[Opaque | None, SchemaOf(Part)] = None


def test_schema_contains_all_constraints_of_a_type() -> None:
    part = {
        "type": "object",
        "description": "A part.",
        "required": ["name"],
        "properties": {
            "name": {
                "type": "string",
                "minLength": 1,
                "maxLength": 63,
                "pattern": "^a",
                "description": "Its name.",
            }
        },
    }
    by_name = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    theirs = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "has(self.name)", "message": "named"}],
    }
    assert of_model(Whole, LIBRARY)["properties"] == {
        "count": {
            "type": "integer",
            "format": "int32",
            "minimum": 1,
            "maximum": 2**31 - 1,
            "description": "How many.",
        },
        "percent": {"type": "integer", "minimum": 0, "maximum": 100, "default": 5},
        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "parts": {"type": "array", "items": part, "maxItems": 8, **by_name},
        "words": {
            "type": "array",
            "items": {"type": "string", "maxLength": 9},
            "x-kubernetes-list-type": "atomic",
        },
        "labels": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "x-kubernetes-map-type": "atomic",
        },
        "theirs": {"type": "array", "items": theirs, **by_name},
        "patch": part,
    }


def test_rules_and_requirements_of_an_object_are_in_its_schema() -> None:
    schema = of_model(Whole, LIBRARY)
    assert schema["required"] == ["words"]
    assert schema["minProperties"] == 1
    assert schema["x-kubernetes-validations"] == [
        {"rule": "true", "message": "never", "fieldPath": ".parts"}
    ]


def test_unsupported_bound_is_an_error() -> None:
    class Unsupported(KubeModel):
        number: Annotated[int, Field(multiple_of=2)]

    with pytest.raises(TypeError, match="no schema is known for MultipleOf"):
        of_model(Unsupported, LIBRARY)
