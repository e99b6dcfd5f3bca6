"""The controllers of runtimes: one that TrainJobs refer to is not deleted under them."""

from collections.abc import Iterable
from typing import Any

import structlog

from kftrainer.api import names
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.client import Client
from kftrainer.kube.errors import ConflictError, KubeError, NotFoundError
from kftrainer.kube.meta import ObjectMeta
from kftrainer.kube.model import InvalidDocumentError
from kftrainer.kube.resource import ObjectKey, Resource
from kftrainer.machinery.cache import Cache
from kftrainer.machinery.changes import Change, Seen
from kftrainer.machinery.handlers import Handler
from kftrainer.machinery.reconcile import DONE, Request, Result

log = structlog.get_logger(__name__)

INDEX_RUNTIME = "runtime"
FINALIZER = names.FINALIZER_RUNTIME_IN_USE
LATER = Result(requeue=True)


class RuntimeUseReconciler:
    """Keeps a finalizer on the runtimes of one kind that are in use.

    It is put on when the first TrainJob refers to the runtime, and taken off when the runtime is
    being deleted and the last one is gone; a runtime that merely rests keeps it.
    """

    def __init__(self, client: Client, cache: Cache, resource: Resource[Any]) -> None:
        self._client = client
        self._cache = cache
        self._resource = resource
        self._answered: dict[ObjectKey, str | None] = {}  # versions that we have changed already

    async def reconcile(self, request: Request) -> Result:
        """Put the finalizer on or take it off, if that is due."""
        seen = self._cache.informer(self._resource).seen(request)
        if seen is None:
            self._answered.pop(request, None)
            return DONE
        metadata = ObjectMeta.parse(seen.metadata)
        in_use = self._cache.has_index(
            TRAIN_JOBS, INDEX_RUNTIME, index_value(self._resource, request)
        )
        wanted = wanted_finalizers(metadata, in_use=in_use)
        if wanted == (metadata.finalizers or []):
            return DONE
        if self._answered.get(request) == metadata.resource_version:
            return DONE  # the cache lags: there will be news of what we wrote
        return await self._write(request, metadata, wanted)

    async def _write(self, key: ObjectKey, metadata: ObjectMeta, finalizers: list[str]) -> Result:
        # The whole list is replaced: it must be the one that we have seen.
        changed = {"finalizers": finalizers, "resourceVersion": metadata.resource_version}
        try:
            await self._client.merge_patch(
                self._resource, key, {"metadata": changed}, field_manager=names.FIELD_MANAGER
            )
        except (ConflictError, NotFoundError) as error:
            log.debug("runtime.changed_meanwhile", error=str(error))  # and there will be news of it
        except KubeError as error:
            log.warning("runtime.finalizers_not_written", error=str(error))
            return LATER
        else:
            log.info("runtime.finalizers", finalizers=finalizers)
            self._answered[key] = metadata.resource_version
        return DONE


def wanted_finalizers(metadata: ObjectMeta, *, in_use: bool) -> list[str]:
    """The finalizers that a runtime should have."""
    present = list(metadata.finalizers or ())
    deleting = metadata.deletion_timestamp is not None
    if FINALIZER not in present and in_use and not deleting:
        return [*present, FINALIZER]
    if deleting and not in_use:
        return [each for each in present if each != FINALIZER]
    return present


def runtimes_of_job(seen: Seen[TrainJob]) -> Iterable[str]:
    """The index of TrainJobs by their runtimes."""
    try:
        job = seen.object
    except InvalidDocumentError:
        return ()
    reference = job.spec.runtime_ref
    namespace = "" if reference.kind == names.CLUSTER_TRAINING_RUNTIME else job.metadata.namespace
    key = ObjectKey(namespace or "", reference.name)
    return (f"{reference.kind}.{reference.api_group} {key}",)


def index_value(resource: Resource[Any], key: ObjectKey) -> str:
    """What TrainJobs on this runtime have in the index."""
    return f"{resource.group_kind} {key}"


def enqueue_runtime(resource: Resource[Any]) -> Handler:
    """Look at the runtime of this kind that a TrainJob refers to, or referred to."""
    kind = f"{resource.group_kind} "

    def runtimes(change: Change[TrainJob]) -> Iterable[Request]:
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
