"""The controller of TrainJobs: makes their objects, and tells how they are doing."""

import structlog

from kftrainer.api import names
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.children import Children, NotInstalledError
from kftrainer.controllers.standing import (
    EVENT_KEPT,
    KEPT_MESSAGE,
    Fitted,
    fitted,
    merely_suspended,
)
from kftrainer.controllers.status import Trouble, is_finished, next_status, present_status
from kftrainer.controllers.troubles import Hindrance, hindrance_of
from kftrainer.controllers.view import View
from kftrainer.kube.client import Client
from kftrainer.kube.errors import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NamespaceTerminatingError,
    NotFoundError,
)
from kftrainer.kube.model import InvalidDocumentError
from kftrainer.machinery.clock import Clock
from kftrainer.machinery.reconcile import DONE, Request, Result
from kftrainer.machinery.recorder import EventRecorder
from kftrainer.runtime.errors import PlanningError, RuntimeNotFoundError
from kftrainer.runtime.info import runs
from kftrainer.runtime.phases import Observed
from kftrainer.runtime.runtimes import Runtimes

log = structlog.get_logger(__name__)

LATER = Result(requeue=True)


class TrainJobReconciler:
    """Makes the objects that a TrainJob needs, and writes down what it sees of them.

    Trouble is told in the status and by an Event, and tried again where that may help.
    """

    def __init__(
        self,
        client: Client,
        view: View,
        runtimes: Runtimes,
        recorder: EventRecorder,
        *,
        clock: Clock,
    ) -> None:
        self._client = client
        self._view = view
        self._runtimes = runtimes
        self._recorder = recorder
        self._clock = clock
        self._children = Children(client, view)

    async def reconcile(self, request: Request) -> Result:
        """Look at the TrainJob, and act."""
        try:
            job = self._view.get(TRAIN_JOBS, request)
        except InvalidDocumentError as error:
            # The API server let it pass, so it was stored under another schema than ours.
            log.warning("trainjob.not_understood", problems=list(map(str, error.problems)))
            return DONE
        if job is None:
            return DONE
        log.debug("trainjob.seen", resource_version=job.metadata.resource_version)
        if not _is_for_us(job):
            return DONE
        hindrance = None if is_finished(job) else await self._make_objects(job)
        if hindrance is not None:
            self._tell(job, hindrance)
        return await self._write_status(job, hindrance)

    async def _make_objects(self, job: TrainJob) -> Hindrance | None:
        """Plan and apply; what hinders that, if something does."""
        try:
            await self._bring_about(job)
        except NamespaceTerminatingError:
            log.info("trainjob.namespace_goes")
            return None
        except (PlanningError, KubeError) as error:
            if isinstance(error, PlanningError) and runs(job, self._view):
                # Its runtime was changed or deleted: the next TrainJob will notice.
                log.info("trainjob.runs_on", error=str(error))
                return None
            return hindrance_of(error)
        return None

    async def _bring_about(self, job: TrainJob) -> None:
        try:
            fit = await self._plan(job)
        except (PlanningError, KubeError):
            suspended = merely_suspended(job, self._view)
            if suspended is not None:
                await self._children.bring_about(job, suspended)
            raise
        for each in fit.planned:
            was_otherwise = await self._children.bring_about(job, each)
            if was_otherwise and each is fit.kept:
                self._recorder.record(job.dump(), "Warning", EVENT_KEPT, KEPT_MESSAGE)

    async def _plan(self, job: TrainJob) -> Fitted:
        try:
            return self._fit(job)
        except RuntimeNotFoundError as error:
            if self._is_old_news(job, error) or not await self._finds_runtime(job):
                raise
        return self._fit(job)

    def _is_old_news(self, job: TrainJob, error: PlanningError) -> bool:
        return runs(job, self._view) or _is_known(job, hindrance_of(error))

    async def _finds_runtime(self, job: TrainJob) -> bool:
        """Ask the server: the news of a runtime may come later than that of its TrainJob."""
        kind = self._runtimes.of(job)
        try:
            found = await self._client.get(kind.resource, kind.key(job))
        except NotFoundError:
            return False
        except ForbiddenError as error:  # the cache will know sooner or later
            log.warning("trainjob.runtime_not_read", error=str(error))
            return False
        self._view.saw(kind.resource, found)
        return True

    def _fit(self, job: TrainJob) -> Fitted:
        planned = self._runtimes.of(job).new_objects(job, self._view)
        for each in planned:
            if self._view.watches(each.resource) and not self._view.knows(each.resource):
                raise NotInstalledError(each.resource)
        return fitted(planned, job, self._view)

    def _tell(self, job: TrainJob, hindrance: Hindrance) -> None:
        log.warning("trainjob.hindered", reason=hindrance.reason, message=hindrance.message)
        if hindrance.is_told and not _is_known(job, hindrance):
            self._recorder.record(
                job.dump(), "Warning", names.EVENT_CREATION_FAILED, hindrance.event_message
            )

    async def _write_status(self, job: TrainJob, hindrance: Hindrance | None) -> Result:
        """Write the status if it is not what it should be."""
        present = present_status(job)
        wanted = next_status(job, self._observe(job), _trouble(job, hindrance), self._clock.now())
        after = LATER if hindrance is not None and hindrance.may_pass else DONE
        if wanted == present:
            return after
        metadata = {key: getattr(job.metadata, key) for key in ("name", "namespace", "uid")}
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.TRAIN_JOB,
            "metadata": metadata,
            "status": wanted.dump(),
        }
        try:
            written = await self._client.apply(
                TRAIN_JOBS, manifest, field_manager=names.FIELD_MANAGER, subresource="status"
            )
        except (NotFoundError, ConflictError, NamespaceTerminatingError):
            return DONE  # it is gone, or another one by now: there will be news of it
        except KubeError as error:
            log.warning("trainjob.status_not_written", error=str(error))
            return LATER
        self._view.saw(TRAIN_JOBS, written)
        return after

    def _observe(self, job: TrainJob) -> Observed | None:
        try:
            return self._runtimes.of(job).train_job_status(job, self._view)
        except PlanningError as error:
            log.info("trainjob.not_observed", error=str(error))
            return None


def _is_for_us(job: TrainJob) -> bool:
    return job.spec.managed_by == names.MANAGED_BY_US and job.metadata.deletion_timestamp is None


def _is_known(job: TrainJob, hindrance: Hindrance) -> bool:
    """Whether the status says so already: then an Event would only repeat it."""
    return any(
        (each.reason, each.message) == (hindrance.reason, hindrance.message)
        for each in present_status(job).conditions
        if each.type in (names.CONDITION_BLOCKED, names.CONDITION_FAILED)
    )


def _trouble(job: TrainJob, hindrance: Hindrance | None) -> Trouble | None:
    """What the status should say; what will soon pass does not change what it says."""
    if hindrance is None:
        return None
    if hindrance.is_told:
        return Trouble(hindrance.reason, hindrance.message)
    blocked = [
        each for each in present_status(job).conditions if each.type == names.CONDITION_BLOCKED
    ]
    return Trouble(blocked[0].reason, blocked[0].message) if blocked else None
