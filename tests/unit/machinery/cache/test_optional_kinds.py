"""Kinds that come later, on time that passes when told to."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.client.transport import Response
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured
from kftrainer.machinery.cache.cache import Cache, NotSyncedError
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.cache.optional_kinds import OptionalKinds, pauses
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.informers import running
from tests.unit.machinery.cache.test_informer import FakeTransport, all_sent


def kind(name: str) -> Resource[Manifest]:
    return Resource(f"{name}.example", "v1", name.title(), f"{name}s", True, unstructured)  # noqa: FBT003


LAMPS, CHAIRS, OTHERS = kind("lamp"), kind("chair"), kind("other")


class Discovery(FakeTransport):
    """A transport to a server on which kinds are installed while a test goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.served: set[Resource[Manifest]] = set()
        self.trouble: int | TransportError | None = None
        self.requests: list[str] = []

    async def request(self, method: str, path: str, **options: Any) -> Response:
        self.requests.append(path)
        if isinstance(self.trouble, TransportError):
            raise self.trouble
        if self.trouble is not None:
            return Response(self.trouble, {}, b"{}")
        for each in self.served:
            if path == f"/apis/{each.api_version}":
                fields = {"kind": each.kind, "name": each.plural, "namespaced": True}
                return Response(200, {}, orjson.dumps({"resources": [fields]}))
        return Response(404, {}, b"{}")

    async def sync(self) -> None:
        """Let the newest informer know all."""
        await self.say(all_sent(5))


class Scene:
    """Late kinds beside a cache that runs."""

    def __init__(self) -> None:
        self.wire, self.clock, self.cache = Discovery(), FakeClock(), Cache(sync_timeout=60)
        self.installed: list[Resource[Any]] = []
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()

    def late(self, **options: Any) -> OptionalKinds:
        informers = [
            Informer(Client(self.wire), each, clock=FakeClock()) for each in (LAMPS, CHAIRS)
        ]
        options.setdefault("on_installed", self.installed.append)
        mapper = RestMapper(self.wire)
        return OptionalKinds(
            informers, cache=self.cache, mapper=mapper, clock=self.clock, **options
        )

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[OptionalKinds]:
        late = self.late(**options)
        async with running(self.cache), asyncio.TaskGroup() as tasks:
            tasks.create_task(late.run(self.ready.set, self.stop))
            await at_rest()
            yield late
            self.stop.set()

    async def next_round(self) -> float:
        """Let time pass until the kinds have been asked for again; how long it was."""
        [until] = self.clock.sleeping
        pause = until - self.clock.monotonic()
        await self.clock.advance(pause)
        await at_rest()
        return pause


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured  # type: ignore[misc]


async def test_no_installed_kind_is_ready_after_one_discovery(scene: Scene) -> None:
    async with scene.running() as late:
        assert scene.ready.is_set()
        assert scene.wire.requests == ["/apis/lamp.example/v1", "/apis/chair.example/v1"]
        assert (scene.installed, late.installed(LAMPS)) == ([], False)


async def test_a_kind_that_is_there_at_the_start_has_synced_when_it_is_ready(scene: Scene) -> None:
    scene.wire.served = {LAMPS}
    async with scene.running() as late:
        assert (scene.ready.is_set(), late.installed(LAMPS), scene.installed) == (False, False, [])
        await scene.wire.sync()
        assert (scene.ready.is_set(), late.installed(LAMPS)) == (True, True)
        assert (scene.installed, scene.cache.list(LAMPS)) == ([LAMPS], [])
        assert not late.installed(CHAIRS)


async def test_callback_for_a_kind_can_read_all_synced_kinds(scene: Scene) -> None:
    others = FakeTransport()
    scene.wire.served = {LAMPS}
    scene.cache.add(Informer(Client(others), OTHERS, clock=FakeClock()))
    async with scene.running(on_installed=lambda _: scene.cache.list(OTHERS)):
        await scene.wire.sync()
        assert not scene.ready.is_set()
        await others.say(all_sent(5))
        assert scene.ready.is_set()


async def test_kind_installed_later_is_announced_once_after_sync(scene: Scene) -> None:
    async with scene.running() as late:
        scene.wire.served = {CHAIRS}
        await scene.next_round()
        assert (scene.installed, late.installed(CHAIRS)) == ([], False)
        await scene.wire.sync()
        assert (scene.installed, late.installed(CHAIRS)) == ([CHAIRS], True)
        assert scene.cache.list(CHAIRS) == []
        await scene.next_round()
        assert scene.installed == [CHAIRS]


async def test_kind_that_does_not_sync_does_not_block_discovery_of_others(
    scene: Scene,
) -> None:
    async with scene.running() as late:
        scene.wire.served = {LAMPS}
        await scene.next_round()
        scene.wire.served = {LAMPS, CHAIRS}
        await scene.next_round()
        await scene.wire.sync()
        assert (late.installed(LAMPS), scene.installed) == (False, [CHAIRS])


async def test_pauses_grow_from_a_second_to_half_a_minute_and_end_with_the_last_kind(
    scene: Scene,
) -> None:
    async with scene.running():
        waited = [await scene.next_round() for _ in range(8)]
        for pause, around in zip(waited, (1, 2, 4, 8, 16, 30, 30, 30), strict=True):
            assert around * 0.9 <= pause <= around * 1.1
        assert len(set(waited[-3:])) == 3, "no two processes keep asking together"
        scene.wire.served = {LAMPS, CHAIRS}
        await scene.next_round()
        asked = len(scene.wire.requests)
        await scene.clock.advance(1000)
        assert (scene.clock.sleeping, len(scene.wire.requests)) == ([], asked)
        assert not scene.stop.is_set(), "it goes on, with nothing to do"


def test_chance_is_an_argument() -> None:
    one, same, other = (pauses(Random(seed)) for seed in (1, 1, 2))  # noqa: S311
    assert next(one) == next(same) != next(other)


@pytest.mark.parametrize("trouble", [TransportError("gone"), 500, 503, 403, 401, 429])
async def test_failed_discovery_is_retried(scene: Scene, trouble: int | TransportError) -> None:
    scene.wire.served, scene.wire.trouble = {LAMPS}, trouble
    async with scene.running() as late:
        assert scene.ready.is_set()
        scene.wire.trouble = None
        await scene.next_round()
        await scene.wire.sync()
        assert late.installed(LAMPS)


async def test_only_changed_discovery_results_are_logged(scene: Scene, logs: list[Any]) -> None:
    def said() -> list[tuple[str, str, str]]:
        entries = [
            (each["kind"], each["result"], each["log_level"])
            for each in logs
            if each["event"] == "optional_kind_checked"
        ]
        logs.clear()
        return entries

    lamp, chair = LAMPS.group_kind, CHAIRS.group_kind
    async with scene.running():
        assert said() == [(lamp, "missing", "info"), (chair, "missing", "info")]
        await scene.next_round()
        assert said() == []
        scene.wire.trouble = 503
        await scene.next_round()
        assert said() == [(lamp, "unknown", "warning"), (chair, "unknown", "warning")]
        scene.wire.trouble = 500
        await scene.next_round()
        assert said() == []
        scene.wire.trouble, scene.wire.served = None, {LAMPS}
        await scene.next_round()
        assert said() == [(lamp, "served", "info"), (chair, "missing", "info")]


async def test_failures_are_logged(scene: Scene, logs: list[Any]) -> None:
    scene.wire.trouble = TransportError("nobody there")
    async with scene.running():
        assert [each["error"] for each in logs] == ["nobody there"] * 2


async def test_a_kind_that_is_there_at_the_start_and_cannot_be_read_is_named(scene: Scene) -> None:
    scene.wire.served, scene.cache = {LAMPS}, Cache(sync_timeout=0.05)

    async def live() -> None:
        async with asyncio.timeout(10), scene.running():
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        await live()
    assert raised.group_contains(NotSyncedError, match=f"waited 0.05 s for {LAMPS.group_kind}: ")
    assert not scene.ready.is_set()


async def test_it_stops_while_it_waits_for_a_kind_to_sync(scene: Scene) -> None:
    scene.wire.served = {LAMPS}
    async with scene.running():
        pass
    assert (scene.ready.is_set(), scene.installed) == (False, [])


async def test_a_callback_that_fails_ends_it(scene: Scene) -> None:
    def fail(resource: Resource[Any]) -> None:
        raise LookupError(resource.kind)

    async def live() -> None:
        async with scene.running(on_installed=fail):
            scene.wire.served = {LAMPS}
            await scene.next_round()
            await scene.wire.sync()

    with pytest.raises(ExceptionGroup) as raised:
        await live()
    assert raised.group_contains(LookupError, match="Lamp")
