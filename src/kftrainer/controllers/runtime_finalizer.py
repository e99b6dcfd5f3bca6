"""Controllers that protect runtimes in use by TrainJobs from deletion, with a finalizer.

A finalizer that is never removed blocks the deletion of the runtime and of its namespace. A manager
therefore adds it only where it can remove it later, and also removes those of earlier managers.
"""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

import structlog

from kftrainer.api import names
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.failed_writes import result_of_failed_write
from kftrainer.controllers.trainjob_index import (
    INDEX_RUNTIME,
    index_value,
    runtime_of_manifest,
    runtimes_of_job,
)
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.kube.permissions import may_everywhere
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.handlers import Handler
from kftrainer.machinery.controller.reconcile import DONE, Request, Result
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.repair_backoff import RepairBackoff

log = structlog.get_logger(__name__)

FINALIZER = names.FINALIZER_RUNTIME_IN_USE
# No event reports that an unwatched TrainJob was deleted, so check periodically.
CHECK_AGAIN = Result(requeue_after=60.0)
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 60.0  # seconds before adding a removed finalizer again


class RuntimeFinalizerReconciler:
    """Maintain the finalizer of the runtimes of one kind that are in use.

    The finalizer is added when the first TrainJob refers to the runtime. It is removed when the
    runtime is being deleted and no TrainJob refers to it any more, not before.

    A manager that watches only some namespaces cannot determine whether a ClusterTrainingRuntime is
    in use. It never adds the finalizer to one, and removes an existing one when no TrainJob that it
    can read uses the runtime. It adds the finalizer to TrainingRuntimes only if it may patch them
    in all namespaces: a Role is deleted together with its namespace, and the finalizer would
    remain.
    """

    def __init__(
        self,
        client: Client,
        cache: Cache,
        resource: Resource[Any],
        *,
        clock: Clock,
        watches_all: bool,
    ) -> None:
        self._client = client
        self._cache = cache
        self._resource = resource
        self._watches_all = watches_all  # the TrainJobs of all namespaces
        self._may_add = True if watches_all else None  # None: not determined yet
        self._backoff = RepairBackoff[Request](clock, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self._patched: dict[ObjectKey, str | None] = {}  # resourceVersions already patched

    async def reconcile(self, request: Request) -> Result:
        """Add or remove the finalizer if that is necessary."""
        seen = self._cache.informer(self._resource).cached_object(request)
        if seen is None:
            self._patched.pop(request, None)
            return DONE
        metadata = ObjectMeta.parse(seen.metadata)
        wanted = wanted_finalizers(metadata, in_use=self._is_in_use(request))
        if wanted == (metadata.finalizers or []):
            self._backoff.record_unchanged(request)
            return DONE
        if self._patched.get(request) == metadata.resource_version:
            return DONE  # the cache lags: the event of our write follows
        return await self._change(request, metadata, None if seen.is_reduced else wanted)

    async def _change(
        self, request: Request, metadata: ObjectMeta, wanted: list[str] | None
    ) -> Result:
        """Write the finalizers; without `wanted`, read a large runtime first to compute them."""
        try:
            if wanted is None:
                live = await self._client.get(self._resource.only_metadata(), request)
                metadata = ObjectMeta.parse(live["metadata"])
                wanted = wanted_finalizers(metadata, in_use=self._is_in_use(request))
                if wanted == (metadata.finalizers or []):
                    return DONE
            if FINALIZER in wanted:
                return await self._add(request, metadata, wanted)
            return await self._remove(request, metadata, wanted)
        except KubeError as error:
            return result_of_failed_write(
                error, "write the finalizers", conflict_event="runtime_conflict"
            )

    async def _add(self, key: Request, metadata: ObjectMeta, wanted: list[str]) -> Result:
        if not await self._adds():
            return DONE
        if pause := self._backoff.pause(key):
            return Result(requeue_after=pause)
        await self._write(key, metadata, wanted)
        if self._backoff.record_write(key):
            log.warning(
                "runtime_finalizer_repeatedly_removed",
                why="another client keeps removing the finalizer of a runtime that is in use; it "
                "is added again at growing intervals",
            )
        return DONE

    def _is_in_use(self, request: Request) -> bool:
        value = index_value(self._resource, request)
        return self._cache.has_index(TRAIN_JOBS, INDEX_RUNTIME, value)

    async def _adds(self) -> bool:
        if self._may_add is None:
            is_namespaced = self._resource.namespaced
            self._may_add = is_namespaced and await may_everywhere(
                self._client, "patch", self._resource
            )
            if not self._may_add:
                log.info(
                    "runtime_finalizers_not_added",
                    kind=self._resource.kind,
                    why="the manager watches some namespaces only, and could not remove them later",
                )
        return self._may_add

    async def _remove(self, key: Request, metadata: ObjectMeta, wanted: list[str]) -> Result:
        """Remove the finalizer, unless a TrainJob that is not cached may use the runtime."""
        if await self._may_be_used(key):
            return CHECK_AGAIN
        await self._write(key, metadata, wanted)
        return DONE

    async def _may_be_used(self, key: Request) -> bool:
        """Whether TrainJobs that are not cached may use the runtime."""
        if self._resource.namespaced:
            return not self._cache.informer(TRAIN_JOBS).is_readable(key.namespace)
        if self._watches_all or not await may_everywhere(self._client, "list", TRAIN_JOBS):
            return False
        return await is_used(self._client, self._resource, key)

    async def _write(self, key: ObjectKey, metadata: ObjectMeta, finalizers: list[str]) -> None:
        await write_finalizers(self._client, self._resource, key, metadata, finalizers)
        log.info("runtime_finalizers_updated", finalizers=finalizers)
        self._patched[key] = metadata.resource_version


async def write_finalizers(
    client: Client,
    resource: Resource[Any],
    key: ObjectKey,
    metadata: ObjectMeta,
    finalizers: list[str],
) -> None:
    """Replace the finalizers of the runtime.

    Raises ConflictError if the runtime has changed since it was read.
    """
    changed = {"finalizers": finalizers, "resourceVersion": metadata.resource_version}
    await client.merge_patch(
        resource, key, {"metadata": changed}, field_manager=names.FIELD_MANAGER
    )


async def remove_finalizer(
    client: Client, resource: Resource[Any], key: ObjectKey, metadata: ObjectMeta
) -> None:
    """Remove our finalizer from the runtime and keep the others.

    Raises ConflictError if the runtime has changed since it was read.
    """
    others = [each for each in metadata.finalizers or () if each != FINALIZER]
    await write_finalizers(client, resource, key, metadata, others)


async def is_used(client: Client, resource: Resource[Any], key: ObjectKey) -> bool:
    """Whether a TrainJob refers to the runtime, by a live list that stops at the first one."""
    value, namespace = index_value(resource, key), key.namespace or None
    async with aclosing(client.list_pages(TRAIN_JOBS, namespace=namespace)) as pages:
        async for page in pages:
            if any(runtime_of_manifest(each) == value for each in page.items):
                return True
    return False


def wanted_finalizers(metadata: ObjectMeta, *, in_use: bool) -> list[str]:
    """Return the finalizers that a runtime should have."""
    present = list(metadata.finalizers or ())
    deleting = metadata.deletion_timestamp is not None
    if FINALIZER not in present and in_use and not deleting:
        return [*present, FINALIZER]
    if deleting and not in_use:
        return [each for each in present if each != FINALIZER]
    return present


def enqueue_runtime(resource: Resource[Any]) -> Handler:
    """Return a handler that enqueues the runtime that a TrainJob refers or referred to."""
    kind = f"{resource.group_kind} "

    def runtimes(change: ObjectEvent[TrainJob]) -> Iterable[Request]:
        both = (seen for seen in (change.old, change.new) if seen is not None)
        return dict.fromkeys(
            _key(value.removeprefix(kind))
            for seen in both
            for value in runtimes_of_job(seen)
            if value.startswith(kind)
        )

    return runtimes


def _key(text: str) -> ObjectKey:
    namespace, _, name = text.rpartition("/")
    return ObjectKey(namespace, name)
