"""An object that a TrainJob needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kftrainer.kube.objects.resource import Manifest, Resource


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """An object to apply, or, where `mint` is given, to create once and then leave alone.

    `mint` makes the object with what is drawn by chance, such as keys: plans are the same each
    time, and chance comes in only when the object is created. `manifest` lacks those parts.
    `sources` says from which field what is at a path of the manifest comes, for `--explain`.
    """

    resource: Resource[Any]
    manifest: Manifest
    mint: Callable[[], Manifest] | None = None
    minted_keys: tuple[str, ...] = ()  # of `data`, which `mint` fills
    sources: Mapping[str, str] = field(default_factory=dict)


# Objects that others refer to come first, and those whose pods would refer to them last.
_RANKS = {"Secret": 0, "ConfigMap": 1, "PodGroup": 3, "JobSet": 4}
_OTHERS = 2


def apply_order(planned: PlannedObject) -> int:
    """Where in the order of applying an object belongs."""
    return _RANKS.get(planned.resource.kind, _OTHERS)
