"""Reconciles TrainJobs with large objects, of which the cache holds only a part.

The complete objects are read for the duration of a reconcile. Large objects are processed one at a
time, and within a namespace with pauses longer than the processing, so that only the tenant that
owns them waits longer.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kftrainer.api import names
from kftrainer.api.resources import (
    CONTROLLER_REVISIONS,
    JOB_SETS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from kftrainer.controllers.overlay_cache import OverlayCache, Scope
from kftrainer.controllers.trainjob.failures import failing_reconcile
from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.cache.reduction import Reduction
from kftrainer.machinery.controller.reconcile import DONE, Reconciler, Request, Result
from kftrainer.machinery.garbage_collection import collect_recent
from kftrainer.machinery.manager.clock import Clock
from kftrainer.runtime.revisions import recorded_revision_in
from kftrainer.runtime.runtimes import RuntimeKey, referenced_runtime_in

# Seconds until the next attempt while another large object is processed, and more for each other
# namespace that waits.
BUSY: Final = 0.05
BUSY_PER_NAMESPACE: Final = 0.005
LONGEST_BUSY: Final = 0.5
# Seconds without an attempt after which a namespace loses its turn.
ABSENT_AFTER: Final = 1.0
KEPT_FOR: Final = 60.0  # seconds for which it is known when a namespace was served
# A pause is this many times as long as the processing before it. Most of that time is spent by the
# API server, which serves other tenants too.
PAUSE_RATIO: Final = 9
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0  # seconds

PREFIX: Final = f"{names.GROUP}/"
# ClusterTrainingRuntimes are cached completely: they are few, and no tenant owns them.
REDUCTIONS: Final[Mapping[Resource[Any], Reduction]] = {
    TRAIN_JOBS: Reduction(
        spec=("runtimeRef", "managedBy", "suspend"),
        status=("jobsStatus", "jobSet", "state", "runtimeRevision"),
        prefix=PREFIX,
    ),
    CONTROLLER_REVISIONS: Reduction(prefix=PREFIX),
    TRAINING_RUNTIMES: Reduction(prefix=PREFIX),
    JOB_SETS: Reduction(spec=("suspend",), status=("replicatedJobsStatus",), prefix=PREFIX),
}
# For other kinds only existence, owner and applied plan are read.
METADATA: Final = Reduction(prefix=PREFIX)


def reduction_of(resource: Resource[Any], *, is_owned: bool) -> Reduction | None:
    """Return the part to cache of large objects; None to cache them completely.

    `is_owned` is true if all cached objects of the kind belong to TrainJobs.
    """
    return REDUCTIONS.get(resource) or (METADATA if is_owned else None)


class Schedule:
    """Time slots for the large objects of each namespace, with pauses between them.

    When the slots of several namespaces are due, the one that was served longest ago is next.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free: dict[str, float] = {}  # start of the next free slot, by namespace
        self._pauses: dict[str, float] = {}
        self._slots: dict[Request, float] = {}
        self._due: dict[str, float] = {}  # last attempt of a due object, by namespace
        self._served: dict[str, float] = {}  # last start, by namespace

    def delay(self, request: Request, *, is_busy: bool = False) -> float:
        """Return the seconds until the next attempt of this object; 0 if it is its turn now.

        `is_busy` is true while another large object is processed. The slot is kept until the turn.
        """
        now, namespace = self._clock.monotonic(), request.namespace
        slot = self._slots.get(request)
        if slot is None:
            slot = max(now, self._free.get(namespace, now))
            self._free[namespace] = slot + self._pauses.get(namespace, SHORTEST_PAUSE)
            self._slots[request] = slot
        if slot > now:
            return slot - now
        self._due[namespace] = now
        self._drop_absent(now)
        if is_busy or namespace != self._next_namespace():
            return min(BUSY + BUSY_PER_NAMESPACE * (len(self._due) - 1), LONGEST_BUSY)
        self.forget(request)
        self._served[namespace] = now
        return 0.0

    def _drop_absent(self, now: float) -> None:
        self._due = {each: at for each, at in self._due.items() if now - at <= ABSENT_AFTER}
        self._served = {each: at for each, at in self._served.items() if now - at <= KEPT_FOR}

    def _next_namespace(self) -> str:
        """Return the due namespace that was served longest ago; the longest due one of several."""
        return min(self._due, key=lambda each: self._served.get(each, float("-inf")))

    def worked(self, request: Request, seconds: float) -> None:
        """Record the duration of a reconcile; the next object waits PAUSE_RATIO times as long."""
        now, namespace = self._clock.monotonic(), request.namespace
        pause = min(max(PAUSE_RATIO * seconds, SHORTEST_PAUSE), LONGEST_PAUSE)
        self._free = {each: free for each, free in self._free.items() if free > now}
        self._pauses = {each: self._pauses.get(each, pause) for each in self._free}
        self._free[namespace] = max(self._free.get(namespace, now), now + pause)
        self._pauses[namespace] = pause

    def forget(self, request: Request) -> None:
        """Drop the slot of this object; other objects of its namespace keep their turn."""
        if self._slots.pop(request, None) is not None:
            self._due.pop(request.namespace, None)


# Returns the revision with which a TrainJob has begun but which its status may not record yet.
BegunRevision = Callable[[Request], ObjectKey | None]


class LargeObjectReconciler:
    """Load large objects into the OverlayCache and call the wrapped reconciler."""

    def __init__(
        self,
        reconciler: Reconciler,
        client: Client,
        view: OverlayCache,
        *,
        clock: Clock,
        begun_revision: BegunRevision = lambda _: None,
    ) -> None:
        self._reconciler = reconciler
        self._client = client
        self._view = view
        self._clock = clock
        self._begun_revision = begun_revision
        self._schedule = Schedule(clock)
        self._working = asyncio.Lock()

    async def reconcile(self, request: Request) -> Result:
        """Read the large objects of the TrainJob, if there are any, and reconcile it."""
        if not any(self._reduced(request, None)):
            self._schedule.forget(request)
            with self._view.scope(request):
                return await self._reconciler.reconcile(request)
        if delay := self._schedule.delay(request, is_busy=self._working.locked()):
            return Result(requeue_after=delay)
        began = self._clock.monotonic()
        async with self._working:
            try:
                return await self._reconcile(request)
            finally:
                collect_recent()
                self._schedule.worked(request, self._clock.monotonic() - began)

    async def _reconcile(self, request: Request) -> Result:
        with self._view.scope(request) as scope:
            with failing_reconcile("read a large object", max_delay=math.inf):
                is_there = await self._load(request, scope)
            # If the TrainJob was deleted, the watch has not reported that yet.
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
            found = await get_or_none(self._client, resource, key, kind_may_be_missing=True)
            scope.load(resource, key, found)
        return True

    def _reduced(
        self, request: Request, job: Manifest | None
    ) -> Iterator[tuple[Resource[Any], ObjectKey]]:
        """Yield the objects that planning reads and of which the cache holds only a part."""
        manifest = job if job is not None else self._view.cached_part(TRAIN_JOBS, request)
        if manifest is None:
            return
        if self._view.is_reduced(TRAIN_JOBS, request):
            yield TRAIN_JOBS, request
        runtime = referenced_runtime_in(manifest)
        revision = recorded_revision_in(manifest) or self._begun_revision(request)
        yield from reduced_objects(self._view, request, runtime, revision)


def reduced_objects(
    view: OverlayCache,
    job: ObjectKey,
    runtime: RuntimeKey | None,
    revision: ObjectKey | None,
) -> Iterator[tuple[Resource[Any], ObjectKey]]:
    """Yield the JobSet, the runtime and the revision of which the cache holds only parts.

    They are those of the TrainJob, which records the revision in its status, or will.
    """
    objects: list[tuple[Resource[Any], ObjectKey]] = [(JOB_SETS, job)]
    if runtime is not None:
        objects.append(runtime)
    if revision is not None:
        objects.append((CONTROLLER_REVISIONS, revision))
    return (each for each in objects if view.is_reduced(*each))


async def read_train_job(client: Client, key: ObjectKey) -> Manifest | None:
    """Read a TrainJob with a list request, which needs no extra permission."""
    selector = f"metadata.name={key.name}"
    page = await client.list(TRAIN_JOBS, namespace=key.namespace, field_selector=selector)
    return page.items[0] if page.items else None
