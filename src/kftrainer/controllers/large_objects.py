"""Large objects: the cache holds a part of them, and the whole is read while it is needed.

They are worked on one at a time, and in each namespace with pauses longer than the work: a tenant
whose objects are large waits longer, and nobody else does.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

import structlog

from kftrainer.api import names
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    JOB_SETS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from kftrainer.controllers.overlay_cache import OverlayCache, Scope
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError, NotFoundError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.cache.reduction import Reduction
from kftrainer.machinery.controller.reconcile import DONE, Reconciler, Request, Result
from kftrainer.machinery.garbage_collection import collect_recent
from kftrainer.machinery.manager.clock import Clock

log = structlog.get_logger(__name__)

LATER: Final = Result(requeue=True)
BUSY: Final = 0.05  # seconds until the next attempt while another large object is worked on
# A pause is this many times as long as the work before it: most of that time is the API server's,
# which works for other tenants too.
PAUSE_RATIO: Final = 3
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0  # seconds

PREFIX: Final = f"{names.GROUP}/"
# ClusterTrainingRuntimes are held whole: they are few, used by many, and not a tenant's.
REDUCTIONS: Final[Mapping[Resource[Any], Reduction]] = {
    TRAIN_JOBS: Reduction(
        spec=("runtimeRef", "managedBy", "suspend"), status=("jobsStatus", "jobSet"), prefix=PREFIX
    ),
    TRAINING_RUNTIMES: Reduction(prefix=PREFIX),
    JOB_SETS: Reduction(spec=("suspend",), status=("replicatedJobsStatus",), prefix=PREFIX),
}
# Of other kinds nothing but their existence, owner and applied plan is read.
METADATA: Final = Reduction(prefix=PREFIX)


def reduction_of(resource: Resource[Any], *, is_owned: bool) -> Reduction | None:
    """Return what to hold of large objects; `is_owned`: all that are cached belong to TrainJobs."""
    return REDUCTIONS.get(resource) or (METADATA if is_owned else None)


class Schedule:
    """When large objects of each namespace are worked on: with pauses after the work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free: dict[str, float] = {}  # by namespace
        self._pauses: dict[str, float] = {}
        self._slots: dict[Request, float] = {}

    def delay(self, request: Request) -> float:
        """Return the seconds until the turn of this object; 0 if it is now."""
        now, namespace = self._clock.monotonic(), request.namespace
        slot = self._slots.get(request)
        if slot is None:
            slot = max(now, self._free.get(namespace, now))
            self._free[namespace] = slot + self._pauses.get(namespace, SHORTEST_PAUSE)
        if slot > now:
            self._slots[request] = slot
            return slot - now
        self.forget(request)
        return 0.0

    def worked(self, request: Request, seconds: float) -> None:
        """Record how long the work took: the next object waits PAUSE_RATIO times as long."""
        now, namespace = self._clock.monotonic(), request.namespace
        pause = min(max(PAUSE_RATIO * seconds, SHORTEST_PAUSE), LONGEST_PAUSE)
        self._free = {each: free for each, free in self._free.items() if free > now}
        self._pauses = {each: self._pauses.get(each, pause) for each in self._free}
        self._free[namespace] = max(self._free.get(namespace, now), now + pause)
        self._pauses[namespace] = pause

    def forget(self, request: Request) -> None:
        """Give the turn of this object away."""
        self._slots.pop(request, None)


class LargeObjectReconciler:
    """Reconciles TrainJobs by another reconciler, which finds the whole objects in the view."""

    def __init__(
        self, reconciler: Reconciler, client: Client, view: OverlayCache, *, clock: Clock
    ) -> None:
        self._reconciler = reconciler
        self._client = client
        self._view = view
        self._clock = clock
        self._schedule = Schedule(clock)
        self._working = asyncio.Lock()

    async def reconcile(self, request: Request) -> Result:
        """Read what is large about the TrainJob, if anything is, and reconcile it."""
        if not any(self._reduced(request, None)):
            self._schedule.forget(request)
            with self._view.scope(request):
                return await self._reconciler.reconcile(request)
        if delay := self._schedule.delay(request):
            return Result(requeue_after=delay)
        if self._working.locked():
            return Result(requeue_after=BUSY)
        began = self._clock.monotonic()
        async with self._working:
            try:
                return await self._reconcile(request)
            finally:
                collect_recent()
                self._schedule.worked(request, self._clock.monotonic() - began)

    async def _reconcile(self, request: Request) -> Result:
        with self._view.scope(request) as scope:
            try:
                is_there = await self._load(request, scope)
            except KubeError as error:
                log.warning("large_object_not_read", error=str(error))
                return LATER
            # Its deletion is still to be watched.
            return await self._reconciler.reconcile(request) if is_there else DONE

    async def _load(self, request: Request, scope: Scope) -> bool:
        """Read the large objects; False if the TrainJob does not exist."""
        job: Manifest | None = None
        if self._view.is_reduced(TRAIN_JOBS, request):
            job = await read_train_job(self._client, request)
            if job is None:
                return False
            scope.load(TRAIN_JOBS, request, job)
        for resource, key in [*self._reduced(request, job)]:
            scope.load(resource, key, await read_if_found(self._client, resource, key))
        return True

    def _reduced(
        self, request: Request, job: Manifest | None
    ) -> Iterator[tuple[Resource[Any], ObjectKey]]:
        """Yield what planning the TrainJob reads and the cache holds a part of."""
        held = job if job is not None else self._view.held(TRAIN_JOBS, request)
        if held is None:
            return
        if self._view.is_reduced(TRAIN_JOBS, request):
            yield TRAIN_JOBS, request
        spec = held.get("spec")
        reference = spec.get("runtimeRef") if isinstance(spec, Mapping) else None
        runtime = reference if isinstance(reference, Mapping) else {}
        kind, name = str(runtime.get("kind", "")), str(runtime.get("name", ""))
        yield from reduced_objects(self._view, request, kind, name)


def reduced_objects(
    view: OverlayCache, job: ObjectKey, kind: str, name: str
) -> Iterator[tuple[Resource[Any], ObjectKey]]:
    """Yield the JobSet and the runtime of a TrainJob if the cache holds only parts of them."""
    runtime: tuple[Resource[Any], ObjectKey] = (CLUSTER_TRAINING_RUNTIMES, ObjectKey("", name))
    if kind == names.TRAINING_RUNTIME:
        runtime = (TRAINING_RUNTIMES, ObjectKey(job.namespace, name))
    return (each for each in ((JOB_SETS, job), runtime) if view.is_reduced(*each))


async def read_train_job(client: Client, key: ObjectKey) -> Manifest | None:
    """Read a TrainJob by a list: that right is needed for the cache too."""
    selector = f"metadata.name={key.name}"
    page = await client.list(TRAIN_JOBS, namespace=key.namespace, field_selector=selector)
    return page.items[0] if page.items else None


async def read_if_found(client: Client, resource: Resource[Any], key: ObjectKey) -> Manifest | None:
    """Read an object that may have been deleted."""
    try:
        return await client.get(resource, key)
    except NotFoundError:
        return None
