from datetime import UTC, datetime
from typing import Any

import pytest

from kftrainer.api.names import API_VERSION
from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import JobStatus, TrainJob
from kftrainer.controllers.trainjob.jobset.deleted_jobsets import (
    DeletedJobSets,
    outcome_without_job_set,
    replicas_in,
)
from kftrainer.kube.objects.meta import Condition
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.cache.cached_object import CachedObjectFactory
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.runtime.framework.extension_points import Observed
from tests.support.objects import Object, train_job

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
COUNTS = {"ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0}
RUNTIME = {
    "spec": {
        "template": {
            "spec": {
                "replicatedJobs": [
                    {"name": "node"},
                    {"name": "launcher", "replicas": 1},
                    {"name": "workers", "replicas": 2},
                ]
            }
        }
    }
}
REPLICAS = replicas_in(RUNTIME)
COMPLETED = {"type": "Completed", "status": "True"}


def row(name: str = "node", **counts: int) -> Object:
    return {"name": name, **COUNTS, **counts}


def job(
    *rows: Object,
    uid: str = "u1",
    suspend: bool = False,
    recorded: str | None = None,
    suspended: str | None = None,
) -> TrainJob:
    document = train_job("train", suspend=suspend)
    document["metadata"] = {**document["metadata"], "namespace": "team", "uid": uid}
    document["status"] = {"jobsStatus": list(rows)} if rows else {}
    if recorded:
        document["status"]["jobSet"] = {"uid": recorded}
    if suspended:
        condition = {"type": "Suspended", "status": suspended, "reason": "r", "message": ""}
        document["status"]["conditions"] = [{**condition, "lastTransitionTime": "t"}]
    return TrainJob.parse(document)


def entry(uid: str = "u1", api_version: str = API_VERSION, **status: Any) -> Any:
    owner = {"apiVersion": api_version, "kind": "TrainJob", "uid": uid, "controller": True}
    metadata = {"name": "train", "namespace": "team", "uid": "j1", "ownerReferences": [owner]}
    manifest = {
        "apiVersion": JOB_SETS.api_version,
        "kind": JOB_SETS.kind,
        "metadata": metadata,
        "spec": {"suspend": False, "replicatedJobs": [{"name": "node"}]},
        "status": status,
    }
    return CachedObjectFactory(JOB_SETS, None, {}).create(manifest)


def deleted(uid: str = "u1", *, unknown: bool = False, **status: Any) -> ObjectEvent[Any]:
    key = ObjectKey("team", "train")
    return ObjectEvent(key, entry(uid, **status), None, final_state_unknown=unknown)


def last_status(found: DeletedJobSets, uid: str = "u1") -> Object | None:
    manifest = found.of(job(uid=uid)).get(JOB_SETS, ObjectKey("team", "train"))
    return None if manifest is None else manifest["status"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((), None),
        ((row(suspended=1),), "Failed/OutcomeUnknown"),
        ((row(succeeded=1),), "Complete/AllJobsCompleted"),
        ((row(succeeded=1), row("launcher", succeeded=1)), "Complete/AllJobsCompleted"),
        ((row(succeeded=1), row("launcher", active=1)), "Failed/OutcomeUnknown"),
        ((row(succeeded=1, active=1),), "Failed/OutcomeUnknown"),
        ((row(active=1, ready=1),), "Failed/OutcomeUnknown"),
        ((row(failed=1),), "Failed/OutcomeUnknown"),
        ((row(),), "Failed/OutcomeUnknown"),
        ((row(suspended=1), row("launcher", active=1)), "Failed/OutcomeUnknown"),
        ((row(suspended=1), row("launcher", succeeded=1)), "Failed/OutcomeUnknown"),
        ((row("workers", succeeded=1),), "Failed/OutcomeUnknown"),
        ((row("workers", succeeded=2),), "Complete/AllJobsCompleted"),
        ((row("removed", succeeded=1),), "Failed/OutcomeUnknown"),
    ],
)
def test_unwatched_deletion_is_decided_from_the_status(
    rows: tuple[Object, ...], expected: str | None
) -> None:
    found = outcome_without_job_set(job(*rows), None, REPLICAS, NOW)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert [f"{each.type}/{each.reason}" for each in found.conditions] == [expected]
        assert list(found.jobs) == [JobStatus.parse(each) for each in rows]


@pytest.mark.parametrize(
    ("rows", "is_created"),
    [
        ((row(suspended=1),), True),
        ((row(suspended=1), row("launcher", succeeded=1)), True),
        ((row(suspended=1), row("launcher", active=1)), False),
        ((row(active=1),), False),
    ],
)
def test_suspended_jobset_of_a_suspended_trainjob_is_created_again(
    rows: tuple[Object, ...], is_created: bool
) -> None:
    """A queue may resume the JobSet of a TrainJob that is not suspended, and it may end."""
    found = outcome_without_job_set(job(*rows, suspend=True), None, REPLICAS, NOW)
    assert (found is None) is is_created


@pytest.mark.parametrize(
    ("recorded", "suspend", "suspended", "is_created"),
    [
        (None, False, None, True),
        ("j1", False, None, False),
        ("j1", False, "False", False),
        ("j1", False, "True", True),
        ("j1", True, "False", True),
    ],
)
def test_recorded_jobset_without_rows_may_have_trained(
    recorded: str | None, suspend: bool, suspended: str | None, is_created: bool
) -> None:
    """The manager may have stopped before it observed the rows of the JobSet it had created."""
    trainjob_before = job(suspend=suspend, recorded=recorded, suspended=suspended)
    found = outcome_without_job_set(trainjob_before, None, REPLICAS, NOW)
    reasons = None if found is None else [each.reason for each in found.conditions]
    assert reasons == (None if is_created else ["OutcomeUnknown"])


def test_watched_deletion_is_decided_from_the_last_state() -> None:
    running = job(row(active=1))
    assert outcome_without_job_set(running, Observed(), {}, NOW) is None
    ended = Observed(
        [Condition.parse({**COMPLETED, "reason": "r", "message": "", "lastTransitionTime": "t"})]
    )
    assert outcome_without_job_set(running, ended, {}, NOW) == ended


def test_last_state_is_kept_until_the_jobset_is_created_again() -> None:
    found = DeletedJobSets()
    assert last_status(found) is None
    found.observe(deleted(conditions=[COMPLETED]))
    assert last_status(found) == {"conditions": [COMPLETED]}
    assert last_status(found, uid="another") is None
    found.observe(ObjectEvent(ObjectKey("team", "train"), None, entry()))
    assert last_status(found) is None


def test_last_state_that_was_not_watched_is_not_kept() -> None:
    found = DeletedJobSets()
    found.observe(deleted(unknown=True, conditions=[COMPLETED]))
    assert last_status(found) is None


def test_last_state_of_a_jobset_of_another_group_is_not_kept() -> None:
    found = DeletedJobSets()
    key = ObjectKey("team", "train")
    found.observe(ObjectEvent(key, entry(api_version="example.com/v1"), None))
    assert last_status(found) is None


def test_only_the_latest_states_are_kept() -> None:
    found = DeletedJobSets(capacity=2)
    for uid in ("a", "b", "c"):
        found.observe(deleted(uid))
    assert [last_status(found, uid) for uid in ("a", "b", "c")] == [None, {}, {}]


def test_replicas_are_read_from_the_runtime_where_there_is_one() -> None:
    assert REPLICAS == {"node": 1, "launcher": 1, "workers": 2}
    assert replicas_in(None) == replicas_in({"spec": {"template": None}}) == {}
