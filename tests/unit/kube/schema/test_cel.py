from typing import Any

from kftrainer.kube.objects.field_errors import ErrorType
from kftrainer.kube.schema.cel import rule_errors

RULES = {
    "self.a < 5": lambda self, _: self["a"] < 5,
    "self == oldSelf": lambda self, old: self == old,
    "size(self) > 0": lambda self, _: len(self) > 0,
}


def schema(**rule: Any) -> dict[str, Any]:
    inner = {"type": "object", "x-kubernetes-validations": [{"rule": "self.a < 5", **rule}]}
    return {"type": "object", "properties": {"b": inner, "c": {"type": "array", "items": inner}}}


def error_messages(value: Any, schema: Any, old: Any = None) -> list[str]:
    return [f"{each.path}: {each.detail}" for each in rule_errors(value, schema, RULES, old=old)]


def test_rules_are_evaluated_at_every_value() -> None:
    value = {"b": {"a": 5}, "c": [{"a": 1}, {"a": 9}]}
    assert error_messages(value, schema(message="too much")) == ["b: too much", "c[1]: too much"]
    assert error_messages({"b": None}, schema()) == []
    assert error_messages({}, schema()) == []


def test_rule_without_message_is_reported_by_its_expression() -> None:
    assert error_messages({"b": {"a": 5}}, schema()) == ["b: failed rule: self.a < 5"]
    assert error_messages({"b": {"a": 5}}, schema(messageExpression="'x'")) == [
        "b: failed rule: self.a < 5"
    ]


def test_rule_can_set_field_path_and_reason() -> None:
    named = schema(message="no", fieldPath=".a", reason="FieldValueForbidden")
    [error] = rule_errors({"b": {"a": 5}}, named, RULES)
    assert (error.path, error.type) == ("b.a", ErrorType.FORBIDDEN)
    at_the_root = {"x-kubernetes-validations": [{"rule": "size(self) > 0", "fieldPath": ".x.y"}]}
    assert error_messages({}, at_the_root) == ["x.y: failed rule: size(self) > 0"]


def test_a_rule_that_cannot_be_evaluated_does_not_hold() -> None:
    [error] = error_messages({"b": {}}, schema(message="too much"))
    assert error == "b: a is missing, so the rule cannot be evaluated: too much"


def test_rules_about_a_change_need_something_that_was_before() -> None:
    fixed = {"x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}]}
    whole = {"type": "object", "properties": {"a": fixed}}
    assert error_messages({"a": 1}, whole) == []
    assert error_messages({"a": 1}, whole, old={}) == []
    assert error_messages({"a": 1}, whole, old={"a": 1}) == []
    assert error_messages({"a": 1}, whole, old={"a": 2}) == ["a: fixed"]
