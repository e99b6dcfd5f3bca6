"""The rules in CEL: each has a function that is equivalent to the expression."""

from collections.abc import Iterator
from typing import Any

import pytest

from kftrainer.api.schema.cel_rules import RULES
from kftrainer.api.schema.offline import KINDS, schema_of
from kftrainer.kube.schema.defaulting import Schema

BY_NAME = {rule.__name__: rule for rule in RULES.values()}
IN_ORDER = {"startupPolicyOrder": "InOrder"}


def rules_in(schema: Schema) -> Iterator[str]:
    yield from (rule["rule"] for rule in schema.get("x-kubernetes-validations") or ())
    for inner in (schema.get("properties") or {}).values():
        yield from rules_in(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(inner := schema.get(key), dict):
            yield from rules_in(inner)


def test_each_rule_of_the_crds_has_a_function_and_no_function_is_left_over() -> None:
    assert {text for kind in KINDS for text in rules_in(schema_of(kind))} == set(RULES)


@pytest.mark.parametrize(
    ("name", "self", "holds"),
    [
        ("_name_is_host_label", {"metadata": {"name": "a-1"}}, True),
        ("_name_is_host_label", {"metadata": {"name": "1a"}}, False),
        ("_name_is_host_label", {"metadata": {"name": "a.b"}}, False),
        ("_name_is_host_label", {"metadata": {"name": "a\n"}}, False),
        ("_name_is_short", {"metadata": {"name": "x" * 63}}, True),
        ("_name_is_short", {"metadata": {"name": "x" * 64}}, False),
        ("_overrides_in_one_dialect", {}, True),
        ("_overrides_in_one_dialect", {"podTemplateOverrides": [1], "podSpecOverrides": []}, True),
        (
            "_overrides_in_one_dialect",
            {"podTemplateOverrides": [1], "podSpecOverrides": [1]},
            False,
        ),
        ("_manager_is_known", "kueue.x-k8s.io/multikueue", True),
        ("_manager_is_known", "me", False),
        ("_is_number_of_processes", 1, True),
        ("_is_number_of_processes", 0, False),
        ("_is_number_of_processes", "gpu", True),
        ("_is_number_of_processes", "4", False),
        ("_is_number_of_processes", 2.0, False),
        ("_has_no_identity", {"labels": {}}, True),
        ("_has_no_identity", {"name": ""}, False),
        ("_has_no_identity", {"namespace": "x"}, False),
        ("_has_no_identity", {"finalizers": []}, False),
        ("_has_one_framework", {"torch": {}}, True),
        ("_has_one_framework", {"torch": {}, "mpi": {}}, False),
        ("_has_one_scheduler", {"volcano": {}}, True),
        ("_has_one_scheduler", {"volcano": {}, "coscheduling": {}}, False),
        ("_has_one_order", {"replicatedJobs": [{"dependsOn": []}]}, True),
        ("_has_one_order", {"startupPolicy": IN_ORDER, "replicatedJobs": [{}]}, True),
        (
            "_has_one_order",
            {"startupPolicy": IN_ORDER, "replicatedJobs": [{"dependsOn": []}]},
            False,
        ),
        ("_claims_have_no_namespace", {"templates": [{"metadata": {"namespace": ""}}]}, True),
        ("_claims_have_no_namespace", {"templates": [{"metadata": {"namespace": "x"}}]}, False),
    ],
)
def test_values_accepted_by_rules(name: str, self: Any, holds: bool) -> None:
    assert BY_NAME[name](self, None) is holds


def test_immutability_rule_compares_values() -> None:
    assert BY_NAME["_is_unchanged"]({"a": 1}, {"a": 1})
    assert not BY_NAME["_is_unchanged"]({"a": 1}, {"a": 2})


def test_a_missing_field_is_an_error_as_in_cel() -> None:
    with pytest.raises(LookupError):
        BY_NAME["_claims_have_no_namespace"]({"templates": [{}]}, None)
    with pytest.raises(LookupError):
        BY_NAME["_has_one_order"]({"startupPolicy": IN_ORDER}, None)
