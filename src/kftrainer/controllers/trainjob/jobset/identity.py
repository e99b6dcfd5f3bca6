"""Decides by UID whether the live JobSet is the TrainJob's own.

Every client that may write JobSets can set owner references and annotations, but no client can
choose a UID. The UID of the JobSet that this controller created is recorded in the TrainJob's
status.
"""

from dataclasses import dataclass, replace
from typing import Literal

import structlog

from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import JobSetReference, TrainJob, TrainJobStatus
from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.controllers.trainjob.apply import ForeignJobSetError, ObjectApplier, name_in_use
from kftrainer.controllers.trainjob.jobset.update import has_same_jobs
from kftrainer.controllers.trainjob.planner import Planner
from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.objects.nested import nested_field
from kftrainer.kube.objects.resource import Manifest, is_controlled_by, key_of
from kftrainer.machinery.controller.reconcile import Request
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.info import (
    claimed_job_set,
    is_finished,
    key_of_job,
    recorded_job_set,
)

log = structlog.get_logger(__name__)

NO_STATUS = TrainJobStatus()
NONE = ""  # the UID that a TrainJob records in memory while no live JobSet is its own

Ownership = Literal["own", "adopt", "verify", "foreign"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A TrainJob with the UID of its own JobSet, or the error if the live one is not its own."""

    job: TrainJob
    error: PlanningError | None = None
    foreign: Manifest | None = None  # the JobSet that names the TrainJob but is not its own
    is_verified: bool = False  # the JobSet was just adopted because it equals the plan


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
    found = nested_field(manifest, "status", "jobSet", "uid")
    return found if isinstance(found, str) else None


class OwnJobSets:
    """UIDs of created or adopted JobSets that the stored status may not record yet."""

    def __init__(self) -> None:
        self._uids: dict[Request, tuple[str | None, str]] = {}  # of the TrainJob and its JobSet
        self._uncertain: set[Request] = set()

    def create_started(self, job: TrainJob) -> None:
        """Register a create request before it is sent."""
        self._uncertain.add(key_of_job(job))

    def create_finished(self, job: TrainJob) -> None:
        """Register that the result of the create request is known."""
        self._uncertain.discard(key_of_job(job))

    def add(self, job: TrainJob, uid: str) -> None:
        """Register the JobSet that was created or adopted."""
        self._uids[key_of_job(job)] = job.metadata.uid, uid
        self._uncertain.discard(key_of_job(job))

    def forget(self, request: Request) -> None:
        """Drop a TrainJob that was deleted."""
        self._uids.pop(request, None)
        self._uncertain.discard(request)

    def is_uncertain(self, job: TrainJob) -> bool:
        """Whether a create request may have succeeded although its response was lost."""
        return key_of_job(job) in self._uncertain

    def with_newest(self, job: TrainJob) -> TrainJob:
        """Return the TrainJob with the newest known UID of its JobSet recorded."""
        owner, uid = self._uids.get(key_of_job(job), (None, NONE))
        if owner is None or owner != job.metadata.uid:
            return job
        return with_job_set(job, uid)

    def drop_if_stored(self, job: TrainJob) -> None:
        """Drop the UID if the stored status of the TrainJob records it."""
        if self._uids.get(key_of_job(job)) == (job.metadata.uid, recorded_job_set(job)):
            del self._uids[key_of_job(job)]

    def newest(self, request: Request, manifest: Manifest | None) -> str | None:
        """Return the newest known UID for a TrainJob, given its stored manifest."""
        if request in self._uids:
            return self._uids[request][1]
        return recorded_in(manifest)


class JobSetIdentifier:
    """Determines the own JobSet of a TrainJob, if necessary by requests to the API server."""

    def __init__(
        self,
        client: Client,
        view: OverlayCache,
        planner: Planner,
        applier: ObjectApplier,
        own_job_sets: OwnJobSets,
    ) -> None:
        self._client = client
        self._view = view
        self._planner = planner
        self._applier = applier
        self._own_job_sets = own_job_sets

    async def identify(self, job: TrainJob, *, is_readable: bool) -> Identity:
        """Return the TrainJob with the UID of its own JobSet recorded in the status.

        A TrainJob that cannot be read completely cannot be planned, so its JobSet is not verified.
        """
        self._own_job_sets.drop_if_stored(job)
        job = self._own_job_sets.with_newest(job)
        live = claimed_job_set(job, self._view)
        if live is None or not is_readable or is_finished(job):
            return Identity(job)
        uid, is_uncertain = live["metadata"]["uid"], self._own_job_sets.is_uncertain(job)
        match ownership(job, uid, is_uncertain=is_uncertain):
            case "own":
                return Identity(job)
            case "adopt":
                return self._adopt(job, live)
            case "verify":
                return await self._verify(job, live)
            case "foreign":
                return await self._reject(job)

    def _adopt(self, job: TrainJob, live: Manifest) -> Identity:
        uid = live["metadata"]["uid"]
        log.info("jobset_adopted", object=str(key_of(live)), uid=uid)
        self._own_job_sets.add(job, uid)
        return Identity(with_job_set(job, uid))

    async def _verify(self, job: TrainJob, live: Manifest) -> Identity:
        """Adopt the JobSet if it is equal to the one that would be created now."""
        without = job if recorded_job_set(job) else with_job_set(job, NONE)
        try:
            plan = await self._planner.plan_objects(without)
        except PlanningError as error:
            return Identity(without, error)
        for each in plan.applicable.objects:
            if each.resource is JOB_SETS:
                created = await self._applier.as_created(each)
                if has_same_jobs(created, live):
                    return replace(self._adopt(job, live), is_verified=True)
        return Identity(without, ForeignJobSetError(live))

    async def _reject(self, job: TrainJob) -> Identity:
        """Reject a JobSet that is not the recorded one, unless only the cache lags."""
        live = await get_or_none(self._client, JOB_SETS, key_of_job(job))
        if live is None:
            return Identity(job)
        self._view.record(JOB_SETS, live)
        metadata = live["metadata"]
        is_controlled = is_controlled_by(metadata, job.metadata.uid)
        if metadata["uid"] == recorded_job_set(job) or not is_controlled:
            return Identity(job)
        if "deletionTimestamp" in metadata:
            return Identity(job, name_in_use(job, JOB_SETS, live), live)
        return Identity(job, ForeignJobSetError(live), live)
