"""Keeps the runtimes that come with the operator in the cluster, as its folder has them."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from kftrainer.api import names
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES
from kftrainer.kube.client import Client
from kftrainer.kube.errors import ConflictError, KubeError, NotFoundError
from kftrainer.kube.meta import ObjectMeta
from kftrainer.kube.resource import Manifest, ObjectKey
from kftrainer.machinery.backoff import Exponential
from kftrainer.machinery.cache import Cache
from kftrainer.machinery.clock import Clock
from kftrainer.machinery.controller import Controller
from kftrainer.machinery.handlers import enqueue_self
from kftrainer.machinery.metrics import Metrics
from kftrainer.machinery.reconcile import DONE, Request, Result

log = structlog.get_logger(__name__)

CONTROLLER = "shippedruntimes_controller"
FIELD_MANAGER = "kftrainer-runtimes"
LATER = Result(requeue=True)
RECONCILE_WITHIN = 120.0
# At first our own webhook may not be reached yet, for seconds; a right may be missing for hours.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 60.0


@dataclass(frozen=True, slots=True)
class Shipped:
    """A runtime as it is to be applied; its mark says from which document it was made."""

    name: str
    manifest: Manifest
    mark: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the runtime."""

    shipped: Shipped
    why: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the runtime, if it is still the one that was seen."""

    uid: str | None
    resource_version: str | None


def shipped(document: Manifest) -> Shipped:
    """The runtime in a document, marked as ours."""
    content = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    metadata: dict[str, Any] = {**document["metadata"]}
    name = str(metadata["name"])
    mark = f"{name}/{hashlib.sha256(content).hexdigest()}"
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY_KFTRAINER}
    annotations = {names.ANNOTATION_SHIPPED_HASH: mark}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    return Shipped(name, {**document, "metadata": metadata}, mark)


def next_step(wanted: Shipped | None, there: ObjectMeta | None) -> Apply | Delete | None:
    """What to do about one name; pure.

    What people have changed by hand stays until the document changes. A runtime that is being
    deleted is left alone: if it is wanted, it comes back when it is gone.
    """
    if there is None:
        return Apply(wanted, "it is not there") if wanted is not None else None
    if there.deletion_timestamp is not None:
        return None
    if wanted is not None:
        is_same = _mark(there) == wanted.mark
        return None if is_same else Apply(wanted, "its file is another now")
    return Delete(there.uid, there.resource_version) if _is_ours(there) else None


def _is_ours(there: ObjectMeta) -> bool:
    """Whether we have applied it; a copy under another name has our label, but not its mark."""
    label = (there.labels or {}).get(names.LABEL_MANAGED_BY)
    return label == names.MANAGED_BY_KFTRAINER and _mark(there).startswith(f"{there.name}/")


def _mark(there: ObjectMeta) -> str:
    return (there.annotations or {}).get(names.ANNOTATION_SHIPPED_HASH, "")


class ShippedRuntimesReconciler:
    """Applies what is missing or has another document by now, and deletes what was left out.

    That something could not be written is told once, and tried again; all else goes on.
    """

    def __init__(self, client: Client, cache: Cache, wanted: Mapping[str, Shipped]) -> None:
        self._client = client
        self._cache = cache
        self._wanted = wanted
        self._told: dict[Request, str] = {}  # what the log has last said of a runtime's trouble

    async def reconcile(self, request: Request) -> Result:
        """Do what is due, if anything is."""
        seen = self._cache.informer(CLUSTER_TRAINING_RUNTIMES).seen(request)
        there = None if seen is None else ObjectMeta.parse(seen.metadata)
        match next_step(self._wanted.get(request.name), there):
            case Apply() as step:
                return await self._apply(request, step)
            case Delete() as step:
                return await self._delete(request, step)
            case None:
                self._told.pop(request, None)
                return DONE

    async def _apply(self, request: Request, step: Apply) -> Result:
        try:
            await self._client.apply(
                CLUSTER_TRAINING_RUNTIMES, step.shipped.manifest, field_manager=FIELD_MANAGER
            )
        except KubeError as error:
            return self._later(request, "shipped_runtime.not_applied", error)
        log.info("shipped_runtime.applied", why=step.why)
        self._told.pop(request, None)
        return DONE

    async def _delete(self, request: Request, step: Delete) -> Result:
        try:
            await self._client.delete(
                CLUSTER_TRAINING_RUNTIMES,
                request,
                uid=step.uid,
                resource_version=step.resource_version,
            )
        except (ConflictError, NotFoundError) as error:
            log.debug("shipped_runtime.changed_meanwhile", error=str(error))  # news will follow
            return DONE
        except KubeError as error:
            return self._later(request, "shipped_runtime.not_deleted", error)
        log.info("shipped_runtime.deleted", why="it is in no file any more")
        self._told.pop(request, None)
        return DONE

    def _later(self, request: Request, event: str, error: KubeError) -> Result:
        text = " ".join(str(error).split())
        tell = log.debug if self._told.get(request) == text else log.warning
        tell(event, error=text)
        self._told[request] = text
        return LATER


def shipped_runtimes_controller(
    documents: Iterable[Manifest], client: Client, cache: Cache, *, clock: Clock, metrics: Metrics
) -> Controller:
    """The controller that has these documents applied, whether or not anything is there."""
    wanted = {each.name: each for each in map(shipped, documents)}
    controller = Controller(
        CONTROLLER,
        ShippedRuntimesReconciler(client, cache, wanted),
        clock=clock,
        timeout=RECONCILE_WITHIN,
        backoff=Exponential(FIRST_PAUSE, LONGEST_PAUSE),
        metrics=metrics,
    )
    controller.watch(cache.informer(CLUSTER_TRAINING_RUNTIMES), enqueue_self)
    for name in wanted:
        controller.enqueue(ObjectKey("", name))
    return controller
