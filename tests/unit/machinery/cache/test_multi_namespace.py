"""Informers of several namespaces with the interface of one."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.cache.multi_namespace import (
    AnyInformer,
    MultiNamespaceInformer,
    in_namespaces,
)
from kftrainer.machinery.cache.store import UnknownIndexError
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.informers import RecordingHandler, running
from tests.unit.machinery.cache.test_informer import THINGS, FakeTransport, all_sent, event

NODES: Resource[Manifest] = Resource(
    "", "v1", "Node", "nodes", namespaced=False, decode=unstructured
)


@pytest.fixture
def wires() -> Mapping[str, FakeTransport]:
    return {"m": FakeTransport(), "n": FakeTransport()}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def accesses() -> list[Any]:
    """Which namespaces were reported, and with which error."""
    return []


@pytest.fixture
def group(
    wires: Mapping[str, FakeTransport], clock: FakeClock, accesses: list[Any]
) -> MultiNamespaceInformer[Manifest]:
    indexes = {"name": lambda seen: [seen.metadata["name"]]}

    def new_informer(namespace: str | None) -> Informer[Manifest]:
        return Informer(
            Client(wires[namespace or ""]),
            THINGS,
            clock=clock,
            namespace=namespace,
            indexes=indexes,
            on_access=lambda _, where, error: accesses.append((where, type(error).__name__)),
        )

    group = in_namespaces(THINGS, wires, new_informer)
    assert isinstance(group, MultiNamespaceInformer)
    return group


def added(namespace: str, name: str, version: int) -> bytes:
    return event("ADDED", name, version, namespace=namespace)


def names(found: list[Manifest]) -> list[str]:
    return ["{namespace}/{name}".format(**each["metadata"]) for each in found]


async def test_it_has_synced_when_all_have(
    wires: Mapping[str, FakeTransport], group: MultiNamespaceInformer[Manifest]
) -> None:
    ready, stop = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(group.run(ready.set, stop))
        waiting = tasks.create_task(group.wait_synced())
        await wires["n"].send(all_sent(5))
        assert (group.has_synced, waiting.done(), ready.is_set()) == (False, False, False)
        await wires["m"].send(all_sent(7))
        assert (group.has_synced, waiting.done(), ready.is_set()) == (True, True, True)
        stop.set()


async def test_namespace_that_must_not_be_read_does_not_hold_up_the_others(
    wires: Mapping[str, FakeTransport],
    clock: FakeClock,
    accesses: list[Any],
    group: MultiNamespaceInformer[Manifest],
) -> None:
    wires["m"].refuse(403)
    witness = RecordingHandler()
    group.add_handler(witness)
    async with running(group):
        await at_rest()
        assert (group.has_synced, group.is_readable()) == (False, False)
        await wires["n"].send(added("n", "a", 3), all_sent(5))
        await group.wait_synced()
        assert group.has_synced
        assert [group.is_readable(each) for each in (None, "m", "n", "x")] == [
            *(True, False, True, False)
        ]
        assert names(group.list()) == ["n/a"]
        await clock.advance(40)
        assert accesses == [("m", "ForbiddenError")], "it is reported once"
        wires["m"].permit()
        await clock.advance(60)
        await wires["m"].send(added("m", "b", 8), all_sent(9))
        assert group.is_readable("m")
        assert accesses == [("m", "ForbiddenError"), ("m", "NoneType")]
    assert {str(key) for key in witness.known} == {"m/b", "n/a"}


async def test_group_that_is_refused_everywhere_has_not_synced(
    wires: Mapping[str, FakeTransport], clock: FakeClock, group: MultiNamespaceInformer[Manifest]
) -> None:
    for wire in wires.values():
        wire.refuse(403)
    async with running(group), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(group.wait_synced())
        await clock.advance(60)
        assert (group.has_synced, waiting.done()) == (False, False)
        wires["n"].permit()
        await clock.advance(60)
        await wires["n"].send(all_sent(5))
        assert (group.has_synced, waiting.done()) == (True, True)


async def test_kind_that_was_removed_is_not_readable_until_it_is_reinstalled(
    wires: Mapping[str, FakeTransport],
    clock: FakeClock,
    accesses: list[Any],
    group: MultiNamespaceInformer[Manifest],
) -> None:
    async with running(group):
        for namespace, wire in wires.items():
            await wire.send(added(namespace, "a", 3), all_sent(5))
        assert group.is_readable()
        for wire in wires.values():
            wire.refuse(404)
            await wire.send(None)
        await clock.advance(5)
        assert (group.has_synced, group.is_readable(), group.is_readable("m")) == (
            *(True, False, False),
        )
        assert sorted(accesses) == [("m", "KindNotFoundError"), ("n", "KindNotFoundError")]
        for wire in wires.values():
            wire.permit()
        await clock.advance(5)
        for wire in wires.values():
            await wire.send(all_sent(9))
        assert (group.is_readable("m"), group.list()) == (True, [])


async def test_reads_use_the_requested_namespace_or_all(
    wires: Mapping[str, FakeTransport], group: MultiNamespaceInformer[Manifest]
) -> None:
    cache, key = Cache(), ObjectKey("n", "a")
    cache.add(group)
    async with running(cache):
        await wires["m"].send(added("m", "a", 1), added("m", "b", 2), all_sent(5))
        await wires["n"].send(added("n", "a", 3), all_sent(7))
    assert cache.get(THINGS, key) == group.get(key) == group.cached_object(key).object  # type: ignore[union-attr]
    assert names([group.get(key)]) == ["n/a"]  # type: ignore[list-item]
    assert names(cache.list(THINGS)) == ["m/a", "m/b", "n/a"]
    assert names(cache.list(THINGS, "n")) == ["n/a"]
    assert names(cache.by_index(THINGS, "name", "a")) == ["m/a", "n/a"]
    assert [cache.has_index(THINGS, "name", each) for each in "abc"] == [True, True, False]
    assert [group.version_in(each) for each in ("m", "n")] == ["5", "7"]
    with pytest.raises(UnknownIndexError):
        group.has_index("color", "red")


async def test_objects_of_other_namespaces_are_not_found(
    group: MultiNamespaceInformer[Manifest],
) -> None:
    elsewhere = ObjectKey("elsewhere", "a")
    assert (group.get(elsewhere), group.cached_object(elsewhere)) == (None, None)
    assert (group.list("elsewhere"), group.version_in("elsewhere")) == ([], "")


async def test_late_handler_is_synced_when_all_namespaces_are(
    wires: Mapping[str, FakeTransport], group: MultiNamespaceInformer[Manifest]
) -> None:
    early, late = RecordingHandler(), RecordingHandler()
    assert group.add_handler(early).is_set(), "nothing is here yet"
    async with running(group):
        for namespace, wire in wires.items():
            await wire.send(added(namespace, "a", 1), all_sent(5))
        # Delivery of the second namespace's informer is blocked.
        async with group._informers["n"]._turn:
            synced = group.add_handler(late)
            await at_rest()
            assert ([each.key.namespace for each in late.events], synced.is_set()) == (["m"], False)
        await at_rest()
        assert synced.is_set()
        await wires["m"].send(event("DELETED", "a", 8, namespace="m"))
    assert [each.key.namespace for each in late.events] == ["m", "n", "m"]
    assert (early.known, early.inconsistencies) == (late.known, [])


async def test_if_one_fails_all_end(
    wires: Mapping[str, FakeTransport], group: MultiNamespaceInformer[Manifest]
) -> None:
    async def live() -> None:
        async with asyncio.timeout(10), running(group):
            await wires["m"].send(
                b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}\n'
            )
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        await live()
    assert raised.group_contains(KeyError), "an object has a name"


@pytest.mark.parametrize(
    ("resource", "namespaces", "requested"),
    [
        (THINGS, ["m", "n", "m"], ["m", "n"]),
        (THINGS, ["m"], ["m"]),
        (THINGS, [], [None]),
        (NODES, ["m", "n"], [None]),
    ],
    ids=["some", "one", "all", "without-namespaces"],
)
def test_a_kind_is_split_by_namespaces_where_some_are_named_and_it_has_them(
    resource: Resource[Any], namespaces: list[str], requested: list[str | None]
) -> None:
    requests: list[str | None] = []

    def new_informer(namespace: str | None) -> Informer[Any]:
        requests.append(namespace)
        return Informer(Client(FakeTransport()), resource, clock=FakeClock(), namespace=namespace)

    result: AnyInformer[Any] = in_namespaces(resource, namespaces, new_informer)
    assert requests == requested
    assert isinstance(result, MultiNamespaceInformer) == (requests != [None])


def test_description_names_the_namespaces(group: MultiNamespaceInformer[Manifest]) -> None:
    assert group.name == "informer of Thing in m, n"
    assert [each.name for each in group._informers.values()] == [
        "informer of Thing in m",
        "informer of Thing in n",
    ]
