"""Which changes of a TrainJob result from the manager's own status writes."""

from typing import Any

import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.status import Status, present_status
from kftrainer.controllers.trainjob.status_writer import OwnStatusWrites
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.cache.cached_object import CachedObject
from kftrainer.machinery.controller.events import ObjectEvent
from tests.support.objects import Object, train_job

KEY = ObjectKey("team", "job")
ROW = {"name": "node", "ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}


def condition(message: str, kind: str = "Blocked", at: str = "2026-01-01T00:00:00Z") -> Object:
    fields = {"status": "True", "reason": "R", "message": message}
    return {"type": kind, "lastTransitionTime": at, **fields}


def job(version: int, *conditions: Object, **metadata: Any) -> CachedObject[TrainJob]:
    manifest = train_job()
    own = {"namespace": "team", "uid": "u", "generation": 1, "resourceVersion": str(version)}
    manifest["metadata"] |= {**own, **metadata}
    manifest["status"] = {"conditions": list(conditions), "jobsStatus": [ROW]}
    return CachedObject(KEY, str(version), manifest, TrainJob.parse)


def status_of(entry: CachedObject[TrainJob]) -> Status:
    return present_status(entry.object)


def change(
    old: CachedObject[TrainJob] | None, new: CachedObject[TrainJob] | None
) -> ObjectEvent[TrainJob]:
    return ObjectEvent(KEY, old, new)


BEFORE, FIRST, SECOND = job(1), job(2, condition("first")), job(3, condition("second"))


def test_event_before_the_response_is_own() -> None:
    writes = OwnStatusWrites()
    writes.started(KEY, status_of(FIRST))
    assert not writes.is_from_others(change(BEFORE, FIRST))


def test_event_after_the_response_is_own() -> None:
    writes = OwnStatusWrites()
    writes.started(KEY, status_of(FIRST))
    writes.confirmed(KEY, "2")
    assert not writes.is_from_others(change(BEFORE, FIRST))


def test_late_events_of_several_writes_are_own() -> None:
    writes = OwnStatusWrites()
    for entry in (FIRST, SECOND):
        writes.started(KEY, status_of(entry))
        writes.confirmed(KEY, entry.resource_version)
    assert not writes.is_from_others(change(BEFORE, FIRST))
    assert not writes.is_from_others(change(FIRST, SECOND))


def test_events_of_writes_without_response_are_own() -> None:
    writes = OwnStatusWrites()
    for entry in (FIRST, SECOND):
        writes.started(KEY, status_of(entry))
    assert not writes.is_from_others(change(BEFORE, FIRST))
    assert not writes.is_from_others(change(FIRST, SECOND))


def test_conditions_of_others_and_transition_times_do_not_count() -> None:
    writes = OwnStatusWrites()
    writes.started(KEY, status_of(FIRST))
    writes.confirmed(KEY, "2")
    later = condition("first", at="2026-01-02T00:00:00Z")
    changed = job(9, condition("theirs", "example.org/Warm"), later)
    assert not writes.is_from_others(change(FIRST, changed))


def written() -> OwnStatusWrites:
    writes = OwnStatusWrites()
    writes.started(KEY, status_of(FIRST))
    writes.confirmed(KEY, "2")
    return writes


OTHERS = {
    "added": change(None, FIRST),
    "deleted": change(FIRST, None),
    "initial": ObjectEvent(KEY, FIRST, FIRST, initial=True),
    "status": change(FIRST, job(3, condition("tampered"))),
    "condition-removed": change(FIRST, job(3)),
    "not-a-trainjob": change(FIRST, job(3, {"type": "Blocked"})),
    **{
        field: change(BEFORE, job(2, condition("first"), **{field: value}))
        for field, value in {
            "generation": 2,
            "uid": "v",
            "labels": {"a": "b"},
            "annotations": {"a": "b"},
            "finalizers": ["a"],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        }.items()
    },
}


@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS)
def test_other_changes_are_from_others(changed: ObjectEvent[TrainJob]) -> None:
    assert written().is_from_others(changed)


def test_everything_is_from_others_before_the_first_write_and_after_deletion() -> None:
    assert OwnStatusWrites().is_from_others(change(BEFORE, FIRST))
    writes = written()
    writes.is_from_others(change(FIRST, None))
    assert writes.is_from_others(change(BEFORE, FIRST))


def test_status_was_written_once_it_is_confirmed() -> None:
    writes = OwnStatusWrites()
    assert not writes.was_written(KEY, status_of(FIRST))
    writes.started(KEY, status_of(FIRST))
    assert not writes.was_written(KEY, status_of(FIRST)), "it may not have been stored"
    writes.confirmed(KEY, "2")
    assert writes.was_written(KEY, status_of(FIRST))
    assert not writes.was_written(KEY, status_of(SECOND))
