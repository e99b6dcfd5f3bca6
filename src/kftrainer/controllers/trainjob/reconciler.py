"""Reconciler of TrainJobs: applies their objects and writes their status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS, TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.contest import Contest
from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.controllers.trainjob.apply import (
    Applied,
    ForeignJobSetError,
    NotInstalledError,
    ObjectApplier,
    name_in_use,
)
from kftrainer.controllers.trainjob.cache_barrier import CacheBarrier
from kftrainer.controllers.trainjob.deleted_jobsets import (
    DeletedJobSets,
    outcome_without_job_set,
    replicas_in,
)
from kftrainer.controllers.trainjob.failures import RETRY_UNAVAILABLE, Failure, failure_of
from kftrainer.controllers.trainjob.jobset_identity import (
    NONE,
    Identity,
    OwnJobSets,
    ownership,
    with_job_set,
)
from kftrainer.controllers.trainjob.jobset_update import (
    EVENT_KEPT,
    KEPT_MESSAGE,
    Fitted,
    fitted,
    has_same_jobs,
    needs_suspension,
)
from kftrainer.controllers.trainjob.messages import same_message
from kftrainer.controllers.trainjob.own_status import OwnStatusWrites
from kftrainer.controllers.trainjob.refused_pods import CHECK_EVERY, RefusedPods
from kftrainer.controllers.trainjob.status import (
    Status,
    Trouble,
    next_status,
    present_status,
    present_trouble,
    removal_of_empty_conditions,
)
from kftrainer.controllers.trainjob.unreadable import planning_error, readable_part
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import (
    ConflictError,
    ForbiddenError,
    KindNotFoundError,
    KubeError,
    NamespaceTerminatingError,
    NotFoundError,
)
from kftrainer.kube.objects.model import Problem
from kftrainer.kube.objects.resource import Manifest, is_controlled_by, key_of
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.reconcile import DONE, Request, Result
from kftrainer.machinery.events.recorder import EventRecorder
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.backoff import Exponential
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import PlanningError, RuntimeNotFoundError
from kftrainer.runtime.framework.extension_points import Observed
from kftrainer.runtime.info import (
    claimed_job_set,
    is_finished,
    key_of_job,
    own_job_set,
    recorded_job_set,
    runs,
)
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.runtimes import Runtimes

log = structlog.get_logger(__name__)

LATER = Result(requeue=True, max_delay=RETRY_UNAVAILABLE)
FIRST_REPAIR, LONGEST_REPAIR = 0.5, 60.0  # seconds between repairs of a status
UNDECLARED_JOB_SET = ".status.jobSet: field not declared in schema"  # in the server's message
RECORDS_AGAIN = 300.0  # seconds until writing status.jobSet is tried again
EVENT_CONTESTED = "Contested"
CONTESTED_MESSAGE = (
    "{} {} was applied a moment ago and has been changed back by another client. It is applied "
    "again with growing pauses of up to five minutes"
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result of planning and applying the objects of a TrainJob in one reconcile."""

    failure: Failure | None = None
    retry_after: float | None = None  # seconds
    ended: Observed | None = None  # the outcome of a training whose JobSet no longer exists
    refused: Trouble | None = None  # why pods are not created


class TrainJobReconciler:
    """Apply the objects that a TrainJob needs and write its status.

    A failure is reported in the status and as an Event, and retried if a retry can succeed.
    """

    def __init__(  # noqa: PLR0913  its dependencies
        self,
        client: Client,
        view: OverlayCache,
        runtimes: Runtimes,
        recorder: EventRecorder,
        barrier: CacheBarrier,
        *,
        clock: Clock,
        own_status: OwnStatusWrites,
        refused_pods: RefusedPods,
    ) -> None:
        self._client = client
        self._view = view
        self._runtimes = runtimes
        self._recorder = recorder
        self._clock = clock
        self._applier = ObjectApplier(client, view, clock=clock)
        self._barrier = barrier
        self._deleted_job_sets = DeletedJobSets()
        self._own_job_sets = OwnJobSets()
        self._records_again_at = float("-inf")
        self._own_status = own_status
        self._refused_pods = refused_pods
        self._repairs = Contest(clock, Exponential(FIRST_REPAIR, LONGEST_REPAIR))

    def job_set_changed(self, change: ObjectEvent[Any]) -> None:
        """Handle an event of the JobSet informer, before the TrainJob is enqueued for it."""
        seen = change.old if change.new is None else change.new
        stored = self._view.held(TRAIN_JOBS, change.key)
        recorded = self._own_job_sets.recorded(change.key, stored)
        if seen is not None and recorded in (None, seen.metadata.get("uid")):
            self._deleted_job_sets.observe(change)

    async def reconcile(self, request: Request) -> Result:
        """Reconcile one TrainJob; do nothing if it was deleted or has another manager."""
        found = self._get(request)
        if found is None:
            self._repairs.forget(request)
            self._own_job_sets.forget(request)
            self._refused_pods.forget(request)
            return DONE
        job, problems = found
        log.debug("trainjob.seen", resource_version=job.metadata.resource_version)
        if not _is_for_us(job):
            return DONE
        if not self._is_current(job):
            try:
                live = await self._read(request)
            except KubeError as error:
                log.warning("trainjob_not_read", error=str(error))
                return LATER
            if live is None:
                return DONE  # deleted; the watch has not reported that yet
            job, problems = live
            if not _is_for_us(job):
                return DONE
        return await self._act(job, problems)

    async def _act(self, job: TrainJob, problems: Sequence[Problem]) -> Result:
        """Apply the objects of the TrainJob and write its status."""
        self._own_job_sets.stored(job)
        try:
            identity = await self._identify(job, problems)
        except KubeError as error:
            log.warning("jobset_not_identified", error=str(error))
            return LATER
        outcome = _Outcome() if is_finished(job) else await self._make_objects(identity, problems)
        if not is_finished(job) and outcome.failure is None:
            outcome = await self._with_refused_pods(identity.job, outcome)
        if outcome.failure is not None:
            self._report(job, outcome.failure)
        return await self._write_status(job, identity.job, outcome)

    async def _with_refused_pods(self, job: TrainJob, outcome: _Outcome) -> _Outcome:
        """Add the reason why pods are missing to the outcome, and schedule the next check."""
        own = own_job_set(job, self._view)
        if own is None or not runs(job, self._view):
            self._refused_pods.forget(_key(job))
            return outcome
        refused = await self._refused_pods.trouble(job, own)
        if refused is None:
            return outcome
        after = min(CHECK_EVERY, outcome.retry_after or CHECK_EVERY)
        return replace(outcome, refused=refused, retry_after=after)

    def _get(self, request: Request) -> tuple[TrainJob, Sequence[Problem]] | None:
        manifest = self._view.manifest(TRAIN_JOBS, request)
        return None if manifest is None else readable_part(manifest)

    async def _read(self, request: Request) -> tuple[TrainJob, Sequence[Problem]] | None:
        """Read the TrainJob from the API server with a list, which needs no extra permission."""
        page = await self._client.list(
            TRAIN_JOBS,
            namespace=request.namespace,
            field_selector=f"metadata.name={request.name}",
        )
        if not page.items:
            return None
        [live] = page.items
        self._view.saw(TRAIN_JOBS, live)
        return readable_part(live)

    def _is_current(self, job: TrainJob) -> bool:
        """Whether the cached TrainJob is recent enough to create or change its JobSet.

        A cache that lags may still hold a finished TrainJob as new, or a resumed one as suspended.
        """
        job = self._own_job_sets.recorded_on(job)
        own = own_job_set(job, self._view)
        is_followed = (
            own is not None
            and recorded_job_set(job) is not None
            and bool(own["spec"].get("suspend")) == job.spec.suspend
        )
        return is_finished(job) or is_followed or self._barrier.is_current(job.metadata)

    async def _identify(self, job: TrainJob, problems: Sequence[Problem]) -> Identity:
        """Return the TrainJob with the UID of its own JobSet recorded in the status."""
        job = self._own_job_sets.recorded_on(job)
        live = claimed_job_set(job, self._view)
        if live is None or problems or is_finished(job):
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
            fit = await self._plan(without)
        except PlanningError as error:
            return Identity(without, error)
        for each in fit.planned:
            if each.resource is JOB_SETS:
                created = await self._applier.as_created(each)
                if has_same_jobs(created, live):
                    return self._adopt(job, live)
        return Identity(without, ForeignJobSetError(live))

    async def _reject(self, job: TrainJob) -> Identity:
        """Reject a JobSet that is not the recorded one, unless only the cache lags."""
        try:
            live = await self._client.get(JOB_SETS, key_of_job(job))
        except KindNotFoundError:
            raise
        except NotFoundError:
            return Identity(job)
        self._view.saw(JOB_SETS, live)
        if live["metadata"]["uid"] == recorded_job_set(job) or not is_controlled_by(
            live["metadata"], job.metadata.uid
        ):
            return Identity(job)
        if "deletionTimestamp" in live["metadata"]:
            return Identity(job, name_in_use(job, JOB_SETS, live))
        return Identity(job, ForeignJobSetError(live))

    async def _make_objects(self, identity: Identity, problems: Sequence[Problem]) -> _Outcome:
        """Plan and apply the objects; return the outcome, with the failure if there is one."""
        job = identity.job
        try:
            if identity.failure is not None:
                raise identity.failure
            ended = await self._ended(job)
            if ended is not None:
                return _Outcome(ended=ended)
            if problems:
                raise planning_error(problems)
            return _Outcome(retry_after=await self._apply_plan(job))
        except NamespaceTerminatingError:
            log.info("trainjob.namespace_goes")
            return _Outcome()
        except (PlanningError, KubeError) as error:
            retry_after = await self._suspend_only(job)
            if isinstance(error, PlanningError) and runs(job, self._view):
                # The runtime was changed or deleted, which does not affect a running TrainJob.
                log.info("trainjob.runs_on", error=str(error))
                return _Outcome()
            return _Outcome(failure_of(error, self._clock.now()), retry_after)

    async def _suspend_only(self, job: TrainJob) -> float | None:
        """Suspend the JobSet of a suspended TrainJob whose plan could not be applied.

        Returns the seconds until the next attempt: 0 for the queue's back-off, None for no attempt.
        """
        running = needs_suspension(job, self._view)
        if running is None:
            return None
        try:
            return (await self._applier.suspend(running)).retry_after
        except KubeError as error:
            log.warning("jobset_not_suspended", error=str(error))
            return 0.0

    async def _ended(self, job: TrainJob) -> Observed | None:
        """Return the outcome of a training whose JobSet is gone; None if it is to be created."""
        if own_job_set(job, self._view) is not None or not self._view.knows(JOB_SETS):
            return None
        last = self._observe(job, self._deleted_job_sets.of(job))
        replicas = replicas_in(self._runtime_manifest(job))
        ended = outcome_without_job_set(job, last, replicas, self._clock.now())
        if ended is None:
            return None
        try:
            live = await self._client.get(JOB_SETS, key_of_job(job))
        except KindNotFoundError:
            raise
        except NotFoundError:
            log.info("jobset_gone", outcome=[each.reason for each in ended.conditions])
            return ended
        self._view.saw(JOB_SETS, live)
        return None

    def _runtime_manifest(self, job: TrainJob) -> Manifest | None:
        try:
            kind = self._runtimes.of(job)
        except PlanningError:
            return None
        return self._view.manifest(kind.resource, kind.key(job))

    async def _apply_plan(self, job: TrainJob) -> float | None:
        """Apply the plan; return the seconds until the next attempt, None if none is needed.

        Another attempt is needed while another client keeps undoing a change.
        """
        fit = await self._plan(job)
        pauses = list[float]()
        for each in fit.planned:
            applied = await self._apply(job, each)
            if applied.wrote and each is fit.kept:
                self._recorder.record(job.dump(), "Warning", EVENT_KEPT, KEPT_MESSAGE)
            if applied.is_contested:
                message = CONTESTED_MESSAGE.format(each.resource.kind, key_of(each.manifest))
                self._recorder.record(job.dump(), "Warning", EVENT_CONTESTED, message)
            if applied.retry_after is not None:
                pauses.append(applied.retry_after)
        return min(pauses, default=None)

    async def _apply(self, job: TrainJob, planned: PlannedObject) -> Applied:
        """Apply the object; record the UID of a JobSet that was created."""
        if planned.resource is not JOB_SETS:
            return await self._applier.apply(job, planned)
        if own_job_set(job, self._view) is None:
            self._own_job_sets.creating(job)
        applied = await self._applier.apply(job, planned)
        self._own_job_sets.answered(job)
        if applied.created is not None:
            self._own_job_sets.add(job, applied.created)
        return applied

    async def _plan(self, job: TrainJob) -> Fitted:
        try:
            return self._fit(job)
        except RuntimeNotFoundError as error:
            if self._is_old_news(job, error) or not await self._finds_runtime(job):
                raise
        return self._fit(job)

    def _is_old_news(self, job: TrainJob, error: PlanningError) -> bool:
        return runs(job, self._view) or _is_known(job, failure_of(error, self._clock.now()))

    async def _finds_runtime(self, job: TrainJob) -> bool:
        """Whether the API server has the runtime; its watch may lag behind that of TrainJobs."""
        kind = self._runtimes.of(job)
        try:
            found = await self._client.get(kind.resource, kind.key(job))
        except KindNotFoundError:
            raise
        except NotFoundError:
            return False
        except ForbiddenError as error:  # the watch will deliver the runtime
            log.warning("trainjob.runtime_not_read", error=str(error))
            return False
        self._view.saw(kind.resource, found)
        return True

    def _fit(self, job: TrainJob) -> Fitted:
        planned = self._runtimes.of(job).new_objects(job, self._view)
        for each in planned:
            is_known = self._view.knows(each.resource, job.metadata.namespace)
            if self._view.watches(each.resource) and not is_known:
                raise NotInstalledError(each.resource)
        return fitted(planned, job, self._view)

    def _report(self, job: TrainJob, failure: Failure) -> None:
        if not failure.user_visible:
            write = log.info
        elif _is_known(job, failure):
            write = log.debug  # a retry with the failure that the status already reports
        else:
            write = log.warning
        write("trainjob.hindered", reason=failure.reason, message=failure.message)
        if failure.user_visible and not _is_known(job, failure):
            self._recorder.record(
                job.dump(), "Warning", names.EVENT_CREATION_FAILED, failure.event_message
            )

    async def _write_status(
        self, stored: TrainJob, identified: TrainJob, outcome: _Outcome
    ) -> Result:
        """Write the status if it differs from the wanted one."""
        present, failure = present_status(stored), outcome.failure
        job = self._own_job_sets.recorded_on(identified)
        observed = outcome.ended or self._observe(job, self._view) or self._observe_foreign(job)
        trouble = outcome.refused or _trouble(job, failure)
        is_observable = self._view.knows(JOB_SETS, job.metadata.namespace)
        wanted = next_status(job, observed, trouble, self._clock.now(), is_observable=is_observable)
        if self._clock.monotonic() < self._records_again_at:
            wanted = replace(wanted, job_set=present.job_set)
        after = _next_attempt(outcome)
        if not wanted.conditions and (patch := removal_of_empty_conditions(stored)) is not None:
            await self._remove_empty_conditions(stored, patch)
        if wanted == present or not (wanted.has_content or present.has_content or present.job_set):
            return after
        if pause := self._repair_pause(_key(job), wanted):
            sooner = Result(requeue_after=min(pause, after.requeue_after or pause))
            return after if after.is_rate_limited else sooner
        return await self._apply_status(job, wanted) or after

    async def _apply_status(self, job: TrainJob, wanted: Status) -> Result | None:
        """Apply the status; return the result of the reconcile if that failed, else None."""
        request = _key(job)
        metadata = {key: getattr(job.metadata, key) for key in ("name", "namespace", "uid")}
        manifest: dict[str, Any] = {
            "apiVersion": names.API_VERSION,
            "kind": names.TRAIN_JOB,
            "metadata": metadata,
        }
        if status := wanted.dump():  # without it, the apply removes the whole status
            manifest["status"] = status
        self._own_status.started(request, wanted)
        try:
            written = await self._client.apply(
                TRAIN_JOBS, manifest, field_manager=names.FIELD_MANAGER, subresource="status"
            )
        except KindNotFoundError as error:
            log.warning("trainjob.status_not_written", error=str(error))
            return LATER
        except (NotFoundError, ConflictError, NamespaceTerminatingError):
            return DONE  # the TrainJob was deleted or replaced: the watch will enqueue it
        except KubeError as error:
            if wanted.job_set and UNDECLARED_JOB_SET in str(error):
                return await self._apply_status(job, self._without_record(wanted))
            log.warning("trainjob.status_not_written", error=str(error))
            return LATER
        self._own_status.confirmed(request, written["metadata"]["resourceVersion"])
        self._view.saw(TRAIN_JOBS, written)
        return None

    def _without_record(self, wanted: Status) -> Status:
        """Return the status for an older CRD, which does not declare `status.jobSet`."""
        self._records_again_at = self._clock.monotonic() + RECORDS_AGAIN
        log.warning(
            "jobset_uid_not_recorded",
            why="the CustomResourceDefinition of TrainJobs does not declare status.jobSet: upgrade "
            "it. A JobSet that is replaced while no manager runs cannot be recognized until then",
        )
        return replace(wanted, job_set=None)

    async def _remove_empty_conditions(self, job: TrainJob, patch: Mapping[str, Any]) -> None:
        try:
            written = await self._client.merge_patch(
                TRAIN_JOBS,
                _key(job),
                patch,
                subresource="status",
                field_manager=names.FIELD_MANAGER,
            )
        except KubeError as error:  # the next reconcile tries again
            log.info("trainjob.empty_conditions_not_removed", error=str(error))
        else:
            self._view.saw(TRAIN_JOBS, written)

    def _repair_pause(self, request: Request, wanted: Status) -> float:
        """Return the seconds to wait if the same status was written before and then changed."""
        if not self._own_status.was_written(request, wanted):
            return 0.0
        if pause := self._repairs.pause(request):
            return pause
        if self._repairs.acted(request):
            log.warning(
                "trainjob.status_contested",
                why="another client keeps changing conditions of this controller; they are "
                "restored at growing intervals",
            )
        return 0.0

    def _observe(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        try:
            return self._runtimes.of(job).train_job_status(job, existing)
        except PlanningError as error:
            log.info("trainjob.not_observed", error=str(error))
            return None

    def _observe_foreign(self, job: TrainJob) -> Observed | None:
        """Observe whether a JobSet that names the TrainJob but is not its own is suspended."""
        live = claimed_job_set(job, self._view)
        if live is None:
            return None
        rows = present_status(job).jobs
        return Observed(jobs=rows, suspended=bool(live["spec"].get("suspend")))


def _is_for_us(job: TrainJob) -> bool:
    return job.spec.managed_by == names.MANAGED_BY_US and job.metadata.deletion_timestamp is None


def _key(job: TrainJob) -> Request:
    return Request(job.metadata.namespace or "", job.metadata.name)


def _next_attempt(outcome: _Outcome) -> Result:
    failure = outcome.failure
    if failure is None or not failure.retryable:
        return Result(requeue_after=outcome.retry_after)
    return Result(requeue=True, max_delay=failure.max_delay)


def _is_known(job: TrainJob, failure: Failure) -> bool:
    """Whether the status already reports this failure, so that an Event would only repeat it."""
    return any(
        each.reason == failure.reason and same_message(each.message, failure.message)
        for each in present_status(job).conditions
        if each.type in (names.CONDITION_BLOCKED, names.CONDITION_FAILED)
    )


def _trouble(job: TrainJob, failure: Failure | None) -> Trouble | None:
    """Return the failure to report; one that is expected to pass soon changes nothing."""
    if failure is None:
        return None
    if failure.user_visible:
        return Trouble(failure.reason, failure.message)
    return present_trouble(job)
