"""An informer of Secrets that never receives their content."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.cache import Cache, NotCachedError
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.manager.clock import SystemClock
from tests.support.fault_proxy import FaultProxy, running_proxy, status_answer
from tests.support.informers import RecordingHandler, running
from tests.support.recording_transport import recording_transport

SECRETS: Resource[Manifest] = Resource(
    "", "v1", "Secret", "secrets", namespaced=True, decode=unstructured
)
PASSWORD = "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5IHN0YXBsZQ=="  # noqa: S105  and it is not one


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with running_proxy(control_plane, tmp_path) as proxy:
        yield proxy


def secret(namespace: str, name: str, **labels: str) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"p": PASSWORD}}


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "pages"])
async def test_the_data_of_a_secret_never_crosses_the_wire(
    proxy: FaultProxy, api: ApiClient, namespace: str, streams: bool
) -> None:
    if not streams:
        proxy.inject(status_answer(422, "Invalid"), lambda request: request.is_watch)
    partial, key, witness, cache = (
        SECRETS.only_metadata(),
        ObjectKey(namespace, "a"),
        RecordingHandler(),
        Cache(),
    )
    await api.apply(secret(namespace, "a", color="red"))
    async with recording_transport(proxy.kubeconfig) as wire:
        informer = Informer(
            Client(wire),
            partial,
            clock=SystemClock(),
            namespace=namespace,
            indexes={"color": lambda seen: [seen.metadata["labels"]["color"]]},
        )
        informer.add_handler(witness)
        cache.add(informer)
        async with running(cache):
            await informer.wait_synced()
            changed = await api.apply(secret(namespace, "a", color="blue"))

            async def is_blue() -> bool:
                return cache.has_index(partial, "color", "blue")

            await until(is_blue, within=30, what="the change")
            held = cache.get(partial, key)
            del changed["metadata"]["managedFields"]
            assert held == {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": changed["metadata"],
            }
            with pytest.raises(NotCachedError):
                cache.get(SECRETS, key)
            await api.delete(await api.path_of(changed))

            async def is_gone() -> bool:
                return cache.list(partial) == []

            await until(is_gone, within=30, what="the delete")
        assert b'"color":"red"' in wire.received
        assert PASSWORD.encode() not in wire.received
    assert [(each.old is None, each.new is None) for each in witness.events] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert any(each.is_list for each in proxy.requests) != streams
