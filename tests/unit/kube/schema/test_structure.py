from typing import Any

import pytest

from kftrainer.kube.objects.field_errors import ErrorType
from kftrainer.kube.schema.structure import misfits, pruned, schema_errors, unknown_fields

TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": TEXT,
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": TEXT}}},
                "named": {
                    "type": "array",
                    "items": {"type": "object"},
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["key"],
                },
                "map": {"type": "object", "additionalProperties": TEXT},
                "number": {"type": "integer"},
                "float": {"type": "number"},
                "truth": {"type": "boolean"},
                "quantity": {"x-kubernetes-int-or-string": True},
                "maybe": {"type": "string", "nullable": True},
                "mode": {"type": "string", "enum": ["hard", "soft"]},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
    },
}


def test_unknown_fields_are_pruned_and_reported() -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Kind",
        "metadata": {"name": "n", "whatever": 1},
        "status": {},
        "spec": {
            "name": "n",
            "nonesuch": {"a": 1},
            "list": [{"a": "x"}, {"b": "y"}],
            "map": {"any/key": "x"},
            "free": {"a": 1},
        },
    }
    assert pruned(document, SCHEMA) == (
        {
            "apiVersion": "v1",
            "kind": "Kind",
            "metadata": {"name": "n", "whatever": 1},
            "spec": {
                "name": "n",
                "list": [{"a": "x"}, {}],
                "map": {"any/key": "x"},
                "free": {"a": 1},
            },
        },
        ["status", "spec.nonesuch", "spec.list[1].b"],
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": 1}, "spec.name: must be a string: put it in quotes"),
        ({"name": None}, "spec.name: must be a string"),
        ({}, "spec.name: is required"),
        (
            {"name": "n", "list": "x"},
            "spec.list: must be a list: write each item on a line of its own, after a dash",
        ),
        ({"name": "n", "list": {}}, "spec.list: must be a list"),
        ({"name": "n", "list": None}, "spec.list: must be a list"),
        (
            {"name": "n", "named": {"a": "1"}},
            "spec.named: must be a list: write each entry as an item, such as - key: …",
        ),
        ({"name": "n", "list": ["x"]}, "spec.list[0]: must be an object"),
        (
            {"name": "n", "list": [{}, {"a": 1}]},
            "spec.list[1].a: must be a string: put it in quotes",
        ),
        ({"name": "n", "map": []}, "spec.map: must be an object"),
        ({"name": "n", "map": {"a/b": 1}}, "spec.map[a/b]: must be a string: put it in quotes"),
        ({"name": "n", "number": 1.5}, "spec.number: must be an integer"),
        ({"name": "n", "number": True}, "spec.number: must be an integer"),
        ({"name": "n", "number": "1"}, "spec.number: must be an integer"),
        ({"name": "n", "float": True}, "spec.float: must be a number"),
        ({"name": "n", "truth": 1}, "spec.truth: must be true or false"),
        ({"name": "n", "quantity": 0.5}, "spec.quantity: must be an integer or a string"),
        ({"name": "n", "quantity": True}, "spec.quantity: must be an integer or a string"),
        ({"name": "n", "mode": "x"}, "spec.mode: must be one of hard, soft"),
        ("x", "spec: must be an object"),
    ],
)
def test_wrong_type_is_reported_with_its_path(spec: Any, message: str) -> None:
    assert [str(problem) for problem in misfits({"spec": spec}, SCHEMA)] == [message]


@pytest.mark.parametrize(
    "more",
    [
        {"number": 1},
        {"number": 1.0},
        {"float": 1},
        {"float": 1.5},
        {"truth": False},
        {"quantity": "1Gi"},
        {"quantity": 1},
        {"maybe": None},
        {"mode": "soft"},
        {"free": {"x": [1]}},
        {"nonesuch": 1},
    ],
)
def test_valid_values_have_no_errors(more: dict[str, Any]) -> None:
    assert list(misfits({"spec": {"name": "n", **more}}, SCHEMA)) == []


def test_all_errors_are_reported_together() -> None:
    document = {"spec": {"list": [{"a": 1}, 2], "number": "x"}}
    assert [problem.path for problem in misfits(document, SCHEMA)] == [
        "spec.name",
        "spec.list[0].a",
        "spec.list[1]",
        "spec.number",
    ]


def test_unknown_fields_are_reported_with_suggestions() -> None:
    document = {"spec": {"nmae": "x", "list": [{"zzz": 1}], "map": {"any": "x"}}}
    assert [str(error) for error in unknown_fields(document, SCHEMA)] == [
        "spec.nmae: Unknown field: did you mean name?",
        "spec.list[0].zzz: Unknown field",
    ]


def test_bounds_are_checked_at_every_value() -> None:
    schema = {
        "type": "object",
        "properties": {
            "list": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1}},
            "map": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}},
        },
    }
    assert [
        str(error) for error in schema_errors({"list": [1, 0], "map": {"a": "bb"}}, schema)
    ] == [
        "list[1]: Invalid value: 0: must be at least 1",
        "map.a: Too long: must have at most 1 character, and has 2",
    ]
    assert [str(error) for error in schema_errors({"list": []}, schema)] == [
        "list: Invalid value: []: must have at least 1 item"
    ]
    assert list(misfits({"list": []}, schema)) == []  # it has the right structure


def test_one_of_several_forms_is_enough() -> None:
    schema = {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}
    assert list(schema_errors(1, schema)) == []
    assert list(schema_errors("a", schema)) == []
    [error] = schema_errors("ab", schema, "a")
    assert error.path == "a"


@pytest.mark.parametrize("value", [1e19, 2.0**53, float("inf")])
def test_float_beyond_integer_precision_is_rejected(value: float) -> None:
    [error] = schema_errors(value, {"type": "integer"})
    assert error.type is ErrorType.TYPE_INVALID
