"""Requests above their limits: the API server would refuse each pod, long after the TrainJob."""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.kube.objects.quantity import Quantity
from kftrainer.runtime.podset import Container
from kftrainer.runtime.quantities import HALVES


def overdrawing(container: Container, asked: Mapping[str, Any] | None) -> Iterator[str]:
    """What to tell if a container that trains may get less than it requests.

    `asked` are the TrainJob's own resources, which are merged into the container's.
    """
    limits, requests = (container.resources.get(half) or {} for half in HALVES)
    for name, request in requests.items():
        limit = limits.get(name)
        if limit is not None and Quantity.parse(request) > Quantity.parse(limit):
            is_own = any(name in ((asked or {}).get(half) or ()) for half in HALVES)
            yield (
                f"{'spec.trainer.resourcesPerNode' if is_own else 'spec.runtimeRef'}: "
                f"the container {container.name} requests {request} of {name}, above its limit of "
                f"{limit}: such pods will be refused"
            )
