import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.jobset.identity import (
    NONE,
    Ownership,
    OwnJobSets,
    ownership,
    recorded_in,
    with_job_set,
)
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.info import own_job_set, recorded_job_set
from tests.support.objects import Object, train_job

ROW = {"name": "node", "ready": 0, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
BLOCKED = {
    "type": "Blocked",
    "status": "True",
    "reason": "RuntimeNotFound",
    "message": "not found",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}


def job(**status: object) -> TrainJob:
    document = train_job("train")
    document["metadata"] = {**document["metadata"], "namespace": "team", "uid": "job-uid"}
    return TrainJob.parse({**document, "status": status} if status else document)


def job_set(uid: str) -> Object:
    owner = {"kind": "TrainJob", "uid": "job-uid", "controller": True}
    metadata = {"name": "train", "namespace": "team", "uid": uid, "ownerReferences": [owner]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata}


@pytest.mark.parametrize(
    ("status", "is_uncertain", "expected"),
    [
        ({"jobSet": {"uid": "live"}}, False, "own"),
        ({"jobSet": {"uid": "live"}}, True, "own"),
        ({"jobSet": {"uid": "earlier"}}, False, "foreign"),
        ({"jobSet": {"uid": "earlier"}, "jobsStatus": [ROW]}, False, "foreign"),
        ({"jobSet": {"uid": "earlier"}}, True, "verify"),
        ({"jobsStatus": [ROW]}, False, "adopt"),
        ({"conditions": [BLOCKED]}, False, "verify"),
        ({}, False, "verify"),
    ],
)
def test_ownership_depends_on_the_recorded_uid(
    status: Object, is_uncertain: bool, expected: Ownership
) -> None:
    assert ownership(job(**status), "live", is_uncertain=is_uncertain) == expected


@pytest.mark.parametrize(("recorded", "is_own"), [("live", True), ("other", False), (NONE, False)])
def test_own_job_set_with_another_uid_than_recorded_is_not_found(
    recorded: str, is_own: bool
) -> None:
    live = job_set("live")
    assert own_job_set(with_job_set(job(), recorded), GivenObjects([live])) == (
        live if is_own else None
    )


def test_uid_is_kept_until_the_stored_status_records_it() -> None:
    own, key = OwnJobSets(), ObjectKey("team", "train")
    own.add(job(), "new")
    assert recorded_job_set(own.with_newest(job(jobSet={"uid": "old"}))) == "new"
    assert own.newest(key, None) == "new"
    own.drop_if_stored(job(jobSet={"uid": "old"}))
    assert own.newest(key, None) == "new"
    own.drop_if_stored(job(jobSet={"uid": "new"}))
    assert own.newest(key, None) is None
    assert recorded_job_set(own.with_newest(job())) is None


def test_uid_of_a_deleted_trainjob_is_not_used_for_its_successor() -> None:
    own = OwnJobSets()
    own.add(job(), "new")
    successor = job().model_copy(
        update={"metadata": job().metadata.model_copy(update={"uid": "another"})}
    )
    assert recorded_job_set(own.with_newest(successor)) is None
    own.forget(ObjectKey("team", "train"))
    assert recorded_job_set(own.with_newest(job())) is None


def test_create_request_is_uncertain_until_its_result_is_known() -> None:
    own = OwnJobSets()
    own.create_started(job())
    assert own.is_uncertain(job())
    own.create_finished(job())
    assert not own.is_uncertain(job())


@pytest.mark.parametrize(
    "manifest",
    [None, {}, {"status": None}, {"status": {"jobSet": "x"}}, {"status": {"jobSet": {}}}],
)
def test_recorded_in_tolerates_a_status_without_record(manifest: Object | None) -> None:
    assert recorded_in(manifest) is None
