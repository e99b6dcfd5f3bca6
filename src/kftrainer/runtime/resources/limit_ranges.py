"""LimitRange defaults in pods, as the API server's LimitRanger fills them in: pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from kftrainer.kube.objects.resource import Manifest, key_of
from kftrainer.runtime.resources.pod_requests import pod_requests

CONTAINER_LISTS = ("initContainers", "containers")

Spec = Mapping[str, Any]
Amounts = Mapping[str, Any]  # by the names of resources


def with_defaults(spec: Spec, limit_ranges: Iterable[Manifest]) -> Spec:
    """The pod spec as it is after admission to the namespace of these LimitRanges.

    Where several of them have a default for the same resource, the API server takes any of them;
    here it is the one whose name comes first.
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
    """The limits and the requests of a container that says nothing."""
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    # From the last to the first, so that the first stands.
    for limit_range in sorted(limit_ranges, key=key_of, reverse=True):
        for item in (limit_range.get("spec") or {}).get("limits") or ():
            if item.get("type") == "Container":
                # The API server stores these filled in; a file may have less.
                of_item = {**(item.get("max") or {}), **(item.get("default") or {})}
                limits |= of_item
                asked = item.get("defaultRequest") or {}
                requests |= {**(item.get("min") or {}), **of_item, **asked}
    return limits, requests


def _filled(container: Spec, limits: Amounts, requests: Amounts) -> Spec:
    resources = container.get("resources") or {}
    own = resources.get("limits") or {}
    # A limit of its own has become its request before LimitRanger comes.
    filled = {
        "limits": {**limits, **own},
        "requests": {**requests, **own, **(resources.get("requests") or {})},
    }
    present = {half: amounts for half, amounts in filled.items() if amounts}
    return {**container, "resources": {**resources, **present}}


def _settled(spec: Spec) -> Spec:
    """The same pod, with what it asks for as a whole said before its containers are filled."""
    resources = spec.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return spec
    asked = pod_requests({**spec, "overhead": None})
    requests = {name: str(asked[name]) for name in limits if name in asked}
    requests |= resources.get("requests") or {}
    return {**spec, "resources": {**resources, "requests": requests}}
