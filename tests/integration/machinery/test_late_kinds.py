"""Kinds that are installed, deinstalled and installed again while we watch."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.cache.optional_kinds import OptionalKinds
from tests.support.fast_clock import FastClock
from tests.support.fault_proxy import FaultProxy, running_proxy
from tests.support.informers import CONFIG_MAPS, RecordingHandler, running

GROUP = "late.example"
BELLS: Resource[Manifest] = Resource(
    GROUP, "v1", "Bell", "bells", namespaced=True, decode=unstructured
)
DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"bells.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "bells", "singular": "bell", "kind": "Bell"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with running_proxy(control_plane, tmp_path) as proxy:
        yield proxy


@pytest.fixture
async def transport(proxy: FaultProxy) -> AsyncIterator[HttpTransport]:
    connection = await load_connection(proxy.kubeconfig)
    async with HttpTransport(connection, user_agent="tests") as transport:
        yield transport


@pytest.fixture
async def definition(api: ApiClient) -> AsyncIterator[str]:
    """The path of the definition, which is gone after the test."""
    path = await api.path_of(DEFINITION)
    yield path
    if await api.get_or_none(path) is not None:
        await is_deleted(api, path)


async def is_deleted(api: ApiClient, path: str) -> None:
    """Deinstall the kind."""
    await api.delete(path)

    async def is_gone() -> bool:
        return await api.get_or_none(path) is None

    await until(is_gone, within=30, what="the end of the definition")


def bell(namespace: str, name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": BELLS.api_version, "kind": "Bell", "metadata": metadata}


async def test_a_kind_is_watched_when_it_is_installed_and_when_it_is_installed_again(
    transport: HttpTransport, proxy: FaultProxy, api: ApiClient, namespace: str, definition: str
) -> None:
    client, cache, clock = Client(transport), Cache(), FastClock(20)
    bells = Informer(client, BELLS, clock=clock, namespace=namespace)
    maps = Informer(client, CONFIG_MAPS, clock=clock, namespace=namespace)
    witness, reported, ready, stop = (
        RecordingHandler(),
        list[Resource[Any]](),
        asyncio.Event(),
        asyncio.Event(),
    )

    def on_installed(resource: Resource[Any]) -> None:
        reported.append(resource)
        if resource == BELLS:
            cache.informer(BELLS).add_handler(witness)

    late = OptionalKinds(
        [bells, maps],
        cache=cache,
        mapper=RestMapper(transport),
        clock=clock,
        on_installed=on_installed,
        rng=Random(1),  # noqa: S311
    )

    async def wait_until_stored(*names: str) -> None:
        async def equal() -> bool:
            return {key.name for key in witness.known} == set(names)

        await until(equal, within=30, what=f"the bells {names}")

    async with running(cache), asyncio.TaskGroup() as tasks:
        tasks.create_task(late.run(ready.set, stop))
        async with asyncio.timeout(30):
            await ready.wait()
        assert (reported, late.installed(CONFIG_MAPS), late.installed(BELLS)) == (
            [CONFIG_MAPS],
            True,
            False,
        )
        await api.apply_crd(DEFINITION)
        await api.apply(bell(namespace, "first"))
        await wait_until_stored("first")
        assert (reported, late.installed(BELLS)) == ([CONFIG_MAPS, BELLS], True)
        await api.apply(bell(namespace, "second"))
        await wait_until_stored("first", "second")

        await is_deleted(api, definition)
        await wait_until_stored()
        # A watch outlives its kind for a while: end it.
        proxy.requests.clear()
        proxy.reset_all()

        async def has_retried() -> bool:
            return sum(each.path.endswith("/bells") for each in proxy.requests) > 3

        await until(has_retried, within=30, what="the informer trying again")
        assert (late.installed(BELLS), cache.list(BELLS)) == (True, [])

        await api.apply_crd(DEFINITION)
        await api.apply(bell(namespace, "third"))
        await wait_until_stored("third")
        assert [each["metadata"]["name"] for each in cache.list(BELLS)] == ["third"]
        stop.set()
    assert (reported, witness.inconsistencies) == ([CONFIG_MAPS, BELLS], [])
