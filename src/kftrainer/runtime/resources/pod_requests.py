"""Effective requests of pods, and merging of container resources. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.kube.objects.quantity import Quantity, QuantityError, ResourceList

HALVES = ("limits", "requests")
HUGE_PAGES = "hugepages-"
NATIVE = "kubernetes.io/"

Requests = dict[str, Quantity]
Amounts = dict[str, Any]  # quantities by resource name, not parsed


def pod_requests(spec: Mapping[str, Any]) -> Requests:
    """Return the pod's effective requests as the scheduler computes them.

    This is Kubernetes' PodRequests after defaulting: a missing request defaults to the limit. The
    path of a QuantityError is relative to the pod spec.
    """
    total = _of_containers(spec)
    total.update(_of_the_pod(spec, total))
    _add(total, _read(spec.get("overhead"), "overhead"))
    return total


def merge_resources(
    base: Mapping[str, Any] | None, override: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Merge the resources of a container by resource, by claim and otherwise by key.

    If only the request or only the limit is overridden, the other one is adjusted where the API
    server would reject the pair: a request above its limit, or values that must be equal.
    """
    base, override = base or {}, override or {}
    limits, requests = _merged_amounts(base, override)
    merged = {**base, **override, "limits": limits, "requests": requests}
    if base.get("claims") and override.get("claims"):
        by_name = {claim["name"]: claim for claim in (*base["claims"], *override["claims"])}
        merged["claims"] = list(by_name.values())
    return {key: value for key, value in merged.items() if value or key not in HALVES}


def _of_containers(spec: Mapping[str, Any]) -> Requests:
    total: Requests = {}
    for _, requested in _each(spec, "containers"):
        _add(total, requested)
    sidecars: Requests = {}
    peak: Requests = {}  # while the init containers run, one after the other
    for container, requested in _each(spec, "initContainers"):
        if container.get("restartPolicy") == "Always":
            _add(total, requested)
            _add(sidecars, requested)
        else:
            _add(requested, sidecars)  # those that started earlier
            _raise(peak, requested)
    _raise(total, peak)
    return total


def _each(spec: Mapping[str, Any], kind: str) -> Iterator[tuple[Mapping[str, Any], Requests]]:
    """Yield the containers with their requests."""
    for n, container in enumerate(spec.get(kind) or ()):
        resources = container.get("resources") or {}
        path = f"{kind}[{n}].resources"
        limits = _read(resources.get("limits"), f"{path}.limits")
        yield container, limits | _read(resources.get("requests"), f"{path}.requests")


def _of_the_pod(spec: Mapping[str, Any], by_containers: ResourceList) -> Requests:
    """Return the pod-level requests, which replace those of the containers."""
    resources = spec.get("resources") or {}
    limits = _read(resources.get("limits"), "resources.limits")
    requests = _read(resources.get("requests"), "resources.requests")
    for name, limit in limits.items():
        if name not in by_containers or name.startswith(HUGE_PAGES):
            requests.setdefault(name, limit)
    return {
        name: requested
        for name, requested in requests.items()
        if name in {"cpu", "memory"} or name.startswith(HUGE_PAGES)
    }


def _read(amounts: Mapping[str, object] | None, path: str) -> Requests:
    found: Requests = {}
    for name, amount in (amounts or {}).items():
        try:
            found[name] = Quantity.parse(amount).in_millis()
        except QuantityError as error:
            raise error.at(f"{path}[{name}]") from None
    return found


def _add(total: Requests, more: ResourceList) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _raise(total: Requests, least: ResourceList) -> None:
    for name, amount in least.items():
        total[name] = max(total[name], amount) if name in total else amount


def _merged_amounts(
    base: Mapping[str, Any], override: Mapping[str, Any]
) -> tuple[Amounts, Amounts]:
    """Return the merged limits and requests."""
    limits: Amounts = {**(base.get("limits") or {}), **(override.get("limits") or {})}
    requests: Amounts = {**(base.get("requests") or {}), **(override.get("requests") or {})}
    for name in _given_alone("limits", base, override):
        if not _may_differ(name):
            del requests[name]  # the request defaults to the limit
        elif _is_above(requests, limits, name):
            requests[name] = limits[name]
    for name in _given_alone("requests", base, override):
        if not _may_differ(name) or _is_above(requests, limits, name):
            limits[name] = requests[name]
    return limits, requests


def _given_alone(half: str, base: Mapping[str, Any], override: Mapping[str, Any]) -> Iterator[str]:
    """Yield resources that have this half in the override and the other half only in the base."""
    (other,) = set(HALVES) - {half}
    for name in override.get(half) or ():
        if name in (base.get(other) or ()) and name not in (override.get(other) or ()):
            yield name


def _may_differ(name: str) -> bool:
    """Whether the resource can be overcommitted, so that a request may be below its limit."""
    return ("/" not in name or NATIVE in name) and not name.startswith(HUGE_PAGES)


def _is_above(requests: Amounts, limits: Amounts, name: str) -> bool:
    request = _read({name: requests[name]}, "requests")[name]
    return request > _read({name: limits[name]}, "limits")[name]
