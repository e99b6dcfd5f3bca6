"""LimitRange defaults of pods, as the API server's LimitRanger sets them. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from kftrainer.kube.objects.resource import Manifest, key_of
from kftrainer.runtime.resources.pod_requests import pod_requests

CONTAINER_LISTS = ("initContainers", "containers")

Spec = Mapping[str, Any]
Amounts = Mapping[str, Any]  # quantities by resource name


def with_defaults(spec: Spec, limit_ranges: Iterable[Manifest]) -> Spec:
    """Return the pod spec after admission to the namespace of these LimitRanges.

    If several of them have a default for the same resource, the API server uses any of them. This
    function uses the one whose name sorts first.
    """
    limits, requests = _defaults(limit_ranges)
    if not (limits or requests):
        return spec
    lists = {
        kind: [_filled(container, limits, requests) for container in spec[kind]]
        for kind in CONTAINER_LISTS
        if spec.get(kind)
    }
    return {**_settled(spec), **lists}


def _defaults(limit_ranges: Iterable[Manifest]) -> tuple[Amounts, Amounts]:
    """Return the default limits and requests of a container."""
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    # In reverse order, so that the first one overrides the others.
    for limit_range in sorted(limit_ranges, key=key_of, reverse=True):
        for item in (limit_range.get("spec") or {}).get("limits") or ():
            if item.get("type") == "Container":
                # The API server stores LimitRanges with these defaults; a file may lack them.
                of_item = {**(item.get("max") or {}), **(item.get("default") or {})}
                limits |= of_item
                requested = item.get("defaultRequest") or {}
                requests |= {**(item.get("min") or {}), **of_item, **requested}
    return limits, requests


def _filled(container: Spec, limits: Amounts, requests: Amounts) -> Spec:
    resources = container.get("resources") or {}
    own = resources.get("limits") or {}
    # The API server defaults requests to the container's own limits before LimitRanger runs.
    filled = {
        "limits": {**limits, **own},
        "requests": {**requests, **own, **(resources.get("requests") or {})},
    }
    present = {half: amounts for half, amounts in filled.items() if amounts}
    return {**container, "resources": {**resources, **present}}


def _settled(spec: Spec) -> Spec:
    """Return the pod with pod-level requests set, before its containers get defaults."""
    resources = spec.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return spec
    requested = pod_requests({**spec, "overhead": None})
    requests = {name: str(requested[name]) for name in limits if name in requested}
    requests |= resources.get("requests") or {}
    return {**spec, "resources": {**resources, "requests": requests}}
