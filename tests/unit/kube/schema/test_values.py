from typing import Any

import pytest

from kftrainer.kube.objects.field_errors import ErrorType
from kftrainer.kube.schema.values import QUANTITY, bound_errors

TIME = {"type": "string", "format": "date-time"}
SET = {"type": "array", "x-kubernetes-list-type": "set"}
MAP = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
PORTS = {**MAP, "x-kubernetes-list-map-keys": ["port", "protocol"]}


@pytest.mark.parametrize(
    ("value", "schema", "fault", "message"),
    [
        ("x", {"enum": ["a", ""]}, ErrorType.NOT_SUPPORTED, 'must be one of a, ""'),
        (0, {"minimum": 1}, ErrorType.INVALID, "must be at least 1"),
        (9, {"maximum": 8}, ErrorType.INVALID, "must be at most 8"),
        (2**31, {"format": "int32"}, ErrorType.INVALID, "must be at most 2147483647"),
        (-(2**31) - 1, {"format": "int32"}, ErrorType.INVALID, "must be at least -2147483648"),
        (2**63, {"format": "int64"}, ErrorType.INVALID, "must be at most 9223372036854775807"),
        ("", {"minLength": 1}, ErrorType.INVALID, "must not be empty"),
        ("x", {"minLength": 2}, ErrorType.INVALID, "must have at least 2 characters"),
        ("äöü", {"maxLength": 2}, ErrorType.TOO_LONG, "must have at most 2 characters, and has 3"),
        ("ab", {"pattern": "^a$"}, ErrorType.INVALID, "must match ^a$"),
        ("a\n", {"pattern": "^a$"}, ErrorType.INVALID, "must match ^a$"),
        (
            "1x",
            {"pattern": QUANTITY},
            ErrorType.INVALID,
            "must be a quantity such as 2, 500m or 1.5Gi",
        ),
        ("now", TIME, ErrorType.INVALID, "must be a time such as 2026-01-31T12:00:00Z"),
        ("2026-13-01T00:00:00Z", TIME, ErrorType.INVALID, "must be a time such as"),
        ({}, {"minProperties": 1}, ErrorType.INVALID, "must have at least 1 field"),
        ({"a": 1, "b": 2}, {"maxProperties": 1}, ErrorType.TOO_MANY, "must have at most 1 field"),
        ([], {"minItems": 1}, ErrorType.INVALID, "must have at least 1 item"),
        ([1, 2, 3], {"maxItems": 2}, ErrorType.TOO_MANY, "must have at most 2 items"),
    ],
)
def test_values_out_of_bounds(value: Any, schema: Any, fault: ErrorType, message: str) -> None:
    [error] = bound_errors(value, schema, "a")
    assert (error.path, error.type) == ("a", fault)
    assert error.detail.startswith(message)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("a", {"enum": ["a", "b"]}),
        (1, {"minimum": 1, "maximum": 1}),
        (2**31 - 1, {"format": "int32"}),
        ("äö", {"minLength": 2, "maxLength": 2}),
        ("1.5Gi", {"pattern": QUANTITY}),
        ("xay", {"pattern": "a"}),
        ("a$", {"pattern": r"a\$"}),
        ("2026-01-31T12:00:00.5+01:00", TIME),
        ("anything", {"format": "something"}),
        ([1], {"minItems": 1, "maxItems": 1}),
        (True, {"minimum": 5}),
        (["a", "b"], SET),
        ([{"name": "a"}, {"name": "b"}, {}], MAP),
        ([{"name": "a"}, {"name": "a"}], {"type": "array"}),
        (
            [{"name": "a"}, {"name": "a"}, "a"],
            MAP,
        ),  # another error reports that one is not an object
        ([{"port": 1, "protocol": "TCP"}, {"port": 1, "protocol": "UDP"}], PORTS),
        (None, {"minItems": 1}),
    ],
)
def test_values_within_bounds(value: Any, schema: Any) -> None:
    assert list(bound_errors(value, schema, "a")) == []


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        (["a", "b", "a", "a"], SET, 'a[2]: Duplicate value: "a": is already in the list'),
        (
            [{"name": "a", "x": 1}, None, {"name": "a"}],
            MAP,
            'a[2]: Duplicate value: "a": is already the name',
        ),
        ([{}, {}], MAP, "a[1]: Duplicate value: null: is already the name of another item"),
        (
            [{"port": 1, "protocol": "TCP", "x": 1}, {"protocol": "TCP", "port": 1}],
            PORTS,
            'a[1]: Duplicate value: {"port":1,"protocol":"TCP"}: is already the port and',
        ),
    ],
)
def test_duplicate_items_are_reported_once(value: Any, schema: Any, message: str) -> None:
    [error] = bound_errors(value, schema, "a")
    assert str(error).startswith(message)
