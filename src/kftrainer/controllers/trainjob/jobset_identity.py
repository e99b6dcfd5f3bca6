"""Decides by UID whether the live JobSet is the TrainJob's own.

Every client that may write JobSets can set owner references and annotations, but no client can
choose a UID. The UID of the JobSet that this controller created is recorded in the TrainJob's
status.
"""

from dataclasses import dataclass
from typing import Literal

from kftrainer.api.trainjob import JobSetReference, TrainJob, TrainJobStatus
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.controller.reconcile import Request
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.info import key_of_job, recorded_job_set

NO_STATUS = TrainJobStatus()
NONE = ""  # the UID that a TrainJob records in memory while no live JobSet is its own

Ownership = Literal["own", "adopt", "verify", "foreign"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A TrainJob with the UID of its own JobSet, or the error if the live one is not its own."""

    job: TrainJob
    failure: PlanningError | None = None


def ownership(job: TrainJob, live_uid: str, *, is_uncertain: bool) -> Ownership:
    """Decide whether a JobSet whose owner reference names the TrainJob is its own.

    If no UID is recorded but the TrainJob has `jobsStatus`, an earlier release or Kubeflow Trainer
    has observed the JobSet, and it is adopted. If that is missing too, or the response to our own
    create request was lost, the JobSet is verified: it is adopted if it equals the JobSet that
    would be created.
    """
    recorded = recorded_job_set(job)
    if recorded == live_uid:
        return "own"
    if is_uncertain:
        return "verify"
    if recorded is not None:
        return "foreign"
    return "adopt" if job.status is not None and job.status.jobs_status else "verify"


def with_job_set(job: TrainJob, uid: str) -> TrainJob:
    """Return the TrainJob with this UID recorded as that of its JobSet."""
    reference = JobSetReference.model_construct(uid=uid)
    status = (job.status or NO_STATUS).model_copy(update={"job_set": reference})
    return job.model_copy(update={"status": status})


def recorded_in(manifest: Manifest | None) -> str | None:
    """Return the UID that the stored status of a TrainJob records."""
    found: object = manifest
    for field in ("status", "jobSet", "uid"):
        found = found.get(field) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


class OwnJobSets:
    """UIDs of created or adopted JobSets that the stored status may not record yet."""

    def __init__(self) -> None:
        self._uids: dict[Request, tuple[str | None, str]] = {}  # of the TrainJob and its JobSet
        self._uncertain: set[Request] = set()

    def creating(self, job: TrainJob) -> None:
        """Register a create request before it is sent."""
        self._uncertain.add(_key(job))

    def answered(self, job: TrainJob) -> None:
        """Register that the result of the create request is known."""
        self._uncertain.discard(_key(job))

    def add(self, job: TrainJob, uid: str) -> None:
        """Register the JobSet that was created or adopted."""
        self._uids[_key(job)] = job.metadata.uid, uid
        self._uncertain.discard(_key(job))

    def forget(self, request: Request) -> None:
        """Drop a TrainJob that was deleted."""
        self._uids.pop(request, None)
        self._uncertain.discard(request)

    def is_uncertain(self, job: TrainJob) -> bool:
        """Whether a create request may have succeeded although its response was lost."""
        return _key(job) in self._uncertain

    def recorded_on(self, job: TrainJob) -> TrainJob:
        """Return the TrainJob with the newest known UID of its JobSet."""
        owner, uid = self._uids.get(_key(job), (None, NONE))
        if owner is None or owner != job.metadata.uid:
            return job
        return with_job_set(job, uid)

    def stored(self, job: TrainJob) -> None:
        """Drop the UID if the stored status of the TrainJob records it."""
        if self._uids.get(_key(job)) == (job.metadata.uid, recorded_job_set(job)):
            del self._uids[_key(job)]

    def recorded(self, request: Request, manifest: Manifest | None) -> str | None:
        """Return the newest known UID for a TrainJob, given its stored manifest."""
        if request in self._uids:
            return self._uids[request][1]
        return recorded_in(manifest)


def _key(job: TrainJob) -> Request:
    return key_of_job(job)
