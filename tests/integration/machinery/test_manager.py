"""The manager with real parts: the example as people run it, and how it ends."""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.kube.objects.resource import Resource, unstructured
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.handlers import enqueue_self
from kftrainer.machinery.controller.reconcile import DONE, Reconciler, Request, Result
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.leader_election import LeaderElector, LeaseLostError
from kftrainer.machinery.manager.manager import YOUNG, Manager, Parts

MERGE = "application/merge-patch+json"
EXAMPLE = Path(__file__).parent.parent.parent.parent / "examples" / "greeter.py"
CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps", namespaced=True, decode=unstructured)
# Soon over, for a test that waits for that, and longer than a busy machine stands still.
SHORT_DEADLINE = 5.0


def config_map(namespace: str, name: str, **labels: str) -> dict[str, object]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def text_of(api: ApiClient, namespace: str, name: str) -> str | None:
    found = await api.get_or_none(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    return found["data"]["text"] if found else None


async def wait_for_text(api: ApiClient, namespace: str, name: str, text: str) -> None:
    async def exists() -> bool:
        return await text_of(api, namespace, name) == text

    await until(exists, within=30, what=f"{name} saying {text!r}")


async def test_example_reconciles_as_documented(
    control_plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE),
        env={**os.environ, "KUBECONFIG": str(control_plane.kubeconfig)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await api.create(config_map(namespace, "one", greet="Ada"))
        await wait_for_text(api, namespace, "one-greeting", "Hello, Ada!")
        await api.apply(config_map(namespace, "one", greet="Grace"))
        await wait_for_text(api, namespace, "one-greeting", "Hello, Grace!")
        await api.delete(f"/api/v1/namespaces/{namespace}/configmaps/one-greeting")
        await wait_for_text(api, namespace, "one-greeting", "Hello, Grace!")
    finally:
        process.send_signal(signal.SIGTERM)
        _, output = await process.communicate()
    assert process.returncode == 0, output.decode()


class Slow:
    """A reconciler whose work is held back until the test lets it go on."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.started: list[str] = []
        self.finished: list[str] = []
        self.resume = asyncio.Event()

    async def reconcile(self, request: Request) -> Result:
        if request.namespace == self._namespace:
            self.started.append(request.name)
            await self.resume.wait()
            self.finished.append(request.name)
        return DONE


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    connection = await load_connection(control_plane.kubeconfig)
    transport = HttpTransport(connection, user_agent="test")
    yield Client(transport)
    await transport.close()


@pytest.fixture(autouse=True)
def garbage() -> Iterator[None]:
    """What managers change of this process is changed back."""
    gc.unfreeze()
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def election_of(client: Client, namespace: str, renew_deadline: float = 60.0) -> LeaderElector:
    return LeaderElector(
        client,
        clock=SystemClock(),
        lease_name="manager",
        lease_namespace=namespace,
        identity="me",
        lease_duration=300,  # so that the watchdog, which would end the tests, is patient
        renew_deadline=renew_deadline,
        retry_period=0.5,
    )


def manager_of(
    client: Client, slow: Reconciler, namespace: str, election: LeaderElector | None = None
) -> Manager:
    clock, cache = SystemClock(), Cache()
    informer = Informer(client, CONFIG_MAPS, clock=clock, namespace=namespace)
    cache.add(informer)
    controller = Controller("slow", slow, clock=clock, workers=2)
    controller.watch(informer, enqueue_self)
    parts = Parts(caches=[cache], controllers=[controller])
    return Manager(parts, clock=clock, election=election)


async def test_reconciles_in_flight_finish_when_the_manager_stops(
    client: Client, api: ApiClient, namespace: str
) -> None:
    for name in ("a", "b", "c", "d"):
        await api.create(config_map(namespace, name))
    slow, stop = Slow(namespace), asyncio.Event()

    async def both_workers_busy() -> bool:
        return len(slow.started) == 2

    manager = manager_of(client, slow, namespace)

    async def stopping() -> bool:
        return manager.stopping

    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run(stop))
        await until(both_workers_busy, within=30, what="two reconciles beginning")
        stop.set()
        await until(stopping, within=30, what="the manager noticing")
        slow.resume.set()
        await running
    assert sorted(slow.finished) == sorted(slow.started)
    assert len(slow.started) == 2, "nothing new was begun after the stop"


async def test_objects_read_at_the_start_are_frozen_for_the_garbage_collector(
    client: Client, namespace: str
) -> None:
    stop = asyncio.Event()

    async def still_leads() -> bool:
        return gc.get_freeze_count() > 0 and gc.get_threshold()[0] == YOUNG

    async with asyncio.TaskGroup() as group:
        group.create_task(manager_of(client, Slow(namespace), namespace).run(stop))
        await until(still_leads, within=30, what="the manager having read the existing objects")
        stop.set()


async def test_a_lost_lease_ends_the_manager_at_once(
    client: Client, api: ApiClient, namespace: str, control_plane: ControlPlane
) -> None:
    await api.create(config_map(namespace, "a"))
    slow = Slow(namespace)
    election = election_of(client, namespace)
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/manager"

    async def busy() -> bool:
        return slow.started == ["a"]

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(manager_of(client, slow, namespace, election).run(asyncio.Event()))
            await until(busy, within=30, what="a reconcile beginning")
            takeover = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 60}}
            await api.request("PATCH", lease, body=takeover, content_type=MERGE)

    with pytest.raises(ExceptionGroup) as raised:
        await run()
    assert raised.group_contains(LeaseLostError)
    assert slow.finished == []
    assert (await api.get(lease))["spec"]["holderIdentity"] == "thief"


class Writer:
    """A reconciler that wants to write after a while."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.about_to_write = asyncio.Event()
        self.errors: list[Exception] = []

    async def reconcile(self, request: Request) -> Result:
        await self._client.get(
            CONFIG_MAPS, request
        )  # leaves a connection on which to write at once
        self.about_to_write.set()
        try:
            await asyncio.sleep(0.2)  # over while the event loop stalls, before the lease is missed
            written = config_map(request.namespace, "written")
            await self._client.create(CONFIG_MAPS, written)
        except WriteGuardError as error:
            self.errors.append(error)
        return DONE


async def test_nothing_is_written_after_a_stall_in_which_the_lease_was_lost(
    client: Client, api: ApiClient, namespace: str, control_plane: ControlPlane
) -> None:
    await api.create(config_map(namespace, "a"))
    election = election_of(client, namespace, SHORT_DEADLINE)
    connection = await load_connection(control_plane.kubeconfig)
    async with HttpTransport(connection, user_agent="fenced") as transport:
        fenced = Client(transport, write_guard=lambda: election.is_leading)
        writer = Writer(fenced)

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                manager = manager_of(client, writer, namespace, election)
                group.create_task(manager.run(asyncio.Event()))
                await writer.about_to_write.wait()
                time.sleep(SHORT_DEADLINE + 0.2)  # noqa: ASYNC251  the loop stands

        with pytest.raises(ExceptionGroup) as raised:
            await run()
    assert raised.group_contains(LeaseLostError)
    assert len(writer.errors) == 1, "it was about to write, and was held back"
    names = [each["metadata"]["name"] for each in await config_maps_in(api, namespace)]
    assert "written" not in names


async def config_maps_in(api: ApiClient, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.get(f"/api/v1/namespaces/{namespace}/configmaps"))[
        "items"
    ]
    return found


async def test_lease_is_released_when_the_manager_stops(
    client: Client, api: ApiClient, namespace: str
) -> None:
    slow, stop = Slow(namespace), asyncio.Event()
    slow.resume.set()
    await api.create(config_map(namespace, "a"))
    election = election_of(client, namespace)

    async def done() -> bool:
        return slow.finished == ["a"]

    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager_of(client, slow, namespace, election).run(stop))
        await until(done, within=30, what="a reconcile finishing")
        stop.set()
        await running
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/manager"
    assert (await api.get(lease))["spec"].get("holderIdentity", "") == ""
