from kftrainer.kube.objects.field_errors import (
    ErrorType,
    FieldError,
    ValidationResult,
    forbidden,
    invalid,
    required,
    without,
)


def test_errors_read_as_those_of_the_api_server() -> None:
    errors = [
        invalid("spec.a", "x", "must be y"),
        invalid("spec.a", {"b": [1]}, "must be y"),
        required("spec.a"),
        required("spec.a", "the name"),
        forbidden("spec.a", "not now"),
        FieldError("spec.a", ErrorType.NOT_FOUND, value="x"),
    ]
    assert [str(error) for error in errors] == [
        'spec.a: Invalid value: "x": must be y',
        'spec.a: Invalid value: {"b":[1]}: must be y',
        "spec.a: Required value",
        "spec.a: Required value: the name",
        "spec.a: Forbidden: not now",
        'spec.a: Not found: "x"',
    ]


def test_long_values_are_cut() -> None:
    message = str(invalid("a", "x" * 10_000, "too long"))
    assert len(message) < 200
    assert message.endswith("…: too long")


def test_values_that_json_cannot_represent_are_shown() -> None:
    assert str(invalid("a", 2**70, "b")) == f"a: Invalid value: {2**70}: b"


def test_rule_is_ignored_in_comparisons_of_errors() -> None:
    messages = [
        (invalid("a", 1, "b", rule="first"), invalid("a", 1, "b", rule="second")),
        (required("a", rule="first"), required("a")),
        (forbidden("a", "b", rule="first"), forbidden("a", "b", rule="second")),
    ]
    for one, other in messages:
        assert one.rule == "first"
        assert (one, hash(one), str(one)) == (other, hash(other), str(other))
        assert without([one], [other]) == []
    assert required("a").rule == ""


def test_findings_are_deduplicated() -> None:
    findings = ValidationResult()
    findings.add_errors(required("a"), required("a"))
    findings.add_warnings("w")
    other = ValidationResult([required("a"), required("b")], ["w", "v"])
    findings.add(other)
    assert findings == ValidationResult([required("a"), required("b")], ["w", "v"])


def test_known_errors_are_excluded_regardless_of_their_values() -> None:
    known = invalid("a", {"b": [1]}, "c")
    others = [invalid("a", {"b": [2]}, "c"), invalid("b", {"b": [1]}, "c"), required("a", "c")]
    assert without([known], [others[0], known, *others]) == others
