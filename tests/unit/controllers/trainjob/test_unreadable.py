from kftrainer.controllers.trainjob.unreadable import (
    UnreadableTrainJobError,
    planning_error,
    readable_part,
)
from kftrainer.kube.objects.model import Problem
from tests.support.objects import Object, train_job

COMPLETE = {
    "type": "Complete",
    "status": "True",
    "reason": "AllJobsCompleted",
    "message": "",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}


def stored(**spec: object) -> Object:
    manifest = train_job("train", **spec)
    manifest["metadata"] = {**manifest["metadata"], "namespace": "team", "uid": "u1"}
    return manifest


def test_valid_trainjob_is_returned_whole() -> None:
    job, problems = readable_part(stored(trainer={"numNodes": 2}))
    assert job.dump() == stored(trainer={"numNodes": 2})
    assert problems == ()


def test_trainjob_beyond_a_limit_is_read_as_far_as_it_takes_to_suspend_it() -> None:
    manifest = stored(trainer={"env": [{"name": "A"}] * 513}, suspend=True)
    labels = {"kueue.x-k8s.io/queue-name": "q", **{f"a{n}": "b" for n in range(300)}}
    manifest["metadata"] |= {"labels": labels, "annotations": {"a": "x" * 1000}}
    manifest["status"] = {"conditions": [COMPLETE] * 20}
    job, problems = readable_part(manifest)
    assert (job.spec.suspend, job.spec.trainer, job.metadata.uid) == (True, None, "u1")
    assert job.metadata.labels == {"kueue.x-k8s.io/queue-name": "q"}
    assert job.metadata.annotations is None
    error = planning_error(problems)
    assert error.reason == "TrainJobTooLarge"
    assert str(error).startswith(
        "the TrainJob exceeds a limit: metadata.labels: Too many: 301: must have at most 256"
    )


def test_invalid_fields_are_left_out_and_named() -> None:
    manifest = stored(trainer={"numNodes": "2"}, suspend=True)
    manifest["status"] = {"conditions": [COMPLETE, {"type": "Odd"}]}
    job, problems = readable_part(manifest)
    assert (job.spec.suspend, job.spec.trainer) == (True, None)
    assert job.spec.runtime_ref.dump() == manifest["spec"]["runtimeRef"]
    assert job.status is not None
    assert [each.dump() for each in job.status.conditions or ()] == [COMPLETE]
    assert "spec.trainer.numNodes" in {each.path for each in problems}


def test_status_of_an_invalid_trainjob_is_kept() -> None:
    """A field that is not read would be removed by the next apply of the status."""
    manifest = stored(trainer={"numNodes": "2"})
    manifest["status"] = {
        "conditions": [COMPLETE],
        "jobsStatus": [],
        "jobSet": {"uid": "u2"},
        "runtimeRevision": "torch-1",
        "state": "Running",
        "nodes": {"ready": 1, "desired": 2},
    }
    job, _ = readable_part(manifest)
    assert job.dump()["status"] == manifest["status"]


def test_field_that_decides_about_suspension_may_be_invalid_too() -> None:
    job, problems = readable_part(stored(suspend="yes"))
    assert job.spec.suspend is False
    assert [each.path for each in problems] == ["spec.suspend"]


def test_message_names_a_few_problems() -> None:
    problems = [Problem(f"spec.f{number}", "must be a string") for number in range(7)]
    text = str(UnreadableTrainJobError(problems))
    assert "spec.f4: must be a string; and 2 more" in text
