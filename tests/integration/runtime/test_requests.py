"""Requests of pods as the API server's quota counts them, by the rules of the scheduler."""

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from kftrainer.kube.objects.quantity import ZERO, Quantity
from kftrainer.runtime.resources.pod_requests import merge_resources, pod_requests

Object = dict[str, Any]
Choice = tuple[Any, ...]

GPU, PAGES, STORAGE = "nvidia.com/gpu", "hugepages-2Mi", "ephemeral-storage"
COUNTED = ("cpu", "memory", STORAGE, PAGES, GPU)
COUNTED_WITHIN = 30.0
STATUS_PATCH = "application/merge-patch+json"
IMAGE = {"image": "registry.example.com/train"}
OVERHEADS: tuple[Object, ...] = (
    {"cpu": "250m", "memory": "120Mi"},
    {"cpu": "0.011", "memory": "1e6"},
)

CPUS: Choice = ("1", "500m", "1500m", "0.25", "2", 3, 0.5, "100u", "0", "1e0", "1.500")
MEMORY_AMOUNTS: Choice = (
    "1Gi",
    "512Mi",
    "1.5Gi",
    "128974848",
    "129e6",
    "1G",
    "100M",
    "0",
    "0.1",
    1024,
)
STORAGES: Choice = ("1Gi", "10G", "5e9", "1536Mi")
PAGE_AMOUNTS: Choice = ("2Mi", "4Mi", "1Gi", "6291456")
GPUS: Choice = ("1", "2", 4, "8")
CPU_OF_PODS = {"cpu": "64"}
MEMORY_OF_PODS = {"memory": "1Ti"}
BOTH_OF_PODS = CPU_OF_PODS | MEMORY_OF_PODS
ALWAYS = {"restartPolicy": "Always"}


class Quota:
    """A quota that forbids nothing, and what it has counted so far."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/resourcequotas/all"
        self._expected = dict.fromkeys(COUNTED, ZERO)
        self._pods = 0

    async def prepare(self) -> None:
        """Play the quota controller, of which this cluster has none."""
        hard = {f"requests.{name}": "1E" for name in COUNTED}
        await self._api.create(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "all", "namespace": self._namespace},
                "spec": {"hard": hard},
            }
        )
        status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
        await self._api.request(
            "PATCH", f"{self._path}/status", body={"status": status}, content_type=STATUS_PATCH
        )
        await until(self._is_seen, within=COUNTED_WITHIN, what="admission seeing the quota")

    async def _is_seen(self) -> bool:
        """Whether a pod without requests is rejected."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        body = self._pod({"containers": [{"name": "main", **IMAGE}]})
        try:
            await self._api.request("POST", path, query={"dryRun": "All"}, body=body)
        except ApiError as error:
            return "failed quota" in str(error)
        return False

    async def check(self, spec: Object) -> None:
        """Create the pod; the quota must grow by the requests that we compute."""
        self._pods += 1
        await self._api.create(self._pod(spec))
        for name, amount in pod_requests(spec).items():
            self._expected[name] += amount
        used = (await self._api.get(self._path))["status"]["used"]
        counted = {name: Quantity.parse(used[f"requests.{name}"]) for name in COUNTED}
        assert counted == self._expected, spec

    def _pod(self, spec: Object) -> Object:
        metadata = {"name": f"pod-{self._pods}", "namespace": self._namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture
async def quota(api: ApiClient, namespace: str) -> Quota:
    prepared = Quota(api, namespace)
    await prepared.prepare()
    return prepared


@pytest.fixture
async def runtime_classes(api: ApiClient, namespace: str) -> AsyncIterator[list[str]]:
    """One for each of the overheads: the server takes an overhead only if its class has it."""
    names = [f"{namespace}-{n}" for n in range(len(OVERHEADS))]
    for name, overhead in zip(names, OVERHEADS, strict=True):
        await api.create(
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": name},
                "handler": "any",
                "overhead": {"podFixed": overhead},
            }
        )
    yield names
    for name in names:
        await api.delete(f"/apis/node.k8s.io/v1/runtimeclasses/{name}")


class Pods:
    """Makes pods that the API server accepts."""

    def __init__(self, seed: int, runtime_classes: list[str]) -> None:
        self._rng = Random(seed)  # noqa: S311
        self._runtime_classes = runtime_classes

    def one(self) -> Object:
        whole = self._rng.random() < 0.4
        required = () if whole else ("cpu", "memory")  # a quota refuses pods that leave these open
        spec: Object = {
            "containers": [
                self._container(f"c{n}", required) for n in range(self._rng.choice((1, 3)))
            ],
            "initContainers": [
                {**self._container(f"i{n}", required), **self._rng.choice(({}, ALWAYS))}
                for n in range(self._rng.choice((0, 1, 2, 4)))
            ],
        }
        if whole:
            spec["resources"] = self._of_the_pod(spec)
        if self._rng.random() < 0.3:
            n = self._rng.randrange(len(OVERHEADS))
            spec |= {"runtimeClassName": self._runtime_classes[n], "overhead": OVERHEADS[n]}
        return spec

    def overridden(self) -> Object:
        """Resources with others laid over them, either of which the server would take."""
        base, override = self._resources(), self._resources()
        if self._rng.random() < 0.3 and GPU in base["limits"]:
            override = {"requests": {GPU: self._rng.choice(GPUS)}}
        return merge_resources(base, override)

    def _container(self, name: str, required: tuple[str, ...]) -> Object:
        return {"name": name, **IMAGE, "resources": self._resources(required)}

    def _resources(self, required: tuple[str, ...] = ()) -> Object:
        resources: Object = {"limits": {}, "requests": {}}
        for resource, amounts in (("cpu", CPUS), ("memory", MEMORY_AMOUNTS), (STORAGE, STORAGES)):
            if resource in required or self._rng.random() < 0.5:
                self._request(resources, resource, amounts)
        for resource, amounts in ((PAGES, PAGE_AMOUNTS), (GPU, GPUS)):
            needs_cpu_or_memory = resource == PAGES and not _has_cpu_or_memory(resources)
            if self._rng.random() < 0.4 and not needs_cpu_or_memory:
                self._request_as_much(resources, resource, amounts)
        return resources

    def _request(self, resources: Object, resource: str, amounts: Choice) -> None:
        pair = sorted(self._rng.choices(amounts, k=2), key=Quantity.parse)
        for half, amount in zip(("requests", "limits"), pair, strict=True):
            if self._rng.random() < 0.6:
                resources[half][resource] = amount
        if resource not in resources["requests"] and resource not in resources["limits"]:
            resources[self._rng.choice(("requests", "limits"))][resource] = pair[0]

    def _request_as_much(self, resources: Object, resource: str, amounts: Choice) -> None:
        amount = resources["limits"][resource] = self._rng.choice(amounts)
        if self._rng.random() < 0.5:
            resources["requests"][resource] = amount

    def _of_the_pod(self, spec: Object) -> Object:
        """Enough for the containers together, which the server insists on."""
        requested = pod_requests(spec)
        resources: Object = {"limits": {}, "requests": {}}
        for name, amount in self._rng.choice((CPU_OF_PODS, MEMORY_OF_PODS, BOTH_OF_PODS)).items():
            half = self._rng.choice(("limits", "requests"))
            resources[half][name] = amount
            if half == "limits" and self._rng.random() < 0.5:
                resources["requests"][name] = str(requested.get(name, ZERO))
        if self._rng.random() < 0.5:
            self._request_as_much(resources, PAGES, ("8Gi",))
        return resources


def _has_cpu_or_memory(resources: Object) -> bool:
    return bool({"cpu", "memory"} & {*resources["limits"], *resources["requests"]})


async def test_computed_requests_match_the_quota_of_the_server_for_random_pods(
    quota: Quota, runtime_classes: list[str]
) -> None:
    pods = Pods(30, runtime_classes)
    for _ in range(400):
        await quota.check(pods.one())


def container(name: str = "main", **resources: Any) -> Object:
    return {"name": name, **IMAGE, "resources": resources}


@pytest.mark.parametrize(
    ("limits", "requests", "requested_cpu"),
    [
        ({"cpu": "8"}, {}, "2"),
        ({"cpu": "8"}, {"cpu": "4"}, "4"),
        ({"memory": "8Gi"}, {}, "2"),
        ({}, {"memory": "8Gi"}, "2"),
    ],
)
async def test_pod_level_limit_counts_only_without_container_requests(
    quota: Quota, limits: Object, requests: Object, requested_cpu: str
) -> None:
    containers = [container(limits={"cpu": "2"})]
    spec = {"containers": containers, "resources": {"limits": limits, "requests": requests}}
    assert pod_requests(spec)["cpu"] == Quantity.parse(requested_cpu)
    await quota.check(spec)


async def test_zero_request_of_a_container_is_counted_as_a_request(quota: Quota) -> None:
    spec = {"containers": [container(requests={"cpu": 0})], "resources": {"limits": {"cpu": "2"}}}
    assert pod_requests(spec) == {"cpu": ZERO}
    await quota.check(spec)


async def test_a_limit_of_huge_pages_of_the_whole_pod_counts(quota: Quota) -> None:
    requesting = container(limits={PAGES: "2Mi", "cpu": "1"})
    spec = {"containers": [requesting], "resources": {"limits": {PAGES: "8Mi", "cpu": "2"}}}
    assert str(pod_requests(spec)[PAGES]) == "8Mi"
    await quota.check(spec)


async def test_merged_resources_are_taken_where_both_parts_would_be(
    api: ApiClient, namespace: str
) -> None:
    pods = Pods(31, [])
    for _ in range(10):
        containers = [container(f"c{n}", **pods.overridden()) for n in range(50)]
        await api.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            query={"dryRun": "All"},
            body={
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "merged"},
                "spec": {"containers": containers},
            },
        )
