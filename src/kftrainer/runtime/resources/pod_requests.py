"""What a pod asks of the scheduler, and how the resources of a container are merged: pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.kube.objects.quantity import Quantity, QuantityError, ResourceList

HALVES = ("limits", "requests")
HUGE_PAGES = "hugepages-"
NATIVE = "kubernetes.io/"

Requests = dict[str, Quantity]
Amounts = dict[str, Any]  # by the names of resources, as they are written


def pod_requests(spec: Mapping[str, Any]) -> Requests:
    """What the scheduler looks for on a node, of a pod spec as people write it.

    This is Kubernetes' own PodRequests on the pod that the API server makes of it: a limit stands
    in for a request that is not there. A QuantityError has its path from the pod spec on.
    """
    total = _of_containers(spec)
    total.update(_of_the_pod(spec, total))
    _add(total, _read(spec.get("overhead"), "overhead"))
    return total


def merge_resources(
    base: Mapping[str, Any] | None, override: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The resources of a container, overridden by resource, by claim and else by key.

    A request or limit that is overridden alone takes the other one along where the API server
    would refuse the two: a request above its limit, or any difference where it allows none.
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
    for _, asked in _each(spec, "containers"):
        _add(total, asked)
    sidecars: Requests = {}
    peak: Requests = {}  # before the containers start, when the init containers run in turn
    for container, asked in _each(spec, "initContainers"):
        if container.get("restartPolicy") == "Always":
            _add(total, asked)
            _add(sidecars, asked)
        else:
            _add(asked, sidecars)  # those that were started before it
            _raise(peak, asked)
    _raise(total, peak)
    return total


def _each(spec: Mapping[str, Any], kind: str) -> Iterator[tuple[Mapping[str, Any], Requests]]:
    """The containers, and what each of them asks for."""
    for n, container in enumerate(spec.get(kind) or ()):
        resources = container.get("resources") or {}
        path = f"{kind}[{n}].resources"
        limits = _read(resources.get("limits"), f"{path}.limits")
        yield container, limits | _read(resources.get("requests"), f"{path}.requests")


def _of_the_pod(spec: Mapping[str, Any], by_containers: ResourceList) -> Requests:
    """What is asked for the pod as a whole, and replaces what its containers ask for."""
    resources = spec.get("resources") or {}
    limits = _read(resources.get("limits"), "resources.limits")
    requests = _read(resources.get("requests"), "resources.requests")
    for name, limit in limits.items():
        if name not in by_containers or name.startswith(HUGE_PAGES):
            requests.setdefault(name, limit)
    return {
        name: asked
        for name, asked in requests.items()
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
    """The limits and requests."""
    limits: Amounts = {**(base.get("limits") or {}), **(override.get("limits") or {})}
    requests: Amounts = {**(base.get("requests") or {}), **(override.get("requests") or {})}
    for name in _given_alone("limits", base, override):
        if not _may_differ(name):
            del requests[name]  # and the limit stands in for it
        elif _is_above(requests, limits, name):
            requests[name] = limits[name]
    for name in _given_alone("requests", base, override):
        if not _may_differ(name) or _is_above(requests, limits, name):
            limits[name] = requests[name]
    return limits, requests


def _given_alone(half: str, base: Mapping[str, Any], override: Mapping[str, Any]) -> Iterator[str]:
    """The resources of which the override has this half, and the other half is the base's."""
    (other,) = set(HALVES) - {half}
    for name in override.get(half) or ():
        if name in (base.get(other) or ()) and name not in (override.get(other) or ()):
            yield name


def _may_differ(name: str) -> bool:
    """Whether a node may promise more of it than it has, so that a request may be below a limit."""
    return ("/" not in name or NATIVE in name) and not name.startswith(HUGE_PAGES)


def _is_above(requests: Amounts, limits: Amounts, name: str) -> bool:
    request = _read({name: requests[name]}, "requests")[name]
    return request > _read({name: limits[name]}, "limits")[name]
