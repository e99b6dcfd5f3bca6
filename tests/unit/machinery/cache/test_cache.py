"""The cache: only what was declared and has synced is read from it."""

import asyncio

import pytest

from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.cache import Cache, NotCachedError, NotSyncedError
from kftrainer.machinery.cache.informer import Informer
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.informers import running
from tests.unit.machinery.cache.test_informer import THINGS, FakeTransport, all_sent, event

OTHERS: Resource[Manifest] = Resource(
    "", "v1", "Other", "others", namespaced=True, decode=unstructured
)
KEY = ObjectKey("", "a")


@pytest.fixture
def wire() -> FakeTransport:
    return FakeTransport()


def informer_of(resource: Resource[Manifest], wire: FakeTransport) -> Informer[Manifest]:
    indexes = {"name": lambda seen: [seen.metadata["name"]]}
    return Informer(Client(wire), resource, clock=FakeClock(), indexes=indexes)


def test_undeclared_kind_is_not_watched() -> None:
    with pytest.raises(NotCachedError, match="Thing is not cached"):
        Cache().get(THINGS, KEY)


def test_unsynced_cache_reports_no_object_as_missing(wire: FakeTransport) -> None:
    cache = Cache()
    cache.add(informer_of(THINGS, wire))
    with pytest.raises(NotSyncedError, match="informer of Thing has not synced"):
        cache.get(THINGS, KEY)


def test_a_kind_is_declared_once(wire: FakeTransport) -> None:
    cache = Cache()
    cache.add(informer_of(THINGS, wire))
    with pytest.raises(ValueError, match="Thing already has an informer"):
        cache.add(informer_of(THINGS, wire))


async def test_cache_is_ready_and_readable_when_all_informers_have_synced(
    wire: FakeTransport,
) -> None:
    cache, ready, stop = Cache(), asyncio.Event(), asyncio.Event()
    other_wire = FakeTransport()
    cache.add(informer_of(THINGS, wire))
    cache.add(informer_of(OTHERS, other_wire))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cache.run(ready.set, stop))
        await wire.send(event("ADDED", "a", 1), all_sent(5))
        assert not ready.is_set()
        await other_wire.send(all_sent(6))
        assert ready.is_set()
        stop.set()
    held = cache.get(THINGS, KEY)
    assert held is not None
    assert cache.list(THINGS) == cache.by_index(THINGS, "name", "a") == [held]
    assert (cache.list(THINGS, "elsewhere"), cache.list(OTHERS)) == ([], [])


async def test_a_kind_that_does_not_sync_in_time_is_named(wire: FakeTransport) -> None:
    cache = Cache(sync_timeout=60)
    cache.add(informer_of(THINGS, wire))
    cache.add(informer_of(OTHERS, FakeTransport()))
    expected = (
        r"^the cache has waited 0.05 s for Other: "
        r"check that the kind is installed and that it may be listed and watched$"
    )
    async with running(cache):
        await wire.send(all_sent(5))
        cache._sync_timeout = 0.05  # so that it cannot have been over before
        with pytest.raises(NotSyncedError, match=expected):
            await cache.wait_synced()


async def test_a_kind_that_is_declared_later_is_watched_from_then_on(wire: FakeTransport) -> None:
    cache, other_wire = Cache(), FakeTransport()
    cache.add(informer_of(THINGS, wire))
    async with running(cache):
        await wire.send(all_sent(5))
        cache.add(informer_of(OTHERS, other_wire))
        await other_wire.send(event("ADDED", "a", 1), all_sent(6))
        await at_rest()
        assert len(cache.list(OTHERS)) == 1
