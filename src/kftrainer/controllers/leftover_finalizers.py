"""Removes finalizers from runtimes in namespaces that the manager does not watch.

A manager that watched all namespaces, or Kubeflow Trainer, may have added them. Without their
removal, the deletion of these runtimes and of their namespaces would never complete.
"""

import asyncio
from collections.abc import Callable, Collection

import structlog

from kftrainer.api.resources import TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.controllers.runtime_finalizer import FINALIZER, is_used, remove_finalizer
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ConflictError, KubeError, NotFoundError
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.kube.permissions import may_everywhere
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause

log = structlog.get_logger(__name__)

SWEEP_EVERY = 60.0  # seconds
RECHECK_AFTER = 600.0  # seconds until missing permissions are checked again
# Permissions that are needed in all namespaces; without them, nothing is done.
NEEDED = (("list", TRAINING_RUNTIMES), ("patch", TRAINING_RUNTIMES), ("list", TRAIN_JOBS))


class LeftoverFinalizers:
    """Runnable for the leader of a manager that watches some namespaces but may access all.

    It removes the finalizer only from a runtime that is being deleted, and only if a live list has
    no TrainJob that uses it. A manager that watches that namespace would do the same.
    """

    name = "leftover finalizers"

    def __init__(self, client: Client, watched: Collection[str], *, clock: Clock) -> None:
        self._client = client
        self._watched = frozenset(watched)
        self._clock = clock

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Sweep periodically until `stop` is set."""
        ready()
        while not stop.is_set():
            try:
                permitted = await self._sweep()
            except KubeError as error:
                log.warning("leftover_finalizers_not_removed", error=str(error))
                permitted = True
            await pause(self._clock, SWEEP_EVERY if permitted else RECHECK_AFTER, stop=stop)

    async def _sweep(self) -> bool:
        """Remove leftover finalizers; return False if permissions are missing."""
        for verb, resource in NEEDED:
            if not await may_everywhere(self._client, verb, resource):
                return False
        found = await self._client.list(TRAINING_RUNTIMES.only_metadata())
        for item in found.items:
            metadata = ObjectMeta.parse(item["metadata"])
            if is_leftover(metadata, self._watched):
                await self._release(metadata)
        return True

    async def _release(self, metadata: ObjectMeta) -> None:
        key = ObjectKey(metadata.namespace or "", metadata.name)
        if await is_used(self._client, TRAINING_RUNTIMES, key):
            return
        try:
            await remove_finalizer(self._client, TRAINING_RUNTIMES, key, metadata)
        except (ConflictError, NotFoundError) as error:
            log.debug("runtime_conflict", error=str(error))  # the next sweep retries
        else:
            log.info("leftover_finalizer_removed", runtime=str(key))


def is_leftover(metadata: ObjectMeta, watched: Collection[str]) -> bool:
    """Whether our finalizer blocks the deletion of a runtime that is not watched."""
    return (
        metadata.deletion_timestamp is not None
        and FINALIZER in (metadata.finalizers or ())
        and metadata.namespace not in watched
    )
