"""Applies the runtimes that ship with the operator, as in its folder of documents."""

from collections.abc import Iterable, Mapping

import structlog
from prometheus_client import CollectorRegistry, Gauge

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS
from kftrainer.controllers.bundled_runtime_steps import (
    Apply,
    BundledRuntime,
    Delete,
    Leave,
    Step,
    bundled_runtime,
    next_step,
    replacement,
)
from kftrainer.controllers.failed_writes import LATER, result_of_failed_write
from kftrainer.controllers.runtime_finalizer import enqueue_runtime
from kftrainer.controllers.trainjob_index import INDEX_RUNTIME, index_value
from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ConflictError,
    KindNotFoundError,
    KubeError,
    NotFoundError,
)
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.handlers import enqueue_self
from kftrainer.machinery.controller.predicates import generation_changed
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Request, Result
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.queue.backoff import Exponential
from kftrainer.machinery.queue.repair_backoff import RepairBackoff

log = structlog.get_logger(__name__)

CONTROLLER = "shippedruntimes_controller"
FIELD_MANAGER = "kftrainer-runtimes"
CONFLICT = "shipped_runtime_conflict"
RECONCILE_WITHIN = 120.0
# Seconds. After start-up our webhook may be unavailable for seconds; a permission, for hours.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 60.0
IN_USE = "its file was removed, but TrainJobs refer to it"
PERHAPS_IN_USE = (
    "its file was removed, but a manager that watches some namespaces only cannot check whether "
    "TrainJobs refer to it"
)


class BundledRuntimesReconciler:
    """Create missing runtimes, replace outdated ones, delete those without a document.

    A failed write fails the reconcile; it does not affect other runtimes. A change that another
    client undoes is repeated at growing intervals. A metric reports each runtime that is out of
    date.
    """

    def __init__(
        self,
        client: Client,
        cache: Cache,
        wanted: Mapping[str, BundledRuntime],
        *,
        clock: Clock,
        registry: CollectorRegistry,
        watches_all: bool,
    ) -> None:
        self._client = client
        self._cache = cache
        self._wanted = wanted
        self._watches_all = watches_all  # the TrainJobs of all namespaces
        self._backoff = RepairBackoff[Request](clock, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self._reported: dict[Request, str] = {}  # why a runtime is not modified, as logged
        self._out_of_date = Gauge(
            "kftrainer_shipped_runtime_out_of_date",
            "1 if a runtime that ships with the operator has yet to be applied or deleted, else 0. "
            "Exported by the leader.",
            ("runtime",),
            registry=registry,
        )

    async def reconcile(self, request: Request) -> Result:
        """Create, replace or delete the runtime if that is necessary."""
        seen = self._cache.informer(CLUSTER_TRAINING_RUNTIMES).cached_object(request)
        live = None if seen is None else ObjectMeta.parse(seen.metadata)
        step = next_step(self._wanted.get(request.name), live, self._kept_because(request))
        self._report(request, step)
        if step is None or isinstance(step, Leave):
            self._backoff.record_unchanged(request)
            self._leave(request, step)
            return DONE
        if pause := self._backoff.pause(request):
            return Result(requeue_after=pause)
        if isinstance(step, Apply):
            return await self._apply(request, step)
        return await self._delete(request, step)

    def _report(self, request: Request, step: Step | None) -> None:
        """Set the metric that reports whether the runtime is out of date.

        A write counts only once the cache has it: another client may undo it.
        """
        is_out_of_date = isinstance(step, Apply | Delete)
        if is_out_of_date or request.name in self._wanted:
            self._out_of_date.labels(request.name).set(int(is_out_of_date))
        else:
            self._out_of_date.remove(request.name)

    def _kept_because(self, request: Request) -> str | None:
        if not self._watches_all:
            return PERHAPS_IN_USE
        value = index_value(CLUSTER_TRAINING_RUNTIMES, request)
        return IN_USE if self._cache.has_index(TRAIN_JOBS, INDEX_RUNTIME, value) else None

    def _leave(self, request: Request, step: Leave | None) -> None:
        if step is None:
            self._reported.pop(request, None)
        elif self._reported.get(request) != step.why:
            self._reported[request] = step.why
            log.warning(step.event, why=step.why)

    async def _apply(self, request: Request, step: Apply) -> Result:
        try:
            applied = await self._write(request, step.runtime)
        except KindNotFoundError as error:
            raise ReconcileError(f"cannot apply the runtime: {error}") from error
        except (ConflictError, AlreadyExistsError, NotFoundError, WriteGuardError) as error:
            log.debug(CONFLICT, error=str(error))
            return LATER
        except KubeError as error:
            raise ReconcileError(f"cannot apply the runtime: {error}") from error
        if applied is None:
            return DONE
        log.info("shipped_runtime_applied", why=step.why)
        self._acted(request, _others(applied))
        return DONE

    async def _write(self, request: Request, bundled: BundledRuntime) -> Manifest | None:
        """Create or replace the runtime; None if the live one is already up to date."""
        client, resource = self._client, CLUSTER_TRAINING_RUNTIMES
        live = await get_or_none(client, resource, request)
        if live is None:
            return await client.create(resource, bundled.manifest, field_manager=FIELD_MANAGER)
        if not isinstance(next_step(bundled, ObjectMeta.parse(live["metadata"])), Apply):
            return None
        patch = replacement(bundled, live, FIELD_MANAGER)
        return await client.json_patch(resource, request, patch, field_manager=FIELD_MANAGER)

    async def _delete(self, request: Request, step: Delete) -> Result:
        try:
            await self._client.delete(
                CLUSTER_TRAINING_RUNTIMES,
                request,
                uid=step.uid,
                resource_version=step.resource_version,
            )
        except KubeError as error:
            return result_of_failed_write(error, "delete the runtime", conflict_event=CONFLICT)
        log.info("shipped_runtime_deleted", why="its file was removed")
        self._acted(request, [])
        return DONE

    def _acted(self, request: Request, others: list[str]) -> None:
        self._reported.pop(request, None)
        if self._backoff.record_write(request):
            log.warning(
                "shipped_runtime_repeatedly_changed",
                others=others,
                why="another client, such as another manager with --runtimes, keeps changing the "
                "runtime back; it is applied again at growing intervals",
            )


def _others(applied: Manifest) -> list[str]:
    """Return the other field managers of the object; other replicas of ours share our name."""
    entries = applied["metadata"].get("managedFields") or ()
    return sorted({each.get("manager", "") for each in entries} - {FIELD_MANAGER})


def bundled_runtimes_controller(
    documents: Iterable[Manifest],
    client: Client,
    cache: Cache,
    *,
    clock: Clock,
    metrics: Metrics,
    watches_all: bool,
) -> Controller:
    """Return the controller that applies these documents; it starts with a request for each."""
    wanted = {each.name: each for each in map(bundled_runtime, documents)}
    controller = Controller(
        CONTROLLER,
        BundledRuntimesReconciler(
            client, cache, wanted, clock=clock, registry=metrics.registry, watches_all=watches_all
        ),
        clock=clock,
        timeout=RECONCILE_WITHIN,
        backoff=Exponential(FIRST_PAUSE, LONGEST_PAUSE),
        metrics=metrics,
    )
    controller.watch(cache.informer(CLUSTER_TRAINING_RUNTIMES), enqueue_self)
    # A runtime without a document is kept until no TrainJob refers to it.
    used = enqueue_runtime(CLUSTER_TRAINING_RUNTIMES)
    controller.watch(cache.informer(TRAIN_JOBS), used, generation_changed)
    for name in wanted:
        controller.enqueue(ObjectKey("", name))
    return controller
