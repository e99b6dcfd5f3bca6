"""Which changes matter: plain functions. An object that comes, goes or is replaced always does."""

from collections.abc import Callable, Mapping
from typing import Any

from kftrainer.machinery.controller.events import ObjectEvent

Predicate = Callable[[ObjectEvent[Any]], bool]


def generation_changed(change: ObjectEvent[Any]) -> bool:
    """What is wanted of it has changed, or its deletion has begun; a kind needs generations."""
    return _differs(change, "generation", None)


def resource_version_changed(change: ObjectEvent[Any]) -> bool:
    """Anything about it has changed."""
    return _differs(change, "resourceVersion", None)


def labels_changed(change: ObjectEvent[Any]) -> bool:
    """Its labels have changed."""
    return _differs(change, "labels", {})


def annotations_changed(change: ObjectEvent[Any]) -> bool:
    """Its annotations have changed."""
    return _differs(change, "annotations", {})


def all_of(*predicates: Predicate) -> Predicate:
    """Every one says so."""
    return lambda change: all(predicate(change) for predicate in predicates)


def any_of(*predicates: Predicate) -> Predicate:
    """At least one says so."""
    return lambda change: any(predicate(change) for predicate in predicates)


def negate(predicate: Predicate) -> Predicate:
    """It does not say so."""
    return lambda change: not predicate(change)


content_changed = any_of(generation_changed, labels_changed, annotations_changed)
"""What a user writes has changed: the spec, labels or annotations; the status does not matter."""


def _differs(change: ObjectEvent[Any], field: str, absent: Mapping[str, str] | None) -> bool:
    if change.old is None or change.new is None:
        return True
    old, new = change.old.metadata, change.new.metadata
    # Another object of the same name starts at the same generation.
    if old.get("uid") != new.get("uid"):
        return True
    return bool((old.get(field) or absent) != (new.get(field) or absent))
