"""The result of a reconcile, given what became of the objects and of the status."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.failures import Failure
from kftrainer.controllers.trainjob.reconciler import Outcome, TrainJobReconciler, result_of
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Result
from kftrainer.runtime.cluster_reader import GivenObjects
from tests.support.fake_clock import FakeClock
from tests.support.objects import Object, runtime
from tests.support.plans import NAMESPACE, RUNTIMES, in_namespace, job_on, plan

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


def nodes(existing: GivenObjects, job: TrainJob, ready: Mapping[str, int] | None) -> Object | None:
    """Return the nodes with these ready pods; None stands for Jobs that were not read yet."""
    parts: Any = None
    view: Any = existing
    reconciler = TrainJobReconciler(
        parts,
        view,
        RUNTIMES,
        parts,
        parts,
        clock=FakeClock(),
        own_status=parts,
        refused_pods=parts,
        failed_pods=parts,
        revisions=parts,
        ready_pods=lambda _: ready,
    )
    found = reconciler._nodes(job)
    return None if found is None else found.dump()


def test_nodes_are_known_once_there_is_a_jobset_and_jobs_have_been_read() -> None:
    document = runtime()
    manifest = job_on(document, trainer={"numNodes": 3})
    job_set = plan(manifest, document)["JobSet"]
    job_set["metadata"] |= {"uid": "1", "namespace": NAMESPACE}
    job = TrainJob.parse(manifest)
    existing = GivenObjects([in_namespace(document), job_set])
    assert [nodes(existing, job, ready) for ready in (None, {}, {"node": 2})] == [
        None,
        {"ready": 0, "desired": 3},
        {"ready": 2, "desired": 3},
    ]
    assert nodes(GivenObjects([in_namespace(document)]), job, {"node": 2}) is None
