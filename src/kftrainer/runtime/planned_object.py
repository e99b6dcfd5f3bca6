"""Objects that plugins want applied, and the order in which they are applied."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kftrainer.kube.objects.resource import Manifest, Resource


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """An object to apply or, if `generate` is given, to create once and then not modify.

    `generate` returns the object with random content, such as keys. It is called only when the
    object is created, so that plans are deterministic; `manifest` lacks the random content.
    `sources` maps paths of the manifest to the fields that their values come from, for `--explain`.
    """

    resource: Resource[Any]
    manifest: Manifest
    generate: Callable[[], Manifest] | None = None
    generated_keys: tuple[str, ...] = ()  # keys of `data` that `generate` fills
    sources: Mapping[str, str] = field(default_factory=dict)


# Objects that pods refer to come first, and the JobSet that creates the pods last.
_RANKS = {"Secret": 0, "ConfigMap": 1, "PodGroup": 3, "JobSet": 4}
_OTHERS = 2


def apply_order(planned: PlannedObject) -> int:
    """Return the sort key that puts objects in the order to apply them."""
    return _RANKS.get(planned.resource.kind, _OTHERS)
