"""Event handlers: functions that map an event to requests, without blocking."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kftrainer.kube.objects.resource import Resource
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject
from kftrainer.machinery.controller.reconcile import Request

# None stands for an object that needs no reconcile. A handler that checks many objects yields None
# for these, so that the caller can let other tasks run in between.
Handler = Callable[[ObjectEvent[Any]], Iterable[Request | None]]


def enqueue_self(change: ObjectEvent[Any]) -> Iterable[Request]:
    """Enqueue the object of the event."""
    return (change.key,)


def enqueue_owner(owner: Resource[Any], *, controller_only: bool = True) -> Handler:
    """Enqueue the object's owners of this kind, from before and after the change."""

    def owners(change: ObjectEvent[Any]) -> Iterable[Request]:
        namespace = change.key.namespace if owner.namespaced else ""
        return dict.fromkeys(
            Request(namespace, reference["name"])
            for seen in _both(change)
            for reference in seen.metadata.get("ownerReferences") or ()
            if owner.is_referred_to_by(reference)
            and (reference.get("controller") or not controller_only)
        )

    return owners


def enqueue_mapped(to_requests: Callable[[Any], Iterable[Request | None]]) -> Handler:
    """Enqueue the requests that the object maps to, before and after the change.

    The requests are computed lazily, because that may take long.

    `to_requests` may only read from caches. If more is needed, enqueue an object whose reconciler
    looks it up.
    """

    def mapped(change: ObjectEvent[Any]) -> Iterator[Request | None]:
        found: set[Request | None] = set()
        for seen in _both(change):
            for request in to_requests(seen.object):
                yield None if request in found else request
                found.add(request)

    return mapped


def _both(change: ObjectEvent[Any]) -> Iterator[ObservedObject[Any]]:
    return (seen for seen in (change.old, change.new) if seen is not None)
