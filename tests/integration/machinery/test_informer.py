"""Informers against the real API server: initial objects, changes and notified handlers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.manager.clock import SystemClock
from tests.support.informers import (
    CONFIG_MAPS,
    Reading,
    RecordingHandler,
    Server,
    agreement,
    connected,
    running,
)

CLOCK = SystemClock()


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with connected(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
def server(api: ApiClient, namespace: str) -> Server:
    return Server(api, namespace)


@pytest.fixture
def witness() -> RecordingHandler:
    return RecordingHandler()


def informer_of(client: Client, server: Server, witness: RecordingHandler) -> Informer[Manifest]:
    informer = Informer(client, CONFIG_MAPS, clock=CLOCK, namespace=server.namespace)
    informer.add_handler(witness)
    return informer


async def test_existing_objects_are_delivered_first_and_marked_as_initial(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    for name in ("a", "b"):
        await server.put(name, x="1")
    informer = informer_of(client, server, witness)
    assert not informer.has_synced
    async with running(informer):
        await informer.wait_synced()
        assert [(each.key.name, each.initial) for each in witness.events] == [
            ("a", True),
            ("b", True),
        ]
        await server.put("c")
        await agreement(informer, server, witness)
        assert (witness.events[2].key, witness.events[2].initial) == (server.key("c"), False)


async def test_an_empty_namespace_syncs_too(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    informer = informer_of(client, server, witness)
    async with running(informer), asyncio.timeout(30):
        await informer.wait_synced()
    assert informer.list() == []
    assert int(informer.resource_version) > 0


async def test_updates_and_deletes_carry_the_old_object(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    informer = informer_of(client, server, witness)
    async with running(informer):
        await informer.wait_synced()
        await server.put("a", x="1")
        await server.put("a", x="2")
        await server.delete("a")

        async def all_notified() -> bool:
            return len(witness.events) == 3

        await until(all_notified, within=30, what="three changes")
    data = [
        (each.old and each.old.object["data"]["x"], each.new and each.new.object["data"]["x"])
        for each in witness.events
    ]
    assert data == [(None, "1"), ("1", "2"), ("2", None)]
    assert informer.get(server.key("a")) is None


async def test_managed_fields_are_not_kept(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    informer = informer_of(client, server, witness)
    await server.put("a", x="1")
    async with running(informer):
        await informer.wait_synced()
    held = informer.get(server.key("a"))
    assert held is not None
    assert "managedFields" not in held["metadata"]
    assert held["metadata"] == witness.events[0].new.metadata  # type: ignore[union-attr]


async def test_late_handler_gets_existing_objects_and_then_changes(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    informer = informer_of(client, server, witness)
    await server.put("a", x="1")
    late = RecordingHandler()
    async with running(informer):
        await informer.wait_synced()
        await informer.add_handler(late).wait()
        assert [(each.key, each.initial) for each in late.events] == [(server.key("a"), True)]
        await server.put("a", x="2")
        await agreement(informer, server, late)
    assert len(late.events) == 2


async def test_failing_handler_does_not_block_later_events(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    informer = Informer(client, CONFIG_MAPS, clock=CLOCK, namespace=server.namespace)
    calls: list[str] = []

    def failing(change: object) -> None:
        calls.append("call")
        raise ZeroDivisionError

    informer.add_handler(failing)
    informer.add_handler(witness)
    async with running(informer):
        await server.put("a")
        await server.put("b")
        await agreement(informer, server, witness)
    assert len(calls) == 2


async def test_only_selected_objects_are_cached(
    client: Client, server: Server, witness: RecordingHandler, namespace: str
) -> None:
    def labelled(name: str, color: str) -> dict[str, object]:
        metadata = {"name": name, "namespace": namespace, "labels": {"color": color}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    informer = Informer(
        client, CONFIG_MAPS, clock=CLOCK, namespace=namespace, label_selector="color=red"
    )
    informer.add_handler(witness)
    async with running(informer):
        await server.api.apply(labelled("a", "red"))
        await server.api.apply(labelled("b", "blue"))
        await server.api.apply(labelled("c", "red"))

        async def both() -> bool:
            return set(witness.known) == {server.key("a"), server.key("c")}

        await until(both, within=30, what="the red ones")
        await server.api.apply(labelled("a", "blue"))

        async def one() -> bool:
            return set(witness.known) == {server.key("c")}

        await until(one, within=30, what="only one red one")
        assert [each["metadata"]["name"] for each in informer.list()] == ["c"]
    assert witness.inconsistencies == []


async def test_filtered_objects_are_neither_cached_nor_delivered(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    reading = Reading(keep=lambda manifest: manifest["data"]["color"] == "red")
    informer = Informer(
        client, CONFIG_MAPS, clock=CLOCK, namespace=server.namespace, keep=reading.keep
    )
    informer.add_handler(witness)
    await server.put("a", color="red")
    await server.put("b", color="blue")
    async with running(informer):
        await agreement(informer, server, witness, reading=reading)
        for name, color in (("c", "blue"), ("b", "red"), ("a", "blue"), ("a", "green")):
            await server.put(name, color=color)
        await server.delete("a")
        await server.put("a", color="red")
        await agreement(informer, server, witness, reading=reading)
    events = [(each.key.name, each.new is None) for each in witness.events]
    assert events == [("a", False), ("b", False), ("a", True), ("a", False)]


async def test_transformed_objects_are_cached_and_indexed(client: Client, server: Server) -> None:
    def only_x(manifest: Manifest) -> Manifest:
        return {**manifest, "data": {"x": manifest["data"]["x"]}}

    informer = Informer(
        client,
        CONFIG_MAPS,
        clock=CLOCK,
        namespace=server.namespace,
        transform=only_x,
        indexes={"x": lambda seen: [seen.object["data"]["x"]]},
    )
    await server.put("a", x="1", y="2")
    await server.put("b", x="3")
    async with running(informer):
        await informer.wait_synced()
        assert [each["data"] for each in informer.by_index("x", "1")] == [{"x": "1"}]
        await server.put("a", x="3", y="2")

        async def moved() -> bool:
            names = {each["metadata"]["name"] for each in informer.by_index("x", "3")}
            return names == {"a", "b"} and informer.by_index("x", "1") == []

        await until(moved, within=30, what="the index following the object")


async def test_two_thousand_updates_of_one_object_end_in_its_last_state(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    informer = informer_of(client, server, witness)
    async with running(informer):
        await informer.wait_synced()
        await server.put("a", n="-1")
        for worker in range(2000 // 8):
            async with asyncio.TaskGroup() as tasks:
                for n in range(8):
                    patch = {"data": {"n": str(worker * 8 + n)}}
                    tasks.create_task(client.merge_patch(CONFIG_MAPS, server.key("a"), patch))
        await agreement(informer, server, witness)
        assert len(witness.events) > 1000


async def test_slow_handler_receives_the_last_state_of_every_object(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    informer = informer_of(client, server, witness)
    busy = asyncio.get_running_loop()

    def slow(change: object) -> None:
        deadline = busy.time() + 0.01
        while busy.time() < deadline:
            pass

    informer.add_handler(slow)
    async with running(informer):
        await informer.wait_synced()
        for n in range(100):
            name = f"c-{n % 10}"
            await server.put(name, n=str(n))
            if n % 17 == 0:
                await server.delete(name)
        await agreement(informer, server, witness)


async def test_the_cache_is_ready_when_all_its_informers_have_synced(
    client: Client, server: Server, witness: RecordingHandler
) -> None:
    await server.put("a", x="1")
    cache, ready = Cache(), asyncio.Event()
    informer = informer_of(client, server, witness)
    cache.add(informer)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cache.run(ready.set, stop))
        await ready.wait()
        assert informer.has_synced
        held = cache.get(CONFIG_MAPS, server.key("a"))
        assert held is not None
        assert held["data"] == {"x": "1"}
        stop.set()
