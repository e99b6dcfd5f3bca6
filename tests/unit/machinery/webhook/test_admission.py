"""Findings as a person is shown them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.objects.field_errors import ValidationResult, forbidden, invalid, required
from kftrainer.machinery.webhook.admission import (
    ALLOWED,
    AdmissionRequest,
    AdmissionResponse,
    broken_rules,
    denied,
    response_for,
    response_warnings,
)

REQUEST = AdmissionRequest(
    uid="u",
    operation="CREATE",
    group="example.org",
    version="v1",
    kind="Thing",
    namespace="default",
    name="thing",
    object={},
    old_object=None,
    dry_run=False,
)


def test_without_errors_it_is_allowed_and_warned_of() -> None:
    assert response_for(ValidationResult(warnings=["mind"]), REQUEST) == AdmissionResponse(
        allowed=True, warnings=["mind"]
    )


def test_one_error_is_the_message() -> None:
    error = invalid("spec.size", 0, "must be at least 1", rule="size")
    findings = ValidationResult([error], ["mind"])
    assert response_for(findings, REQUEST) == AdmissionResponse(
        allowed=False,
        warnings=["mind"],
        code=403,
        reason="Forbidden",
        message="spec.size: Invalid value: 0: must be at least 1",
        details={
            "name": "thing",
            "group": "example.org",
            "kind": "Thing",
            "causes": [
                {
                    "reason": "FieldValueInvalid",
                    "message": "spec.size: Invalid value: 0: must be at least 1",
                    "field": "spec.size",
                }
            ],
        },
        rules=("size",),
    )


def test_errors_are_reported_together_and_deduplicated() -> None:
    findings = ValidationResult([required("a"), forbidden("b", "no"), required("a")])
    assert response_for(findings, REQUEST).message == "[a: Required value, b: Forbidden: no]"


def test_repeated_errors_are_truncated() -> None:
    response = response_for(
        ValidationResult([required(f"list[{n}]") for n in range(1000)]), REQUEST
    )
    assert response.message.endswith("list[99]: Required value, and 900 more]")
    assert response.details is not None
    assert len(response.details["causes"]) == 100


def test_other_refusals_have_no_details() -> None:
    assert denied(400, "BadRequest", "what?") == AdmissionResponse(
        allowed=False, code=400, reason="BadRequest", message="what?", rules=("_other",)
    )
    assert denied(500, "InternalError", "oh", rule="plugin-failed").rules == ("plugin-failed",)


def test_each_broken_rule_is_named_once_in_the_order_of_the_errors() -> None:
    errors = [required(f"list[{n}]", rule="lists") for n in range(1000)]
    errors += [forbidden("b", "no", rule="b"), required("c"), required("d")]
    assert response_for(ValidationResult(errors), REQUEST).rules == ("lists", "b", "_other")


def test_allowed_request_has_no_broken_rules() -> None:
    assert ALLOWED.rules == ()
    assert response_for(ValidationResult(warnings=["mind"]), REQUEST).rules == ()


@given(st.lists(st.text(max_size=3)))
def test_broken_rules_are_unique_for_any_rule_names(rules: list[str]) -> None:
    named = broken_rules(required("a", rule=rule) for rule in rules)
    assert len(set(named)) == len(named)
    assert set(named) == {rule or "_other" for rule in rules}


@pytest.mark.parametrize("rule", [None, 7, ["a"]], ids=repr)
def test_rule_that_is_not_a_string_is_converted(rule: object) -> None:
    """The types of third-party code are not checked."""
    error = replace(required("a"), rule=rule)  # type: ignore[arg-type]
    assert broken_rules([error, error]) == (str(rule),)


def test_a_warning_is_one_line_without_control_characters() -> None:
    assert response_warnings(["one\nand\ttwo\x00\x7f\x9b!\u2028", " ", "one\nand\ttwo !"]) == [
        "one and two !",
    ]


def test_warnings_that_fit_are_not_cut() -> None:
    long = "x" * 2000
    assert response_warnings([long, f"{long[1:]}y"]) == [long, f"{long[1:]}y"]


def test_too_many_warnings_are_cut_before_the_api_server_drops_them() -> None:
    cut = response_warnings([f"{n} {'x' * 500}" for n in range(100)])
    assert {len(warning) for warning in cut[:-1]} == {256}
    assert cut[0].endswith("x…")
    assert cut[-1] == f"{100 - (len(cut) - 1)} more warnings are not shown here."
    assert sum(map(len, cut)) <= 4096
