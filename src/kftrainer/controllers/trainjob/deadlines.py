"""Decides when a TrainJob has run longer than its `activeDeadlineSeconds`.

The time counts from the creation of the TrainJob or from its last resume, as in Kubeflow Trainer
and as for Jobs. While the manager runs, it is measured by the monotonic clock, so that a wall clock
that jumps does not end a training. The reconciler deletes the JobSet.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from kftrainer.api import names
from kftrainer.api.trainjob import TrainJob, TrainJobStatus
from kftrainer.kube.objects.meta import Condition, new_condition
from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.manager.clock import Clock
from kftrainer.runtime.info import is_finished, key_of_job

MESSAGE = "TrainJob exceeded its active deadline"
EVENT_MESSAGE = "TrainJob exceeded its active deadline of {} s: its JobSet is deleted"
SHORTEST_WAIT = 1.0  # seconds until a deadline is checked again
NO_STATUS = TrainJobStatus()


@dataclass(frozen=True, slots=True)
class _Measured:
    """Time that had elapsed when a TrainJob was first seen to be active."""

    uid: str | None
    start: datetime
    elapsed: float  # seconds
    seen_at: float  # monotonic


class Deadlines:
    """The remaining times of active TrainJobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._measured: dict[Request, _Measured] = {}

    def remaining(self, job: TrainJob) -> float | None:
        """Return the seconds until the deadline, at most 0 if it has passed; None without one."""
        request, start = key_of_job(job), active_since(job)
        if start is None or job.spec.active_deadline_seconds is None:
            self.forget(request)
            return None
        measured = self._measured.get(request)
        if measured is None or (measured.uid, measured.start) != (job.metadata.uid, start):
            elapsed = max(0.0, (self._clock.now() - start).total_seconds())
            measured = _Measured(job.metadata.uid, start, elapsed, self._clock.monotonic())
            self._measured[request] = measured
        elapsed = measured.elapsed + self._clock.monotonic() - measured.seen_at
        return job.spec.active_deadline_seconds - elapsed

    def correct(self, job: TrainJob, remaining: float) -> None:
        """Set the seconds until the deadline, as measured by the clock of the API server."""
        request = key_of_job(job)
        if (measured := self._measured.get(request)) is not None:
            elapsed = (job.spec.active_deadline_seconds or 0) - remaining
            seen_at = self._clock.monotonic()
            self._measured[request] = replace(measured, elapsed=elapsed, seen_at=seen_at)

    def forget(self, request: Request) -> None:
        """Drop a TrainJob that was deleted, finished or suspended."""
        self._measured.pop(request, None)


def remaining_at(job: TrainJob, now: datetime) -> float | None:
    """Return the seconds until the deadline at this time; None without a deadline."""
    start = active_since(job)
    if start is None or job.spec.active_deadline_seconds is None:
        return None
    return job.spec.active_deadline_seconds - (now - start).total_seconds()


def active_since(job: TrainJob) -> datetime | None:
    """Return since when the TrainJob is active; None if it is suspended or has finished.

    Time during which only the JobSet is suspended, such as by a queue, does not count either.
    """
    if job.spec.suspend or is_finished(job):
        return None
    conditions = (job.status or NO_STATUS).conditions or ()
    suspended = next((each for each in conditions if each.type == names.CONDITION_SUSPENDED), None)
    if suspended is None:
        return _time(job.metadata.creation_timestamp)
    return None if suspended.status == "True" else _time(suspended.last_transition_time)


def deadline_condition(now: datetime) -> Condition:
    """Return the condition of a TrainJob whose deadline has passed."""
    return new_condition(names.CONDITION_FAILED, names.REASON_DEADLINE_EXCEEDED, MESSAGE, now)


def failed_by_deadline(job: TrainJob) -> bool:
    """Whether the status reports that the deadline has passed."""
    conditions = (job.status or NO_STATUS).conditions or ()
    return any(
        each.type == names.CONDITION_FAILED
        and each.status == "True"
        and each.reason == names.REASON_DEADLINE_EXCEEDED
        for each in conditions
    )


def _time(text: str | None) -> datetime | None:
    """Parse a timestamp; None if it is missing or invalid, as clients can write any status."""
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
