import pytest

from kftrainer.cli.manifests.problems import (
    DocumentProblem,
    ObjectCounts,
    message_of,
    split_warning,
    summary,
)
from kftrainer.kube.objects.field_errors import ErrorType, FieldError, forbidden, invalid, required


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (invalid("a", "x", "must be y"), 'Invalid value: "x": must be y'),
        (invalid("a", {"b": "secret"}, "must be y"), "Invalid value: must be y"),
        (invalid("a.env[0].name", "x", "must be y"), 'Invalid value: "x": must be y'),
        (invalid("a.env[0].value", "secret", "must be y"), "Invalid value: must be y"),
        (required("a"), "Required value"),
        (forbidden("a", "not now"), "Forbidden: not now"),
        (FieldError("a", ErrorType.TOO_LONG, "at most 3", "x" * 4), "Too long: at most 3"),
        (FieldError("a", ErrorType.TOO_MANY, "at most 3", 4), "Too many: 4: at most 3"),
        (FieldError("a", ErrorType.UNKNOWN), "Unknown field"),
    ],
)
def test_errors_do_not_contain_possible_secrets(error: FieldError, message: str) -> None:
    assert message_of(error) == message


@pytest.mark.parametrize(
    ("warning", "path"),
    [
        ("spec.a[0].b: does nothing", "spec.a[0].b"),
        ("spec.a[0] does nothing: none", "spec.a[0]"),
        ("spec does nothing", "spec"),
        ("metadata.labels[a.b/c]: does nothing", "metadata.labels[a.b/c]"),
        ("specification: does nothing", ""),
        ("JobSet would reject the JobSet: spec.a: no", ""),
    ],
)
def test_a_warning_may_begin_with_a_path(warning: str, path: str) -> None:
    found, rest = split_warning(warning)
    assert found == path
    assert warning.startswith(path)
    assert warning.endswith(rest)
    assert not rest.startswith(":")


def test_finding_is_one_line() -> None:
    assert str(DocumentProblem("f", 3, "a.b", "X", "no")) == "f:3: a.b: no"
    assert str(DocumentProblem("f", None, "", "X", "no\nway")) == "f: no\\nway"
    assert str(DocumentProblem("f", 3, "a.b", None, "hm", "warning")) == "f:3: a.b: warning: hm"


def test_summary_of_the_outcome() -> None:
    error, warning = (
        DocumentProblem("f", 1, "", "X", "no"),
        DocumentProblem("f", 1, "", None, "hm", "warning"),
    )
    assert summary([], ObjectCounts(1)) == "1 object checked: no problems found"
    message = summary([error, error, warning], ObjectCounts(2, {}, {"Pod": 1}))
    assert message == "2 objects checked, 1 skipped (1 Pod): 2 errors and 1 warning"
