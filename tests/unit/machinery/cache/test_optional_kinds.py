"""Kinds that are installed later, with a fake clock."""

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
    """A transport to a server on which kinds are installed during a test."""

    def __init__(self) -> None:
        super().__init__()
        self.served: set[Resource[Manifest]] = set()
        self.error: int | TransportError | None = None
        self.requests: list[str] = []

    async def request(self, method: str, path: str, **options: Any) -> Response:
        self.requests.append(path)
        if isinstance(self.error, TransportError):
            raise self.error
        if self.error is not None:
            return Response(self.error, {}, b"{}")
        for each in self.served:
            if path == f"/apis/{each.api_version}":
                fields = {"kind": each.kind, "name": each.plural, "namespaced": True}
                return Response(200, {}, orjson.dumps({"resources": [fields]}))
        return Response(404, {}, b"{}")

    async def sync(self) -> None:
        """Let the newest informer know all."""
        await self.send(all_sent(5))


class Setup:
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
        """Let time pass until the next discovery; return the delay."""
        [until] = self.clock.sleeping
        pause = until - self.clock.monotonic()
        await self.clock.advance(pause)
        await at_rest()
        return pause


@pytest.fixture
def setup() -> Setup:
    return Setup()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured  # type: ignore[misc]


async def test_no_installed_kind_is_ready_after_one_discovery(setup: Setup) -> None:
    async with setup.running() as late:
        assert setup.ready.is_set()
        assert setup.wire.requests == ["/apis/lamp.example/v1", "/apis/chair.example/v1"]
        assert (setup.installed, late.installed(LAMPS)) == ([], False)


async def test_a_kind_that_is_there_at_the_start_has_synced_when_it_is_ready(setup: Setup) -> None:
    setup.wire.served = {LAMPS}
    async with setup.running() as late:
        assert (setup.ready.is_set(), late.installed(LAMPS), setup.installed) == (False, False, [])
        await setup.wire.sync()
        assert (setup.ready.is_set(), late.installed(LAMPS)) == (True, True)
        assert (setup.installed, setup.cache.list(LAMPS)) == ([LAMPS], [])
        assert not late.installed(CHAIRS)


async def test_callback_for_a_kind_can_read_all_synced_kinds(setup: Setup) -> None:
    others = FakeTransport()
    setup.wire.served = {LAMPS}
    setup.cache.add(Informer(Client(others), OTHERS, clock=FakeClock()))
    async with setup.running(on_installed=lambda _: setup.cache.list(OTHERS)):
        await setup.wire.sync()
        assert not setup.ready.is_set()
        await others.send(all_sent(5))
        assert setup.ready.is_set()


async def test_kind_installed_later_is_announced_once_after_sync(setup: Setup) -> None:
    async with setup.running() as late:
        setup.wire.served = {CHAIRS}
        await setup.next_round()
        assert (setup.installed, late.installed(CHAIRS)) == ([], False)
        await setup.wire.sync()
        assert (setup.installed, late.installed(CHAIRS)) == ([CHAIRS], True)
        assert setup.cache.list(CHAIRS) == []
        await setup.next_round()
        assert setup.installed == [CHAIRS]


async def test_kind_that_does_not_sync_does_not_block_discovery_of_others(
    setup: Setup,
) -> None:
    async with setup.running() as late:
        setup.wire.served = {LAMPS}
        await setup.next_round()
        setup.wire.served = {LAMPS, CHAIRS}
        await setup.next_round()
        await setup.wire.sync()
        assert (late.installed(LAMPS), setup.installed) == (False, [CHAIRS])


async def test_pauses_grow_from_a_second_to_half_a_minute_and_end_with_the_last_kind(
    setup: Setup,
) -> None:
    async with setup.running():
        waited = [await setup.next_round() for _ in range(8)]
        for pause, around in zip(waited, (1, 2, 4, 8, 16, 30, 30, 30), strict=True):
            assert around * 0.9 <= pause <= around * 1.1
        assert len(set(waited[-3:])) == 3, "the retries of several processes are spread"
        setup.wire.served = {LAMPS, CHAIRS}
        await setup.next_round()
        requested = len(setup.wire.requests)
        await setup.clock.advance(1000)
        assert (setup.clock.sleeping, len(setup.wire.requests)) == ([], requested)
        assert not setup.stop.is_set(), "it continues, with nothing to do"


def test_chance_is_an_argument() -> None:
    one, same, other = (pauses(Random(seed)) for seed in (1, 1, 2))  # noqa: S311
    assert next(one) == next(same) != next(other)


@pytest.mark.parametrize("failure", [TransportError("gone"), 500, 503, 403, 401, 429])
async def test_failed_discovery_is_retried(setup: Setup, failure: int | TransportError) -> None:
    setup.wire.served, setup.wire.error = {LAMPS}, failure
    async with setup.running() as late:
        assert setup.ready.is_set()
        setup.wire.error = None
        await setup.next_round()
        await setup.wire.sync()
        assert late.installed(LAMPS)


async def test_only_changed_discovery_results_are_logged(setup: Setup, logs: list[Any]) -> None:
    def log_entries() -> list[tuple[str, str, str]]:
        entries = [
            (each["kind"], each["result"], each["log_level"])
            for each in logs
            if each["event"] == "optional_kind_checked"
        ]
        logs.clear()
        return entries

    lamp, chair = LAMPS.group_kind, CHAIRS.group_kind
    async with setup.running():
        assert log_entries() == [(lamp, "missing", "info"), (chair, "missing", "info")]
        await setup.next_round()
        assert log_entries() == []
        setup.wire.error = 503
        await setup.next_round()
        assert log_entries() == [(lamp, "unknown", "warning"), (chair, "unknown", "warning")]
        setup.wire.error = 500
        await setup.next_round()
        assert log_entries() == []
        setup.wire.error, setup.wire.served = None, {LAMPS}
        await setup.next_round()
        assert log_entries() == [(lamp, "served", "info"), (chair, "missing", "info")]


async def test_failures_are_logged(setup: Setup, logs: list[Any]) -> None:
    setup.wire.error = TransportError("nobody there")
    async with setup.running():
        assert [each["error"] for each in logs] == ["nobody there"] * 2


async def test_a_kind_that_is_there_at_the_start_and_cannot_be_read_is_named(setup: Setup) -> None:
    setup.wire.served, setup.cache = {LAMPS}, Cache(sync_timeout=0.05)

    async def live() -> None:
        async with asyncio.timeout(10), setup.running():
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        await live()
    assert raised.group_contains(NotSyncedError, match=f"waited 0.05 s for {LAMPS.group_kind}: ")
    assert not setup.ready.is_set()


async def test_it_stops_while_it_waits_for_a_kind_to_sync(setup: Setup) -> None:
    setup.wire.served = {LAMPS}
    async with setup.running():
        pass
    assert (setup.ready.is_set(), setup.installed) == (False, [])


async def test_a_callback_that_fails_ends_it(setup: Setup) -> None:
    def fail(resource: Resource[Any]) -> None:
        raise LookupError(resource.kind)

    async def live() -> None:
        async with setup.running(on_installed=fail):
            setup.wire.served = {LAMPS}
            await setup.next_round()
            await setup.wire.sync()

    with pytest.raises(ExceptionGroup) as raised:
        await live()
    assert raised.group_contains(LookupError, match="Lamp")
