"""Reconciler of TrainJobs: get, plan, apply, write status."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS, TRAIN_JOBS
from kftrainer.api.trainjob import NodesStatus, TrainJob
from kftrainer.controllers.cache_barrier import CacheBarrier
from kftrainer.controllers.large_objects import read_train_job
from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.controllers.trainjob.apply import Applied, ObjectApplier
from kftrainer.controllers.trainjob.deadlines import (
    EVENT_MESSAGE,
    SHORTEST_WAIT,
    Deadlines,
    deadline_condition,
    failed_by_deadline,
    remaining_at,
)
from kftrainer.controllers.trainjob.failures import (
    EXPECTED_ERRORS,
    INTERNAL_ERROR,
    RETRY_UNAVAILABLE,
    Failure,
    failing_reconcile,
    failure_of,
)
from kftrainer.controllers.trainjob.jobset.deleted_jobsets import DeletedJobSets
from kftrainer.controllers.trainjob.jobset.failed_pods import FailedPods
from kftrainer.controllers.trainjob.jobset.identity import Identity, JobSetIdentifier, OwnJobSets
from kftrainer.controllers.trainjob.jobset.refused_pods import CHECK_EVERY, RefusedPods
from kftrainer.controllers.trainjob.jobset.update import (
    KEPT_MESSAGE,
    needs_suspension,
)
from kftrainer.controllers.trainjob.planner import Plan, Planner
from kftrainer.controllers.trainjob.runtime_revisions import LOST_MESSAGE, RuntimeRevisions
from kftrainer.controllers.trainjob.state import CONFIRM_AFTER, is_to_be_confirmed, nodes_of
from kftrainer.controllers.trainjob.status import (
    is_reported,
    next_status,
    present_status,
    stopped,
    with_conditions,
    with_summary,
)
from kftrainer.controllers.trainjob.status_writer import OwnStatusWrites, StatusWriter
from kftrainer.controllers.trainjob.unreadable import readable_part
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import (
    ApiError,
    ConflictError,
    KindNotFoundError,
    KubeError,
    NamespaceTerminatingError,
    NotFoundError,
)
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.kube.objects.model import Problem
from kftrainer.kube.objects.resource import Manifest, key_of
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Request, Result
from kftrainer.machinery.events.recorder import EventRecorder
from kftrainer.machinery.manager.clock import Clock
from kftrainer.runtime.errors import PlanningError, RevisionLostError
from kftrainer.runtime.framework.extension_points import Observed
from kftrainer.runtime.info import is_finished, key_of_job, own_job_set, recorded_job_set, runs
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.revisions import recorded_revision
from kftrainer.runtime.runtimes import Runtimes

log = structlog.get_logger(__name__)

LATER = Result(requeue=True, max_delay=RETRY_UNAVAILABLE)
CONTESTED_MESSAGE = (
    "{} {} was applied a moment ago and has been changed back by another client. It is applied "
    "again with growing pauses of up to five minutes"
)

ReadJob = tuple[TrainJob, Sequence[Problem]]
# Returns the ready pods of the Jobs of a JobSet in which not all pods are ready, by replicated job;
# None until the Jobs have been read.
ReadyPods = Callable[[Manifest], Mapping[str, int] | None]


def no_ready_pods(_job_set: Manifest) -> Mapping[str, int]:
    """Return that no pods are known."""
    return {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of planning and applying the objects of a TrainJob in one reconcile."""

    failure: Failure | None = None
    suspend_error: str | None = None  # why the JobSet of a suspended TrainJob is not suspended
    retry_after: float | None = None  # seconds
    ended: Observed | None = None  # the outcome of a training whose JobSet no longer exists
    is_reported: bool = False  # the status reported the failure before
    is_overdue: bool = False  # the deadline has passed

    def with_retry(self, after: float | None) -> "Outcome":
        """Return the outcome with a retry after at most this many seconds."""
        waits = [each for each in (self.retry_after, after) if each is not None]
        return replace(self, retry_after=min(waits, default=None))

    @property
    def errors(self) -> Sequence[str]:
        """The messages of failed API calls."""
        failure = self.failure
        found = failure.message if failure is not None and failure.is_error else None
        return [each for each in (found, self.suspend_error) if each is not None]


class TrainJobReconciler:
    """Apply the objects that a TrainJob needs and write its status.

    A failure is reported in the status and as an Event, and retried if a retry can succeed. A
    failed API call fails the reconcile, after the status was written; `failures` has the rules.
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
        failed_pods: FailedPods,
        revisions: RuntimeRevisions,
        ready_pods: ReadyPods = no_ready_pods,
    ) -> None:
        self._client = client
        self._view = view
        self._recorder = recorder
        self._clock = clock
        self._barrier = barrier
        self._refused_pods = refused_pods
        self._failed_pods = failed_pods
        self._ready_pods = ready_pods
        self._deadlines = Deadlines(clock)
        self._revisions = revisions
        self._deleted_job_sets = DeletedJobSets()
        self._own_job_sets = own_job_sets = OwnJobSets()
        self._planner = Planner(client, view, runtimes, self._deleted_job_sets, clock=clock)
        self._applier = ObjectApplier(client, view, clock=clock)
        self._identifier = JobSetIdentifier(
            client, view, self._planner, self._applier, own_job_sets
        )
        self._status_writer = StatusWriter(client, view, own_status, clock=clock)

    def job_set_changed(self, change: ObjectEvent[Any]) -> None:
        """Handle an event of the JobSet informer, before the TrainJob is enqueued for it."""
        seen = change.old if change.new is None else change.new
        stored = self._view.cached_part(TRAIN_JOBS, change.key)
        newest = self._own_job_sets.newest(change.key, stored)
        if seen is not None and newest in (None, seen.metadata.get("uid")):
            self._deleted_job_sets.observe(change)

    async def reconcile(self, request: Request) -> Result:
        """Reconcile one TrainJob; do nothing if it was deleted or has another manager.

        Raises ReconcileError if an API call failed.
        """
        try:
            return await self._reconcile(request)
        except EXPECTED_ERRORS as error:
            log.info("reconcile_interrupted", error=str(error))
            return LATER

    async def _reconcile(self, request: Request) -> Result:
        found = await self._get(request)
        if found is None:
            return DONE
        stored, problems = found
        begun = self._revisions.with_newest(stored)
        with failing_reconcile("identify the JobSet"):
            identity = await self._identifier.identify(begun, is_readable=not problems)
        if await self._is_overdue(identity.job):
            outcome = self._overdue(identity.job)
        else:
            try:
                plan = await self._plan(identity, problems)
                retry_after = await self._restore_revision(identity.job, plan)
                revision = await self._keep_revision(stored, identity, plan)
                outcome = await self._apply(identity.job, plan, revision)
                outcome = outcome.with_retry(retry_after)
            except (PlanningError, KubeError) as error:
                outcome = await self._failed(stored, identity.job, error)
        result = await self._write_status(stored, identity, outcome)
        is_new = outcome.is_overdue and self._is_stored_as_overdue(identity.job)
        if is_new or failed_by_deadline(identity.job):
            await self._delete_job_set(identity.job)
        return result

    async def _get(self, request: Request) -> ReadJob | None:
        """Return the TrainJob, from the API server if the cache may lag; None if not ours."""
        manifest = self._view.manifest(TRAIN_JOBS, request)
        if manifest is None:
            self._forget(request)
            return None
        found = readable_part(manifest)
        job, _ = found
        log.debug("trainjob_read", resource_version=job.metadata.resource_version)
        if not _is_ours(job):
            return None
        if self._is_current(job):
            return found
        with failing_reconcile("read the TrainJob"):
            live = await read_train_job(self._client, request)
        if live is None:
            return None  # deleted; the watch has not reported that yet
        self._view.record(TRAIN_JOBS, live)
        found = readable_part(live)
        return found if _is_ours(found[0]) else None

    def _forget(self, request: Request) -> None:
        self._status_writer.forget(request)
        self._own_job_sets.forget(request)
        self._refused_pods.forget(request)
        self._deadlines.forget(request)
        self._revisions.forget(request)

    def _is_current(self, job: TrainJob) -> bool:
        """Whether the cached TrainJob is recent enough to create or change its JobSet.

        A cache that lags may still hold a finished TrainJob as new, or a resumed one as suspended.
        """
        job = self._own_job_sets.with_newest(job)
        own = own_job_set(job, self._view)
        is_followed = (
            own is not None
            and recorded_job_set(job) is not None
            and bool(own["spec"].get("suspend")) == job.spec.suspend
        )
        return is_finished(job) or is_followed or self._barrier.is_current(job.metadata)

    async def _is_overdue(self, job: TrainJob) -> bool:
        """Whether the deadline has passed, by this manager's clocks and the API server's.

        The TrainJob is read from the API server: it may have been suspended a moment ago.
        """
        remaining = self._deadlines.remaining(job)
        if remaining is None or remaining > 0:
            return False
        observed = self._planner.observe(job, self._view)
        if observed is not None and observed.conditions:
            return False  # it has ended
        with failing_reconcile("check the deadline of the TrainJob"):
            manifest = await read_train_job(self._client, key_of_job(job))
            now = await self._client.server_time()
        if manifest is None:
            return False
        self._view.record(TRAIN_JOBS, manifest)
        live, _ = readable_part(manifest)
        remaining = remaining_at(live, now) if live.metadata.uid == job.metadata.uid else None
        if remaining is None:
            return False
        self._deadlines.correct(job, remaining)
        if remaining > 0:
            return False
        log.debug("deadline_passed", overdue=-remaining)
        return True

    def _overdue(self, job: TrainJob) -> Outcome:
        """Return the outcome of a TrainJob whose deadline has passed."""
        observed = self._planner.observe(job, self._view)
        jobs = present_status(job).jobs if observed is None else observed.jobs
        conditions = [deadline_condition(self._clock.now())]
        return Outcome(ended=Observed(conditions, jobs), is_overdue=True)

    def _is_stored_as_overdue(self, job: TrainJob) -> bool:
        """Whether the stored status reports that the deadline of the TrainJob has passed."""
        manifest = self._view.manifest(TRAIN_JOBS, key_of_job(job))
        if manifest is None or manifest["metadata"].get("uid") != job.metadata.uid:
            return False
        return failed_by_deadline(readable_part(manifest)[0])

    async def _delete_job_set(self, job: TrainJob) -> None:
        """Delete the JobSet of a TrainJob that the status reports as failed by its deadline."""
        own = own_job_set(job, self._view)
        if own is None or "deletionTimestamp" in own["metadata"]:
            return
        key, uid = key_of_job(job), own["metadata"]["uid"]
        with failing_reconcile("delete the JobSet of the TrainJob, whose deadline has passed"):
            try:
                await self._client.delete(JOB_SETS, key, uid=uid)
            except NotFoundError:
                return
        log.info("jobset_deleted", object=str(key), why="the deadline of the TrainJob has passed")

    async def _plan(self, identity: Identity, problems: Sequence[Problem]) -> Plan:
        """Return what to apply, given the TrainJob's own JobSet."""
        if identity.error is not None:
            raise identity.error
        return await self._planner.plan(identity.job, problems)

    async def _restore_revision(self, job: TrainJob, plan: Plan) -> float | None:
        """Create a deleted revision again if possible; return the seconds until the next attempt.

        A loss that cannot be repaired is reported.
        """
        source = plan.source
        if source is None or recorded_revision(job) is None:
            return None
        if source.is_lost:
            self._report_lost(job, LOST_MESSAGE)
            return None
        return await self._revisions.restore(job, source.runtime) if source.is_live else None

    async def _keep_revision(self, stored: TrainJob, identity: Identity, plan: Plan) -> str | None:
        """Keep the content of the runtime that the TrainJob is planned from, before it is applied.

        Returns the name of the revision with which the JobSet is created, unless it is recorded.

        The status records the revision together with the JobSet. A JobSet whose UID is recorded
        without a revision was created by an earlier release, and keeps its behaviour.
        """
        source, job = plan.source, identity.job
        if source is None:
            return None
        if recorded_revision(job) is not None:
            if recorded_revision(stored) is None and own_job_set(job, self._view) is not None:
                # The response to the request that created the JobSet was lost.
                self._revisions.begun(job)
            return None
        if own_job_set(job, self._view) is None:
            return await self._revisions.ensure(job, source.runtime)
        is_as_planned = identity.is_verified or plan.applicable.is_as_planned
        if recorded_job_set(stored) is None and is_as_planned:
            self._revisions.begin(job, await self._revisions.ensure(job, source.runtime))
            self._revisions.begun(job)
        return None

    def _report_lost(self, job: TrainJob, message: str) -> None:
        if self._revisions.is_newly_lost(job):
            log.warning("runtime_revision_lost", message=message)
            self._recorder.record(job.dump(), "Warning", names.EVENT_REVISION_LOST, message)

    async def _apply(self, job: TrainJob, plan: Plan, revision: str | None) -> Outcome:
        """Apply the plan; `retry_after` is set while another client keeps changing objects back."""
        pauses = list[float]()
        for each in plan.applicable.objects:
            applied = await self._apply_object(job, each, revision)
            if applied.wrote and each is plan.applicable.kept:
                self._recorder.record(job.dump(), "Warning", names.EVENT_JOB_SET_KEPT, KEPT_MESSAGE)
            if applied.is_reverted:
                message = CONTESTED_MESSAGE.format(each.resource.kind, key_of(each.manifest))
                self._recorder.record(job.dump(), "Warning", names.EVENT_CONTESTED, message)
            if applied.retry_after is not None:
                pauses.append(applied.retry_after)
        return Outcome(retry_after=min(pauses, default=None), ended=plan.ended)

    async def _apply_object(
        self, job: TrainJob, planned: PlannedObject, revision: str | None
    ) -> Applied:
        """Apply the object; record the UID and the revision of a JobSet that was created."""
        if planned.resource is not JOB_SETS:
            return await self._applier.apply(job, planned)
        if own_job_set(job, self._view) is None:
            self._own_job_sets.create_started(job)
        if revision is not None:
            self._revisions.begin(job, revision)
        try:
            applied = await self._applier.apply(job, planned)
        except (PlanningError, KubeError) as error:
            # A conflict may be with the JobSet of an earlier attempt whose response was lost.
            if was_refused(error) and not isinstance(error, ConflictError):
                self._revisions.abandon(job)
            raise
        self._own_job_sets.create_finished(job)
        if applied.created is not None:
            self._own_job_sets.add(job, applied.created)
            self._revisions.begun(job)
        elif revision is not None:
            self._revisions.abandon(job)
        return applied

    async def _failed(
        self, stored: TrainJob, job: TrainJob, error: PlanningError | KubeError
    ) -> Outcome:
        """Return the outcome of planning and applying that failed."""
        if isinstance(error, NamespaceTerminatingError):
            log.info("namespace_terminating")
            return Outcome()
        if isinstance(error, RevisionLostError) and own_job_set(job, self._view) is not None:
            self._report_lost(job, str(error))
        outcome = await self._suspend(job)
        if isinstance(error, PlanningError) and runs(job, self._view):
            # The runtime was changed or deleted, which does not affect a running TrainJob.
            log.info("plan_not_updated", error=str(error))
            return Outcome()
        failure = failure_of(error, self._clock.now())
        self._report(stored, failure)
        return replace(outcome, failure=failure, is_reported=is_reported(stored, failure))

    async def _suspend(self, job: TrainJob) -> Outcome:
        """Suspend the JobSet of a suspended TrainJob whose plan could not be applied."""
        running = needs_suspension(job, self._view)
        if running is None:
            return Outcome()
        try:
            suspended = await self._applier.suspend(running)
        except EXPECTED_ERRORS:
            return Outcome(retry_after=0.0)
        except KubeError as error:
            if is_gone(error):
                return Outcome(retry_after=0.0)  # the JobSet was deleted or replaced
            return Outcome(suspend_error=f"cannot suspend the JobSet: {error}")
        return Outcome(retry_after=suspended.retry_after)

    def _report(self, job: TrainJob, failure: Failure) -> None:
        """Record an Event for a new failure; log it, unless the reconcile fails with it."""
        is_new = failure.user_visible and not is_reported(job, failure)
        if not failure.is_error:
            self._log(failure, is_new=is_new)
        if is_new:
            self._recorder.record(
                job.dump(), "Warning", names.EVENT_CREATION_FAILED, failure.event_message
            )

    def _log(self, failure: Failure, *, is_new: bool) -> None:
        # A retry with the failure that the status already reports is only of use for debugging.
        is_repeated = failure.user_visible and not is_new
        write = log.warning if is_new else log.debug if is_repeated else log.info
        write("objects_not_applied", reason=failure.reason, message=failure.message)

    async def _write_status(self, stored: TrainJob, identity: Identity, outcome: Outcome) -> Result:
        """Write the status if it differs from the wanted one; return the result."""
        job = identity.job
        if outcome.failure is None and outcome.ended is None and not is_finished(job):
            outcome = await self._check_pods(job, outcome)
        job = self._revisions.with_begun(stored, self._own_job_sets.with_newest(job))
        observed = outcome.ended or await self._observe(job, identity)
        is_observable = self._view.is_complete(JOB_SETS, job.metadata.namespace)
        nodes = self._nodes(job)
        if observed is None and is_observable and failed_by_deadline(job):
            observed, nodes = stopped(job)
        wanted = next_status(
            job, observed, outcome.failure, self._clock.now(), is_observable=is_observable
        )
        wanted = with_summary(wanted, job, nodes)
        deadline = self._deadlines.remaining(with_conditions(job, wanted.conditions))
        try:
            pause = await self._status_writer.write(stored, wanted)
        except WriteGuardError:
            raise
        except KubeError as error:
            if is_gone(error) and not (outcome.errors and isinstance(error, ConflictError)):
                # The watch will enqueue the TrainJob if it was replaced.
                return LATER if outcome.is_overdue else DONE
            errors = [*outcome.errors, f"cannot write the status: {error}"]
            max_delay = bounded_by(deadline, RETRY_UNAVAILABLE)
            raise ReconcileError("; ".join(errors), max_delay=max_delay) from error
        self._revisions.drop_if_stored(key_of_job(stored))
        if outcome.is_overdue and pause is None:  # otherwise the condition is written later
            message = EVENT_MESSAGE.format(job.spec.active_deadline_seconds)
            self._recorder.record(job.dump(), "Warning", names.EVENT_DEADLINE_EXCEEDED, message)
        if is_to_be_confirmed(wanted.state, wanted.jobs, wanted.nodes):
            pause = CONFIRM_AFTER if pause is None else min(pause, CONFIRM_AFTER)
        return result_of(outcome, pause, deadline)

    async def _observe(self, job: TrainJob, identity: Identity) -> Observed | None:
        """Return the observed status; that of a JobSet that has just failed, with the reason."""
        observed = self._planner.observe(job, self._view)
        if observed is None:
            return self._planner.observe_foreign(job, identity.foreign)
        own = own_job_set(job, self._view)
        if own is None or is_finished(job):
            return observed
        return await self._failed_pods.explain(own, observed)

    def _nodes(self, job: TrainJob) -> NodesStatus | None:
        """Return the nodes of the TrainJob's own JobSet; None if they are not known."""
        own = own_job_set(job, self._view)
        if own is None:
            return None
        ready_pods = self._ready_pods(own)
        return None if ready_pods is None else nodes_of(own, self._planner.layout(job), ready_pods)

    async def _check_pods(self, job: TrainJob, outcome: Outcome) -> Outcome:
        """Add the reason why pods are missing to the outcome, and schedule the next check."""
        own = own_job_set(job, self._view)
        if own is None or not runs(job, self._view):
            self._refused_pods.forget(key_of_job(job))
            return outcome
        error = await self._refused_pods.check(job, own)
        if error is None:
            return outcome
        after = min(CHECK_EVERY, outcome.retry_after or CHECK_EVERY)
        failure = failure_of(error, self._clock.now())
        return replace(outcome, failure=failure, retry_after=after)


def was_refused(error: PlanningError | KubeError) -> bool:
    """Whether an object was certainly not created by the write that failed."""
    if isinstance(error, ApiError):
        return error.status <= INTERNAL_ERROR
    return isinstance(error, PlanningError | WriteGuardError)


def is_gone(error: KubeError) -> bool:
    """Whether the object of a failed write was deleted or replaced, or will be soon."""
    if isinstance(error, KindNotFoundError):
        return False
    return isinstance(error, NotFoundError | ConflictError | NamespaceTerminatingError)


def _is_ours(job: TrainJob) -> bool:
    return job.spec.managed_by == names.MANAGED_BY_US and job.metadata.deletion_timestamp is None


def bounded_by(deadline: float | None, delay: float) -> float:
    """Return the delay, or the time until the deadline of the TrainJob if that is shorter."""
    return delay if deadline is None else min(delay, max(deadline, SHORTEST_WAIT))


def result_of(outcome: Outcome, pause: float | None, deadline: float | None = None) -> Result:
    """Return the result of a reconcile.

    `pause` is the time until the status may be repaired, `deadline` that until the TrainJob must
    end.

    Raises ReconcileError if an API call failed.
    """
    failure = outcome.failure
    is_retried = failure is not None and failure.retryable
    max_delay = failure.max_delay if failure is not None and is_retried else math.inf
    max_delay = bounded_by(deadline, max_delay)
    if outcome.errors:
        message = "; ".join(outcome.errors)
        raise ReconcileError(message, max_delay=max_delay, is_reported=outcome.is_reported)
    if is_retried:
        return Result(requeue=True, max_delay=max_delay)
    due = bounded_by(deadline, math.inf)
    result = Result(requeue_after=outcome.retry_after)
    if result.is_rate_limited:
        return replace(result, max_delay=min(result.max_delay, due))
    waits = [each for each in (pause, outcome.retry_after, due) if each is not None]
    after = min(waits)
    return result if after == math.inf else Result(requeue_after=after)
