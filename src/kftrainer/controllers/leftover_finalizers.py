"""Removes finalizers of runtimes in namespaces that the manager does not watch any more.

A manager that watched all namespaces, or Kubeflow Trainer, may have left them there: deletions of
these runtimes, and of their namespaces, would hang for ever.
"""

import asyncio
from collections.abc import Callable, Collection

import structlog

from kftrainer.api.resources import TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.controllers.runtime_finalizer import FINALIZER, is_used, write_finalizers
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ConflictError, KubeError, NotFoundError
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.kube.permissions import may_everywhere
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause

log = structlog.get_logger(__name__)

SWEEP_EVERY = 60.0  # seconds
ASK_AGAIN = 600.0  # seconds, for rights that are missing
# What it takes in all namespaces; with rights in the watched ones only, nothing is done.
NEEDED = (("list", TRAINING_RUNTIMES), ("patch", TRAINING_RUNTIMES), ("list", TRAIN_JOBS))


class LeftoverFinalizers:
    """A service for the leader of a manager with some namespaces, if its rights reach further.

    It only removes the finalizer of a runtime that is being deleted, and only when a live list
    shows no TrainJob that uses it: whoever watches that namespace would decide the same.
    """

    name = "leftover finalizers"

    def __init__(self, client: Client, watched: Collection[str], *, clock: Clock) -> None:
        self._client = client
        self._watched = frozenset(watched)
        self._clock = clock

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Look for them now and then until `stop` is set."""
        ready()
        while not stop.is_set():
            try:
                permitted = await self._sweep()
            except KubeError as error:
                log.warning("leftover_finalizers_not_removed", error=str(error))
                permitted = True
            await pause(self._clock, SWEEP_EVERY if permitted else ASK_AGAIN, unless=stop)

    async def _sweep(self) -> bool:
        """Remove what is due; returns False without the rights to."""
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
        others = [each for each in metadata.finalizers or () if each != FINALIZER]
        try:
            await write_finalizers(self._client, TRAINING_RUNTIMES, key, metadata, others)
        except (ConflictError, NotFoundError) as error:
            log.debug("runtime.changed_meanwhile", error=str(error))  # the next sweep sees it
        else:
            log.info("leftover_finalizer_removed", runtime=str(key))


def is_leftover(metadata: ObjectMeta, watched: Collection[str]) -> bool:
    """Whether our finalizer keeps a runtime that is being deleted and that is not watched."""
    return (
        metadata.deletion_timestamp is not None
        and FINALIZER in (metadata.finalizers or ())
        and metadata.namespace not in watched
    )
