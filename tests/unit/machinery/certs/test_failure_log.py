"""What goes wrong again and again is told twice: when it begins, and when it is over."""

import pytest
from structlog.testing import capture_logs

from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
)
from kftrainer.machinery.certs.failure_log import FailureLog


def test_each_trouble_is_told_when_it_begins_and_when_it_is_over() -> None:
    troubles = FailureLog("tests")
    with capture_logs() as logs:
        for failing in (["a"], ["a", "b"], ["b"], []):
            troubles.begin()
            for what in failing:
                with troubles.noted(what):
                    raise ForbiddenError(403, "Forbidden", "no")
            assert troubles.end() == ("; ".join(f"{what}: no" for what in failing) or None)
            assert troubles.are_none == (not failing)
    assert [(entry["event"], entry["trouble"]) for entry in logs] == [
        ("trouble.began", "a"),
        ("trouble.began", "b"),
        ("trouble.over", "a"),
        ("trouble.over", "b"),
    ]


@pytest.mark.parametrize("kind", [ConflictError, AlreadyExistsError, NotFoundError])
def test_a_race_is_tried_again_and_not_told(kind: type[ApiError]) -> None:
    troubles = FailureLog("tests")
    with capture_logs() as logs:
        troubles.begin()
        with troubles.noted("a"):
            raise kind(409, "", "")
        assert (troubles.raced, troubles.are_none, troubles.end()) == (True, False, None)
        troubles.begin()
        assert troubles.are_none
    assert logs == []


def test_what_cannot_be_helped_is_told_and_not_tried_again() -> None:
    troubles = FailureLog("tests")
    with capture_logs() as logs:
        for _ in range(2):
            troubles.begin()
            troubles.remark("a", "so it is")
            assert (troubles.are_none, troubles.end()) == (True, "a: so it is")
    assert [entry["event"] for entry in logs] == ["trouble.began"]


def test_what_is_put_off_is_tried_again_and_not_told() -> None:
    troubles = FailureLog("tests")
    troubles.begin()
    troubles.put_off()
    assert (troubles.are_none, troubles.end()) == (False, None)
    troubles.begin()
    assert troubles.are_none


def test_other_errors_are_not_for_it() -> None:
    with pytest.raises(KeyError), FailureLog("tests").noted("a"):
        raise KeyError("a")
