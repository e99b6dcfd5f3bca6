"""The result of a reconcile, given what became of the objects and of the status."""

import math
from typing import Any

import pytest

from kftrainer.controllers.trainjob.failures import Failure
from kftrainer.controllers.trainjob.reconciler import Outcome, result_of
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Result

TAKEN = Failure("NameTaken", "taken", retryable=True, max_delay=30)
REJECTED = Failure("A", "rejected", retryable=True, is_error=True, max_delay=300)
INVALID = Failure("InvalidRuntime", "invalid", retryable=False)
NOT_SUSPENDED = "cannot suspend the JobSet: reset"

# The outcome, the pause before the status is repaired, and the result.
RESULTS: dict[str, tuple[Outcome, float | None, Result]] = {
    "nothing": (Outcome(), None, DONE),
    "pause": (Outcome(), 5, Result(requeue_after=5)),
    "changed back": (Outcome(retry_after=3), None, Result(requeue_after=3)),
    "sooner": (Outcome(retry_after=3), 5, Result(requeue_after=3)),
    "invalid": (Outcome(INVALID), None, DONE),
    "invalid and pause": (Outcome(INVALID), 5, Result(requeue_after=5)),
    "taken": (Outcome(TAKEN, retry_after=3), 5, Result(requeue=True, max_delay=30)),
    "conflict of a suspension": (Outcome(INVALID, retry_after=0), 5, Result(requeue_after=0)),
}


@pytest.mark.parametrize("which", RESULTS)
def test_result_of_outcome_without_error(which: str) -> None:
    outcome, pause, expected = RESULTS[which]
    assert result_of(outcome, pause) == expected


ERRORS: dict[str, tuple[Outcome, tuple[str, float]]] = {
    "rejected": (Outcome(REJECTED), ("rejected", 300)),
    "both": (
        Outcome(REJECTED, suspend_error=NOT_SUSPENDED),
        (f"rejected; {NOT_SUSPENDED}", 300),
    ),
    "taken": (Outcome(TAKEN, suspend_error=NOT_SUSPENDED), (NOT_SUSPENDED, 30)),
    "invalid": (Outcome(INVALID, suspend_error=NOT_SUSPENDED), (NOT_SUSPENDED, math.inf)),
}


@pytest.mark.parametrize("which", ERRORS)
def test_result_of_failed_api_call_is_an_error(which: str) -> None:
    outcome, expected = ERRORS[which]
    with pytest.raises(ReconcileError) as raised:
        result_of(outcome, 5)
    found: Any = raised.value
    assert (str(found), found.max_delay) == expected
