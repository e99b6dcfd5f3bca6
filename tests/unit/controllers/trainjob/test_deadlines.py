from datetime import UTC, datetime, timedelta

import pytest

from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.deadlines import (
    Deadlines,
    active_since,
    failed_by_deadline,
    remaining_at,
)
from kftrainer.kube.objects.meta import rfc3339
from kftrainer.runtime.info import key_of_job
from tests.support.fake_clock import START, FakeClock
from tests.support.objects import Object, train_job


class JumpingClock(FakeClock):
    """A clock whose wall time can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = timedelta()

    def now(self) -> datetime:
        return super().now() + self.offset


def condition(kind: str, status: str, at: str, reason: str = "Because") -> Object:
    fields = {"type": kind, "status": status, "reason": reason, "message": ""}
    return {**fields, "lastTransitionTime": at}


def job(
    *conditions: Object, deadline: int | None = 60, suspend: bool = False, uid: str = "1"
) -> TrainJob:
    spec = {} if deadline is None else {"activeDeadlineSeconds": deadline}
    document = train_job("demo", suspend=suspend, **spec)
    document["metadata"] |= {"uid": uid, "creationTimestamp": rfc3339(START)}
    document["status"] = {"conditions": list(conditions)}
    return TrainJob.parse(document)


LATER = START + timedelta(hours=1)
RESUMED = condition("Suspended", "False", rfc3339(LATER), "Resumed")


@pytest.mark.parametrize(
    ("found", "since"),
    [
        (job(), START),
        (job(RESUMED), LATER),
        (job(RESUMED, suspend=True), None),
        (job(condition("Suspended", "True", rfc3339(START), "JobSetSuspended")), None),
        (job(condition("Complete", "True", rfc3339(START))), None),
        (job(condition("Failed", "True", rfc3339(START))), None),
        (job(condition("Suspended", "False", "not a time")), None),
        (job(condition("Suspended", "False", "2026-01-01T00:00:00")), None),
    ],
)
def test_time_counts_from_creation_or_resume(found: TrainJob, since: datetime | None) -> None:
    assert active_since(found) == since


def test_remaining_time_is_none_without_deadline() -> None:
    assert Deadlines(FakeClock()).remaining(job(deadline=None)) is None
    assert remaining_at(job(deadline=None), LATER) is None


async def test_remaining_time_decreases_with_the_clock() -> None:
    clock = FakeClock()
    deadlines = Deadlines(clock)
    assert deadlines.remaining(job()) == 60
    await clock.advance(45)
    assert deadlines.remaining(job()) == 15
    await clock.advance(45)
    assert deadlines.remaining(job()) == -30


async def test_manager_that_starts_later_continues_from_the_stored_time() -> None:
    clock = FakeClock()
    await clock.advance(50)
    assert Deadlines(clock).remaining(job()) == 10


@pytest.mark.parametrize("jump", [timedelta(days=1), timedelta(days=-1)])
async def test_wall_clock_that_jumps_does_not_change_the_remaining_time(jump: timedelta) -> None:
    clock = JumpingClock()
    deadlines = Deadlines(clock)
    deadlines.remaining(job())
    clock.offset = jump
    await clock.advance(20)
    assert deadlines.remaining(job()) == 40


async def test_clock_behind_that_of_the_api_server_does_not_extend_the_deadline_at_start() -> None:
    clock = JumpingClock()
    clock.offset = timedelta(days=-1)
    assert Deadlines(clock).remaining(job()) == 60


async def test_corrected_time_replaces_the_measured_one() -> None:
    clock = JumpingClock()
    clock.offset = timedelta(days=1)
    deadlines = Deadlines(clock)
    assert (deadlines.remaining(job()) or 0) < 0
    deadlines.correct(job(), 55)
    await clock.advance(5)
    assert deadlines.remaining(job()) == 50


async def test_resume_and_recreation_restart_the_time() -> None:
    clock = FakeClock()
    deadlines = Deadlines(clock)
    deadlines.remaining(job())
    await clock.advance(3600)
    assert deadlines.remaining(job(RESUMED)) == 60
    assert deadlines.remaining(job(RESUMED, suspend=True)) is None
    assert deadlines.remaining(job(uid="2")) == 60 - 3600


def test_forgotten_trainjob_needs_no_memory() -> None:
    deadlines = Deadlines(FakeClock())
    deadlines.remaining(job())
    deadlines.forget(key_of_job(job()))
    assert not deadlines._measured


def test_only_the_reason_deadline_exceeded_is_a_missed_deadline() -> None:
    at = rfc3339(datetime(2026, 1, 1, tzinfo=UTC))
    assert failed_by_deadline(job(condition("Failed", "True", at, "DeadlineExceeded")))
    assert not failed_by_deadline(job(condition("Failed", "True", at, "FailedJobs")))
    assert not failed_by_deadline(job())
