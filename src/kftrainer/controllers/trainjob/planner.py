"""Plans the objects of a TrainJob with its runtime, and observes the JobSet's status."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from kftrainer.api.resources import CONTROLLER_REVISIONS, JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.overlay_cache import OverlayCache, ReducedObjectError
from kftrainer.controllers.trainjob.failures import failure_of
from kftrainer.controllers.trainjob.jobset.deleted_jobsets import (
    DeletedJobSets,
    outcome_without_job_set,
    replicas_in,
)
from kftrainer.controllers.trainjob.jobset.update import ApplicablePlan, applicable_plan
from kftrainer.controllers.trainjob.status import is_reported, present_status
from kftrainer.controllers.trainjob.unreadable import planning_error
from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.client.errors import ForbiddenError
from kftrainer.kube.objects.model import Problem
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.manager.clock import Clock
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import (
    NotInstalledError,
    PlanningError,
    RevisionLostError,
    RuntimeNotFoundError,
)
from kftrainer.runtime.framework.extension_points import Observed
from kftrainer.runtime.info import claimed_job_set, is_finished, key_of_job, own_job_set, runs
from kftrainer.runtime.podset import TRAINER_ONLY, NodeLayout
from kftrainer.runtime.revisions import Source, recorded_revision
from kftrainer.runtime.runtimes import Runtimes

log = structlog.get_logger(__name__)

NO_OBJECTS = ApplicablePlan(())


@dataclass(frozen=True, slots=True)
class Plan:
    """The objects to apply, or the outcome of a training whose JobSet no longer exists."""

    applicable: ApplicablePlan = NO_OBJECTS
    ended: Observed | None = None
    source: Source | None = None  # what the objects were planned from


NOTHING = Plan()


class Planner:
    """Plan TrainJobs from the cache.

    A request is sent only where a lagging cache would lead to a wrong result: before a runtime or
    a revision counts as missing, and before a JobSet counts as deleted.
    """

    def __init__(
        self,
        client: Client,
        view: OverlayCache,
        runtimes: Runtimes,
        deleted_job_sets: DeletedJobSets,
        *,
        clock: Clock,
    ) -> None:
        self._client = client
        self._view = view
        self._runtimes = runtimes
        self._deleted_job_sets = deleted_job_sets
        self._clock = clock

    async def plan(self, job: TrainJob, problems: Sequence[Problem]) -> Plan:
        """Return what to apply; nothing for a finished TrainJob."""
        if is_finished(job):
            return NOTHING
        if (ended := await self._ended(job)) is not None:
            return Plan(ended=ended)
        if problems:
            raise planning_error(problems)
        return await self.plan_objects(job)

    async def plan_objects(self, job: TrainJob) -> Plan:
        """Return the objects to apply, given the live JobSet."""
        source = await self._source(job)
        return Plan(self._plan_from_cache(job, source), source=source)

    async def _source(self, job: TrainJob) -> Source:
        """Return what to plan from; what the cache lacks is read before it counts as missing."""
        kind = self._runtimes.of(job)
        try:
            source = kind.source(job, self._view)
            if not source.is_lost or not await self._finds_revision(job):
                return source
        except RuntimeNotFoundError as error:
            if self._is_known(job, error) or not await self._finds_runtime(job):
                raise
        except RevisionLostError as error:
            if self._is_known(job, error) or not await self._finds_revision(job):
                raise
        return kind.source(job, self._view)

    def layout(self, job: TrainJob) -> NodeLayout:
        """Return which jobs of the runtime train; the default if it cannot be read."""
        try:
            return self._runtimes.of(job).layout(job, self._view)
        except (PlanningError, ReducedObjectError):
            return TRAINER_ONLY

    def observe(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        """Return what the status of the TrainJob's own JobSet reports."""
        try:
            return self._runtimes.of(job).train_job_status(job, existing)
        except PlanningError as error:
            log.info("jobset_status_not_observed", error=str(error))
            return None

    def observe_foreign(self, job: TrainJob, foreign: Manifest | None) -> Observed | None:
        """Observe whether a JobSet that names the TrainJob but is not its own is suspended.

        `foreign` was read in this reconcile. If it was deleted since, the next reconcile creates
        another one, unless the status reports that the TrainJob is resumed and may have run.
        """
        live = claimed_job_set(job, self._view) or foreign
        if live is None:
            return None
        rows = present_status(job).jobs
        return Observed(jobs=rows, suspended=bool(live["spec"].get("suspend")))

    async def _ended(self, job: TrainJob) -> Observed | None:
        """Return the outcome of a training whose JobSet is gone; None if it is to be created."""
        if own_job_set(job, self._view) is not None or not self._view.is_complete(JOB_SETS):
            return None
        last = self.observe(job, self._deleted_job_sets.of(job))
        replicas = replicas_in(self._runtime_manifest(job))
        ended = outcome_without_job_set(job, last, replicas, self._clock.now())
        if ended is None:
            return None
        live = await get_or_none(self._client, JOB_SETS, key_of_job(job))
        if live is None:
            log.info("jobset_not_found", outcome=[each.reason for each in ended.conditions])
            return ended
        self._view.record(JOB_SETS, live)
        return None

    def _runtime_manifest(self, job: TrainJob) -> Manifest | None:
        """Return the runtime as recorded in the revision or as it is, also if it is invalid."""
        try:
            kind = self._runtimes.of(job)
        except PlanningError:
            return None
        try:
            return kind.source(job, self._view).runtime.dump()
        except PlanningError:
            return self._view.manifest(kind.resource, kind.key(job))

    def _is_known(self, job: TrainJob, error: PlanningError) -> bool:
        """Whether the missing runtime has no effect, or the status reports it already."""
        return runs(job, self._view) or is_reported(job, failure_of(error, self._clock.now()))

    async def _finds_revision(self, job: TrainJob) -> bool:
        """Whether the API server has the recorded revision; its watch may lag."""
        key = recorded_revision(job)
        if key is None:
            return False
        found = await get_or_none(self._client, CONTROLLER_REVISIONS, key)
        if found is None:
            return False
        self._view.record_for(key_of_job(job), CONTROLLER_REVISIONS, found)
        return True

    async def _finds_runtime(self, job: TrainJob) -> bool:
        """Whether the API server has the runtime; its watch may lag behind that of TrainJobs."""
        kind = self._runtimes.of(job)
        try:
            found = await get_or_none(self._client, kind.resource, kind.key(job))
        except ForbiddenError as error:  # the watch will deliver the runtime
            log.warning("runtime_not_readable", error=str(error))
            return False
        if found is None:
            return False
        self._view.record(kind.resource, found)
        return True

    def _plan_from_cache(self, job: TrainJob, source: Source) -> ApplicablePlan:
        planned = self._runtimes.of(job).new_objects(job, self._view, source=source)
        for each in planned:
            is_known = self._view.is_complete(each.resource, job.metadata.namespace)
            if self._view.watches(each.resource) and not is_known:
                raise NotInstalledError(each.resource)
        return applicable_plan(planned, job, self._view)
