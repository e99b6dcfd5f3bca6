"""LimitRange defaults, as the API server's LimitRanger fills them into pods."""

import asyncio
from random import Random
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from kftrainer.kube.objects.quantity import Quantity
from kftrainer.runtime.resources.limit_ranges import with_defaults
from kftrainer.runtime.resources.pod_requests import pod_requests

Object = dict[str, Any]

PODS = 25  # in each namespace
GPU, PAGES, STORAGE = "nvidia.com/gpu", "hugepages-2Mi", "ephemeral-storage"
HALVES = ("limits", "requests")
# Seconds for which LimitRanger caches that a namespace has no LimitRanges.
EMPTY_LIST_CACHED_FOR = 30.0
FORBIDDEN = 403
SETS: dict[str, tuple[Object, ...]] = {
    "both": (
        {"default": {"cpu": "8", "memory": "8Gi"}, "defaultRequest": {"cpu": "0.3", STORAGE: "1G"}},
    ),
    "limits": ({"default": {"cpu": "8.0005", "memory": "8.5Gi", GPU: 1}},),
    "requests": ({"defaultRequest": {"cpu": "100u", "memory": "0.1"}},),
    "greatest": ({"max": {"cpu": "64", "memory": "64Gi"}},),
    "least": ({"min": {"cpu": "10m", "memory": "1M"}},),
    "bounds": (
        {
            "max": {"cpu": "64", "memory": "64Gi"},
            "default": {"cpu": "16", PAGES: "4Mi"},
            "defaultRequest": {"memory": "1e6"},
            "min": {"cpu": "10m", STORAGE: "1Mi"},
        },
    ),
    "several": (
        {"default": {"cpu": "8"}},
        {"defaultRequest": {"memory": "256Mi"}, "max": {"memory": "64Gi"}},
        {"type": "Pod", "max": {STORAGE: "1Pi"}},
        {"default": {STORAGE: "100Gi", GPU: "2"}},
    ),
}
AMOUNTS: dict[str, tuple[Any, ...]] = {
    "cpu": ("500m", "1", "1.500", 2, 0.25, "2"),
    "memory": ("1Gi", "512Mi", "1.5Gi", "129e6", 1048576),
    STORAGE: ("1Gi", "5e9", "1536Mi"),
}
LARGE_AMOUNTS = {"cpu": "512", "memory": "1Ti"}


def limit_range(n: int, item: Object, namespace: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": f"range-{n}", "namespace": namespace},
        "spec": {"limits": [{"type": "Container", **item}]},
    }


def pod(name: str, namespace: str, spec: Object) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def container(name: str, resources: Object | None = None) -> Object:
    result: Object = {"name": name, "image": "registry.example.com/train"}
    return result if resources is None else {**result, "resources": resources}


class Specs:
    """Makes pods that leave much open, and that the API server takes with all these defaults."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)  # noqa: S311

    def one(self) -> Object:
        omitted = self._rng.choice((0.2, 0.2, 1.0))
        spec: Object = {
            "containers": [
                container(f"c{n}", self._resources(omitted)) for n in range(self._few(1))
            ],
            "initContainers": [
                {
                    **container(f"i{n}", self._resources(omitted)),
                    **self._rng.choice(({}, {"restartPolicy": "Always"})),
                }
                for n in range(self._few(0))
            ],
        }
        if self._rng.random() < 0.4:
            spec["resources"] = self._of_the_pod(pod_requests(spec))
        return spec

    def _few(self, least: int) -> int:
        return self._rng.randint(least, 3)

    def _resources(self, omitted: float) -> Object | None:
        if self._rng.random() < omitted:
            return None
        resources: Object = {"limits": {}, "requests": {}}
        for resource, amounts in AMOUNTS.items():
            pair = sorted(self._rng.choices(amounts, k=2), key=Quantity.parse)
            for half, amount in zip(("requests", "limits"), pair, strict=True):
                if self._rng.random() < 0.3:
                    resources[half][resource] = amount
        if self._rng.random() < 0.2:
            resources["limits"][GPU] = "4"
        return {half: amounts for half, amounts in resources.items() if amounts}

    def _of_the_pod(self, requested: Any) -> Object:
        """The containers' total, set for the pod where the server would not compute it."""
        resources: Object = {"limits": {}, "requests": {}}
        for name, amount in LARGE_AMOUNTS.items():
            if name in requested or self._rng.random() < 0.5:
                resources["requests"][name] = amount
            if name not in resources["requests"] or self._rng.random() < 0.5:
                resources["limits"][name] = amount
        return resources


async def prepared(api: ApiClient, namespace: str, items: tuple[Object, ...]) -> list[Object]:
    """The LimitRanges as stored, once admission has all of them in its cache.

    While it has heard of none it asks the server, now and then, and would know them all before it
    hears of the first. So it is made to ask before there are any.
    """

    async def probe() -> Object:
        body = pod("probe", namespace, {"containers": [container("main")]})
        path = f"/api/v1/namespaces/{namespace}/pods"
        return await api.request("POST", path, query={"dryRun": "All"}, body=body)

    clock = asyncio.get_running_loop()
    refreshed_at = clock.time() + EMPTY_LIST_CACHED_FOR
    await probe()
    ranges = [await api.create(limit_range(n, item, namespace)) for n, item in enumerate(items)]
    wanted = {
        (half, name)
        for each in ranges
        for half, field in (("limits", "default"), ("requests", "defaultRequest"))
        for name in each["spec"]["limits"][0].get(field, {})
    }

    async def has_defaults() -> bool:
        try:
            found = await probe()
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            return False  # a bound comes before the default that keeps to it
        resources = found["spec"]["containers"][0]["resources"]
        return wanted <= {(half, name) for half in HALVES for name in resources.get(half, {})}

    left = refreshed_at - clock.time()
    await until(
        has_defaults, within=left, what=f"admission hearing of the LimitRanges of {namespace}"
    )
    return ranges


def amounts(spec: Any) -> Object:
    """The resources of the containers by name, as values."""
    return {
        each["name"]: {
            half: {
                name: Quantity.parse(amount).in_millis()
                for name, amount in (each.get("resources") or {}).get(half, {}).items()
            }
            for half in HALVES
        }
        for kind in ("initContainers", "containers")
        for each in spec.get(kind) or ()
    }


@pytest.mark.parametrize("items", SETS.values(), ids=SETS)
async def test_containers_are_filled_as_the_server_fills_them(
    api: ApiClient, namespace: str, items: tuple[Object, ...]
) -> None:
    stored = await prepared(api, namespace, items)
    written = [limit_range(n, item, namespace) for n, item in enumerate(items)]
    specs = Specs(40)
    for n in range(PODS):
        spec = specs.one()
        defaulted = (await api.create(pod(f"pod-{n}", namespace, spec)))["spec"]
        for ranges in (stored, written):
            ours = with_defaults(spec, ranges)
            assert amounts(ours) == amounts(defaulted), spec
            assert pod_requests(ours) == pod_requests(defaulted), spec
