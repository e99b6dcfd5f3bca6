"""Event filters. Objects that are added, deleted or replaced always pass."""

from collections.abc import Callable, Mapping
from typing import Any

from kftrainer.machinery.controller.events import ObjectEvent

Predicate = Callable[[ObjectEvent[Any]], bool]


def generation_changed(change: ObjectEvent[Any]) -> bool:
    """Pass if the spec changed or the deletion started; the kind needs metadata.generation."""
    return _differs(change, "generation", None)


def labels_changed(change: ObjectEvent[Any]) -> bool:
    """Pass if the labels changed."""
    return _differs(change, "labels", {})


def annotations_changed(change: ObjectEvent[Any]) -> bool:
    """Pass if the annotations changed."""
    return _differs(change, "annotations", {})


def any_of(*predicates: Predicate) -> Predicate:
    """Return a predicate that passes if at least one of these passes."""
    return lambda change: any(predicate(change) for predicate in predicates)


content_changed = any_of(generation_changed, labels_changed, annotations_changed)
"""Pass if the spec, labels or annotations changed, which users write; ignores the status."""


def _differs(change: ObjectEvent[Any], field: str, absent: Mapping[str, str] | None) -> bool:
    if change.old is None or change.new is None:
        return True
    old, new = change.old.metadata, change.new.metadata
    # A re-created object with the same name starts at the same generation.
    if old.get("uid") != new.get("uid"):
        return True
    return bool((old.get(field) or absent) != (new.get(field) or absent))
