"""From a change to the requests that it calls for: plain functions, quick, without any waiting."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kftrainer.kube.objects.resource import Manifest, Resource
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject
from kftrainer.machinery.controller.reconcile import Request

# None stands for an object that was looked at and that is not to be reconciled: a handler that
# looks at many objects yields one for each, so that others get their turn meanwhile.
Handler = Callable[[ObjectEvent[Any]], Iterable[Request | None]]


def enqueue_self(change: ObjectEvent[Any]) -> Iterable[Request]:
    """Look at the object that has changed."""
    return (change.key,)


def enqueue_owner(owner: Resource[Any], *, controller_only: bool = True) -> Handler:
    """Look at the owners of this kind that the object has, or had before the change."""

    def owners(change: ObjectEvent[Any]) -> Iterable[Request]:
        namespace = change.key.namespace if owner.namespaced else ""
        return dict.fromkeys(
            Request(namespace, reference["name"])
            for seen in _both(change)
            for reference in seen.metadata.get("ownerReferences") or ()
            if _is_of(owner, reference) and (reference.get("controller") or not controller_only)
        )

    return owners


def enqueue_mapped(to_requests: Callable[[Any], Iterable[Request | None]]) -> Handler:
    """Look at whatever the object maps to, as it is and as it was before the change.

    The requests are found one by one, when they are asked for: that may take long.

    What needs more than the caches to be found is not for a handler: reconcile something that
    finds it.
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


def _is_of(owner: Resource[Any], reference: Manifest) -> bool:
    # Any version: an object that was made by an older controller still has the same owner.
    group, _, _ = reference["apiVersion"].rpartition("/")
    return (group, reference["kind"]) == (owner.group, owner.kind)
