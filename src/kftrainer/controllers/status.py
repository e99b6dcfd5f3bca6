"""What a TrainJob's status should say: pure, from what was seen and what went wrong."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kftrainer.api import names
from kftrainer.api.trainjob import JobStatus, TrainJob, TrainJobStatus
from kftrainer.kube.meta import Condition
from kftrainer.runtime.phases import Observed

OURS = (
    names.CONDITION_SUSPENDED,
    names.CONDITION_COMPLETE,
    names.CONDITION_FAILED,
    names.CONDITION_BLOCKED,
)
LONGEST_MESSAGE = 1024
NO_STATUS = TrainJobStatus()


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a TrainJob makes no progress."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Status:
    """Our part of a status: conditions of other types are other people's."""

    conditions: Sequence[Condition] = ()
    jobs: Sequence[JobStatus] = ()

    def dump(self) -> dict[str, Any]:
        """As it is applied."""
        return {
            "conditions": [each.dump() for each in self.conditions],
            "jobsStatus": [each.dump() for each in self.jobs],
        }


def present_status(job: TrainJob) -> Status:
    """Our part of the status that the TrainJob has."""
    status = job.status or NO_STATUS
    ours = tuple(each for each in status.conditions or () if each.type in OURS)
    return Status(ours, tuple(status.jobs_status or ()))


def next_status(
    job: TrainJob, observed: Observed | None, trouble: Trouble | None, now: datetime
) -> Status:
    """Our part of the status that the TrainJob should have.

    What has ended has ended: its conditions stay as they are, whatever becomes of its objects.
    """
    present = present_status(job)
    jobs = present.jobs if observed is None else tuple(observed.jobs)
    if is_finished(job):
        return Status(_without(present.conditions, names.CONDITION_BLOCKED), jobs)
    seen = {each.type: each for each in present.conditions}
    wanted: dict[str, Condition | None] = {
        names.CONDITION_SUSPENDED: _suspension(job, seen.get(names.CONDITION_SUSPENDED), now),
        names.CONDITION_FAILED: _unsupported(trouble, now),
        names.CONDITION_BLOCKED: _blockage(trouble, now),
        **{each.type: each for each in (observed.conditions if observed else ())},
    }
    return Status(_merged(present.conditions, wanted), jobs)


def is_finished(job: TrainJob) -> bool:
    """Whether the training has ended, well or not; a runtime of no known kind never began it."""
    return any(
        condition.status == "True" and condition.reason != names.REASON_RUNTIME_NOT_SUPPORTED
        for condition in (job.status or NO_STATUS).conditions or ()
        if condition.type in (names.CONDITION_COMPLETE, names.CONDITION_FAILED)
    )


def _suspension(job: TrainJob, present: Condition | None, now: datetime) -> Condition | None:
    """Suspended jobs say so; those that go on say that they were suspended."""
    if job.spec.suspend:
        return _condition(
            names.CONDITION_SUSPENDED, names.REASON_SUSPENDED, "TrainJob is suspended", now
        )
    if present is not None and present.status == "True":
        return _condition(
            names.CONDITION_SUSPENDED, names.REASON_RESUMED, "TrainJob is resumed", now, "False"
        )
    return present


def _unsupported(trouble: Trouble | None, now: datetime) -> Condition | None:
    if trouble is None or trouble.reason != names.REASON_RUNTIME_NOT_SUPPORTED:
        return None
    return _condition(names.CONDITION_FAILED, trouble.reason, trouble.message, now)


def _blockage(trouble: Trouble | None, now: datetime) -> Condition | None:
    if trouble is None or trouble.reason == names.REASON_RUNTIME_NOT_SUPPORTED:
        return None
    message = trouble.message
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[: LONGEST_MESSAGE - 4]} ..."
    return _condition(names.CONDITION_BLOCKED, trouble.reason, message, now)


def _condition(
    kind: str, reason: str, message: str, now: datetime, status: str = "True"
) -> Condition:
    return Condition.parse(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    )


def _merged(
    present: Iterable[Condition], wanted: Mapping[str, Condition | None]
) -> tuple[Condition, ...]:
    """The wanted conditions, those that are there already in their places."""
    there = {each.type: each for each in present}
    order = dict.fromkeys((*there, *wanted))
    found = ((kind, wanted.get(kind, there.get(kind))) for kind in order)
    return tuple(_since(there.get(kind), each) for kind, each in found if each is not None)


def _since(present: Condition | None, wanted: Condition) -> Condition:
    """The wanted condition, with the time at which it came to be as it is."""
    if present is None or present.status != wanted.status:
        return wanted
    kept = {**wanted.dump(), "lastTransitionTime": present.last_transition_time}
    return Condition.parse(kept)


def _without(conditions: Iterable[Condition], kind: str) -> tuple[Condition, ...]:
    return tuple(each for each in conditions if each.type != kind)
