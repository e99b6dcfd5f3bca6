"""Computes a TrainJob's status from the observed objects and the last failure. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kftrainer.api import names
from kftrainer.api.trainjob import JobStatus, NodesStatus, TrainJob, TrainJobStatus
from kftrainer.controllers.trainjob.failures import Failure
from kftrainer.controllers.trainjob.messages import condition_message, same_message
from kftrainer.controllers.trainjob.state import State, state_of
from kftrainer.kube.objects.meta import Condition, new_condition
from kftrainer.runtime.framework.extension_points import Observed
from kftrainer.runtime.info import NO_TRAINER, is_finished, recorded_job_set

OWN_CONDITIONS = (
    names.CONDITION_SUSPENDED,
    names.CONDITION_COMPLETE,
    names.CONDITION_FAILED,
    names.CONDITION_BLOCKED,
)
NO_STATUS = TrainJobStatus()
JOB_SET_SUSPENDED_MESSAGE = "JobSet is suspended although the TrainJob is not"


@dataclass(frozen=True, slots=True)
class Status:
    """The part of a status that this controller owns; other condition types are excluded."""

    conditions: Sequence[Condition] = ()
    jobs: Sequence[JobStatus] = ()
    job_set: str | None = None  # UID of the JobSet
    runtime_revision: str | None = None  # recorded together with the JobSet
    state: State | None = None
    nodes: NodesStatus | None = None

    @property
    def has_content(self) -> bool:
        """Whether there are conditions or jobs; the other fields alone are not worth a write."""
        return bool(self.conditions or self.jobs)

    def dump(self) -> dict[str, Any]:
        """Return the status to apply, without empty lists.

        Clients that read the last condition fail if the list exists and is empty.
        """
        fields: dict[str, Any] = {
            "conditions": [each.dump() for each in self.conditions],
            "jobsStatus": [each.dump() for each in self.jobs],
            "jobSet": {"uid": self.job_set} if self.job_set else None,
            "runtimeRevision": self.runtime_revision,
            "state": self.state,
            "nodes": self.nodes.dump() if self.nodes else None,
        }
        return {field: value for field, value in fields.items() if value}


def removal_of_empty_conditions(job: TrainJob) -> Mapping[str, Any] | None:
    """Return a merge patch that removes an empty list of conditions, if there is one.

    Older releases wrote it. No field manager owns an empty list, so an apply does not remove it.
    """
    status = job.status
    if status is None or status.conditions is None or status.conditions:
        return None
    empty = ("conditions",) if status.jobs_status else ("conditions", "jobsStatus")
    remains = status.jobs_status or status.job_set or status.runtime_revision or status.nodes
    return {
        "metadata": {"resourceVersion": job.metadata.resource_version},
        "status": dict.fromkeys(empty) if remains else None,
    }


def present_status(job: TrainJob) -> Status:
    """Return the part of the TrainJob's current status that this controller owns."""
    status = job.status or NO_STATUS
    own = tuple(each for each in status.conditions or () if each.type in OWN_CONDITIONS)
    return Status(
        own,
        tuple(status.jobs_status or ()),
        recorded_job_set(job) or None,
        status.runtime_revision,
        status.state,
        status.nodes,
    )


def blocked_message(job: TrainJob, reason: str) -> str | None:
    """Return the message of the condition Blocked if it has this reason."""
    conditions = present_status(job).conditions
    found = (each for each in conditions if each.type == names.CONDITION_BLOCKED)
    return next((each.message for each in found if each.reason == reason), None)


def is_reported(job: TrainJob, failure: Failure) -> bool:
    """Whether the status already reports this failure, so that an Event would only repeat it."""
    return any(
        each.reason == failure.reason and same_message(each.message, failure.message)
        for each in present_status(job).conditions
        if each.type in (names.CONDITION_BLOCKED, names.CONDITION_FAILED)
    )


def with_conditions(job: TrainJob, conditions: Sequence[Condition]) -> TrainJob:
    """Return the TrainJob as it will be when the conditions are written."""
    status = (job.status or NO_STATUS).model_copy(update={"conditions": list(conditions)})
    return job.model_copy(update={"status": status})


def with_summary(status: Status, job: TrainJob, nodes: NodesStatus | None) -> Status:
    """Return the status with the state and the nodes.

    Without nodes, those of the TrainJob's present status are kept, or else none is ready.
    """
    present = job.status or NO_STATUS
    nodes = nodes or present.nodes or _requested_nodes(job)
    state = state_of(status.conditions, status.jobs, nodes, present.state, present.nodes)
    return replace(status, state=state, nodes=nodes)


def _requested_nodes(job: TrainJob) -> NodesStatus | None:
    desired = (job.spec.trainer or NO_TRAINER).num_nodes
    return None if desired is None else NodesStatus.model_construct(ready=0, desired=desired)


def stopped(job: TrainJob) -> tuple[Observed, NodesStatus | None]:
    """Return the status of a JobSet that was deleted while it ran: none of its Jobs is active."""
    status = job.status or NO_STATUS
    rows = [row.model_copy(update={"active": 0, "ready": 0}) for row in status.jobs_status or ()]
    nodes = status.nodes and status.nodes.model_copy(update={"ready": 0})
    return Observed(jobs=rows), nodes


def next_status(
    job: TrainJob,
    observed: Observed | None,
    failure: Failure | None,
    now: datetime,
    *,
    is_observable: bool = True,
) -> Status:
    """Return the part of the status that this controller should write.

    The conditions `Complete`, `Failed` and `Suspended` of a finished TrainJob never change,
    whatever happens to its objects. While the JobSet cannot be read, `Suspended` is not changed. A
    failure that is not visible to users leaves `Blocked` unchanged.
    """
    present = present_status(job)
    jobs = present.jobs if observed is None else tuple(observed.jobs)
    if is_finished(job):
        conditions = _without(present.conditions, names.CONDITION_BLOCKED)
        return replace(present, conditions=conditions, jobs=jobs)
    seen = {each.type: each for each in present.conditions}
    wanted: dict[str, Condition | None] = {
        names.CONDITION_SUSPENDED: (
            _suspension(job, seen.get(names.CONDITION_SUSPENDED), observed, now)
            if is_observable
            else seen.get(names.CONDITION_SUSPENDED)
        ),
        names.CONDITION_FAILED: _unsupported(failure, now),
        names.CONDITION_BLOCKED: _blocked(failure, seen.get(names.CONDITION_BLOCKED), now),
        **{each.type: each for each in (observed.conditions if observed else ())},
    }
    return replace(present, conditions=_merged(present.conditions, wanted), jobs=jobs)


def _suspension(
    job: TrainJob, present: Condition | None, observed: Observed | None, now: datetime
) -> Condition | None:
    """Return the condition Suspended from the state of the live JobSet and the TrainJob's spec."""
    live = job.spec.suspend if observed is None else observed.suspended
    live = job.spec.suspend if live is None else live
    was_suspended = present is not None and present.status == "True"
    if job.spec.suspend:
        if live:
            return _suspended(names.REASON_SUSPENDED, "TrainJob is suspended", now)
        return _suspending(now) if was_suspended else present
    if live:
        return _suspended(names.REASON_JOB_SET_SUSPENDED, JOB_SET_SUSPENDED_MESSAGE, now)
    if was_suspended:
        return _suspended(names.REASON_RESUMED, "TrainJob is resumed", now, "False")
    return present


def _suspending(now: datetime) -> Condition:
    return _suspended(names.REASON_SUSPENDING, "JobSet is not suspended yet", now, "False")


def _suspended(reason: str, message: str, now: datetime, status: str = "True") -> Condition:
    return new_condition(names.CONDITION_SUSPENDED, reason, message, now, status)


def _unsupported(failure: Failure | None, now: datetime) -> Condition | None:
    if failure is None or failure.reason != names.REASON_RUNTIME_NOT_SUPPORTED:
        return None
    message = condition_message(failure.message)
    return new_condition(names.CONDITION_FAILED, failure.reason, message, now)


def _blocked(failure: Failure | None, present: Condition | None, now: datetime) -> Condition | None:
    if failure is None or failure.reason == names.REASON_RUNTIME_NOT_SUPPORTED:
        return None
    reported = failure if failure.user_visible else present
    if reported is None:
        return None
    message = condition_message(reported.message)
    return new_condition(names.CONDITION_BLOCKED, reported.reason, message, now)


def _merged(
    present: Iterable[Condition], wanted: Mapping[str, Condition | None]
) -> tuple[Condition, ...]:
    """Return the wanted conditions; existing ones keep their position."""
    existing = {each.type: each for each in present}
    order = dict.fromkeys((*existing, *wanted))
    found = ((kind, wanted.get(kind, existing.get(kind))) for kind in order)
    return tuple(_since(existing.get(kind), each) for kind, each in found if each is not None)


def _since(present: Condition | None, wanted: Condition) -> Condition:
    """Return the wanted condition, with the present transition time if its status is unchanged.

    A message that has the same meaning as the present one is not changed.
    """
    if present is None or present.status != wanted.status:
        return wanted
    kept = {**wanted.dump(), "lastTransitionTime": present.last_transition_time}
    if present.reason == wanted.reason and same_message(present.message, wanted.message):
        kept["message"] = present.message
    return Condition.parse(kept)


def _without(conditions: Iterable[Condition], kind: str) -> tuple[Condition, ...]:
    return tuple(each for each in conditions if each.type != kind)
