import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import NO_OBJECTS
from kftrainer.runtime.info import is_finished
from kftrainer.runtime.validation.updates import change_errors
from tests.support.objects import train_job

NOT_SUPPORTED = "TrainingRuntimeNotSupported"


def job(kind: str, status: str, reason: str, image: str = "a") -> TrainJob:
    condition = {"type": kind, "status": status, "reason": reason, "message": ""}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    manifest = train_job("demo", trainer={"image": image})
    return TrainJob.parse({**manifest, "status": {"conditions": [condition]}})


@pytest.mark.parametrize(
    ("kind", "status", "reason", "expected"),
    [
        ("Complete", "True", "AllJobsCompleted", True),
        ("Failed", "True", "FailedJobs", True),
        ("Complete", "False", "Any", False),
        ("Failed", "Unknown", "Any", False),
        ("Suspended", "True", "Suspended", False),
        ("Failed", "True", NOT_SUPPORTED, False),
    ],
)
def test_is_finished_by_condition(kind: str, status: str, reason: str, expected: bool) -> None:
    assert is_finished(job(kind, status, reason)) is expected
    assert not is_finished(TrainJob.parse(train_job("demo")))


@pytest.mark.parametrize(("reason", "expected"), [("FailedJobs", 1), (NOT_SUPPORTED, 0)])
def test_spec_of_a_training_that_never_began_may_change(reason: str, expected: int) -> None:
    old, new = (job("Failed", "True", reason, image) for image in ("a", "b"))
    assert len([*change_errors(old, new, NO_OBJECTS)]) == expected
