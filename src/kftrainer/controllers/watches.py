"""Kinds that the manager watches, and the TrainJobs that their events enqueue."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CONTROLLER_REVISIONS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from kftrainer.controllers.trainjob_index import (
    ALL,
    INDEX_UNFINISHED,
    in_namespace,
    index_value,
)
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, controller_of
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.handlers import Handler, enqueue_mapped, enqueue_owner
from kftrainer.machinery.controller.reconcile import Request
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.framework.extension_points import Watch

RUNTIME_KINDS = (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """A kind that one or more plugins watch."""

    resource: Resource[Any]  # as it is cached: complete or metadata only
    handlers: Sequence[Handler]
    keep: Callable[[Manifest], bool] | None


def watched_kinds(watches: Iterable[Watch], existing: ClusterReader) -> list[WatchedKind]:
    """Return the kinds that plugins watch, each once, with all their handlers."""
    by_resource: dict[Resource[Any], list[Watch]] = {}
    for watch in watches:
        by_resource.setdefault(watch.resource, []).append(watch)
    cached_as = partial_kinds([watch for same_kind in by_resource.values() for watch in same_kind])
    return [
        _watched(cached_as.get(resource, resource), same_kind, existing)
        for resource, same_kind in by_resource.items()
    ]


def _watched(resource: Resource[Any], watches: list[Watch], existing: ClusterReader) -> WatchedKind:
    only_owned = all(watch.map_func is None for watch in watches)
    map_funcs = dict.fromkeys(watch.map_func for watch in watches)
    return WatchedKind(
        resource=resource,
        handlers=[_handler(each, existing) for each in map_funcs],
        keep=belongs_to_train_job if only_owned else None,
    )


def _handler(
    map_func: Callable[[Any, ClusterReader], Iterable[ObjectKey | None]] | None,
    existing: ClusterReader,
) -> Handler:
    if map_func is None:
        return enqueue_owner(TRAIN_JOBS)
    return enqueue_mapped(lambda manifest: map_func(manifest, existing))


def controlling_train_job(metadata: Manifest) -> Manifest | None:
    """Return the reference to the TrainJob that controls the object with this metadata."""
    controller = controller_of(metadata)
    return controller if controller and TRAIN_JOBS.is_referred_to_by(controller) else None


def belongs_to_train_job(manifest: Manifest) -> bool:
    """Whether a TrainJob controls the object; other objects are not cached."""
    return controlling_train_job(manifest["metadata"]) is not None


def enqueue_unfinished(cache: Cache, resource: Resource[Any]) -> Handler:
    """Return a handler that enqueues the unfinished TrainJobs of a changed runtime."""

    def jobs(change: ObjectEvent[Any]) -> Iterable[Request]:
        return cache.index_keys(TRAIN_JOBS, INDEX_UNFINISHED, index_value(resource, change.key))

    return jobs


def enqueue_begun(cache: Cache) -> Handler:
    """Return a handler that enqueues the unfinished TrainJobs of a created or deleted revision."""

    def jobs(change: ObjectEvent[Any]) -> Iterable[Request]:
        if change.initial or (change.old is not None and change.new is not None):
            return ()
        value = index_value(CONTROLLER_REVISIONS, change.key)
        return cache.index_keys(TRAIN_JOBS, INDEX_UNFINISHED, value)

    return jobs


def unfinished(cache: Cache, namespace: str | None = None) -> list[Request]:
    """Return the unfinished TrainJobs, of all namespaces or of one."""
    value = ALL if namespace is None else in_namespace(namespace)
    return cache.index_keys(TRAIN_JOBS, INDEX_UNFINISHED, value)


def partial_kinds(watches: Sequence[Watch]) -> Mapping[Resource[Any], Resource[Any]]:
    """Return the metadata-only resources by the resources in the plugins' watches.

    A kind is cached as metadata only if no watch needs the complete object.
    """
    complete = {watch.resource for watch in watches if not watch.metadata_only}
    every = dict.fromkeys(watch.resource for watch in watches)
    return {each: each.only_metadata() for each in every if each not in complete}
