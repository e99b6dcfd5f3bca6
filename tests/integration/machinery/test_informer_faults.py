"""Informers behind a proxy that breaks things: afterwards cache, handlers and server agree."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.controlplane import running as running_plane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.machinery.cache.informer import Informer
from tests.support.fast_clock import FastClock
from tests.support.fault_proxy import (
    Answer,
    Cut,
    Delay,
    Fault,
    FaultProxy,
    ProxiedRequest,
    Stall,
    running_proxy,
    status_answer,
)
from tests.support.informers import (
    CONFIG_MAPS,
    EVERYTHING,
    Reading,
    RecordingHandler,
    Server,
    agreement,
    connected,
    running,
)

BIG = "x" * 20_000
EXPIRED = status_answer(410, "Expired")
BROKEN = status_answer(500, "InternalError")
LATE = status_answer(504, "Timeout")
BUSY = Answer(429, "Too many requests, please try again later.\n", {"Retry-After": "3"})


def is_watch(request: ProxiedRequest) -> bool:
    return request.is_watch


def is_resumed_watch(request: ProxiedRequest) -> bool:
    return request.is_watch and "sendInitialEvents" not in request.query


def is_streamed_list(request: ProxiedRequest) -> bool:
    return request.is_watch and "sendInitialEvents" in request.query


def is_list(request: ProxiedRequest) -> bool:
    return request.is_list


def is_any(request: ProxiedRequest) -> bool:
    return True


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with running_proxy(control_plane, tmp_path) as proxy:
        yield proxy
        await no_connections(proxy)


async def no_connections(proxy: FaultProxy) -> None:
    async def closed() -> bool:
        return proxy.open_connections == 0

    await until(closed, within=30, what="the end of all connections")


async def one_watches(proxy: FaultProxy) -> None:
    async def watched() -> bool:
        return proxy.watches() == 1

    await until(watched, within=15, what="one watch, and no other that is still open")


@pytest.fixture
def server(api: ApiClient, namespace: str) -> Server:
    return Server(api, namespace)


class Cluster:
    """An informer behind a proxy, and a witness."""

    def __init__(
        self, proxy: FaultProxy, server: Server, client: Client, clock: FastClock, reading: Reading
    ) -> None:
        self.proxy = proxy
        self.server = server
        self.clock = clock
        self.witness = RecordingHandler()
        self._reading = reading
        self.informer = Informer(
            client,
            reading.resource,
            clock=clock,
            namespace=server.namespace,
            keep=reading.keep,
        )
        self.informer.add_handler(self.witness)

    async def agreement(self, within: float = 15) -> None:
        await agreement(self.informer, self.server, self.witness, within, self._reading)

    async def change_while_disconnected(self) -> None:
        """Change objects while the informer is disconnected: one new, one changed, one deleted."""
        self.proxy.stall_all()
        await self.server.put("new", x="1")
        await self.server.put("changed", x="2")
        await self.server.delete("gone")


@asynccontextmanager
async def cluster_with(
    proxy: FaultProxy, server: Server, times: float = 5, reading: Reading = EVERYTHING
) -> AsyncIterator[Cluster]:
    """A running informer; time runs faster for it, so that it waits seconds and not minutes.

    Not much faster where requests are counted: it asks once more when it has heard nothing for 75
    of its seconds, be it because we stood still.
    """
    clock = FastClock(times)
    async with connected(proxy.kubeconfig) as client:
        result = Cluster(proxy, server, client, clock, reading)
        async with running(result.informer):
            yield result


@asynccontextmanager
async def synced_cluster(
    proxy: FaultProxy, server: Server, times: float = 5
) -> AsyncIterator[Cluster]:
    """The same with some objects, which it has seen."""
    for name in ("same", "changed", "gone"):
        await server.put(name, x="1")
    async with cluster_with(proxy, server, times) as result:
        await result.agreement()
        yield result


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_watch_cut_in_the_middle_of_a_line_is_resumed(
    proxy: FaultProxy, server: Server, reset: bool
) -> None:
    async with synced_cluster(proxy, server) as cluster:
        proxy.inject(Cut(after=10_000, reset=reset), is_resumed_watch)
        proxy.reset_all()
        await server.put("big", x=BIG)
        await cluster.agreement()
        assert proxy.faults_left == 0
        assert not any(is_list(each) for each in proxy.requests)


async def test_streamed_list_cut_before_its_end_is_restarted(
    proxy: FaultProxy, server: Server
) -> None:
    for n in range(5):
        await server.put(f"big-{n}", x=BIG)
    proxy.inject(Cut(after=50_000), is_streamed_list, times=2)
    async with cluster_with(proxy, server) as cluster:
        await cluster.agreement()
        assert proxy.faults_left == 0
        assert len(cluster.witness.events) == 5


async def test_a_server_that_streams_no_lists_is_listed_in_pages(
    proxy: FaultProxy, server: Server
) -> None:
    await server.put("a", x="1")
    proxy.inject(status_answer(422, "Invalid"), is_streamed_list, times=100)
    async with cluster_with(proxy, server) as cluster:
        await cluster.agreement()
        await server.put("b", x="1")
        await cluster.agreement()


@pytest.mark.parametrize("relists", [0, 1], ids=["resumable", "not-resumable"])
async def test_expired_watch_is_relisted_and_missed_deletes_are_delivered(
    proxy: FaultProxy, server: Server, relists: int
) -> None:
    async with synced_cluster(proxy, server) as cluster:
        await cluster.change_while_disconnected()
        proxy.inject(EXPIRED, is_resumed_watch)
        proxy.inject(EXPIRED, is_streamed_list, times=relists)
        proxy.reset_all()
        await cluster.agreement()
        events = [(each.key.name, each.initial) for each in cluster.witness.events[3:]]
        assert events[0] == ("gone", False)
        assert sorted(events[1:]) == [("changed", False), ("new", False)]
        first, seen, *again = [each.query.get("resourceVersion", "") for each in proxy.requests]
        assert (first, again) == ("", [seen, ""] if relists else [seen])


def is_red(manifest: Manifest) -> bool:
    return bool(manifest["data"].get("color") == "red")


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "pages"])
async def test_relist_delivers_objects_that_start_or_stop_matching_the_filter(
    proxy: FaultProxy, server: Server, streams: bool
) -> None:
    if not streams:
        proxy.inject(status_answer(422, "Invalid"), is_streamed_list, times=100)
    for name in ("stays", "leaves"):
        await server.put(name, color="red")
    for name in ("comes", "never"):
        await server.put(name, color="blue")
    async with cluster_with(proxy, server, reading=Reading(keep=is_red)) as cluster:
        await cluster.agreement()
        assert {each.key.name for each in cluster.witness.events} == {"stays", "leaves"}
        proxy.stall_all()
        await server.put("leaves", color="blue")
        await server.put("comes", color="red")
        await server.put("never", color="green")
        proxy.inject(EXPIRED, is_resumed_watch)
        proxy.reset_all()
        await cluster.agreement()
        events = [(each.key.name, each.new is None) for each in cluster.witness.events[2:]]
        assert events == [("leaves", True), ("comes", False)]
        assert any(is_list(each) for each in proxy.requests) != streams


async def test_list_whose_continuation_has_expired_is_read_again(
    proxy: FaultProxy, server: Server, control_plane: ControlPlane
) -> None:
    async with connected(control_plane.kubeconfig) as client:
        for batch in range(26):
            async with asyncio.TaskGroup() as tasks:
                for n in range(20):
                    metadata = {"name": f"c-{batch}-{n}", "namespace": server.namespace}
                    tasks.create_task(client.create(CONFIG_MAPS, {"metadata": metadata}))
    proxy.inject(BROKEN, is_streamed_list)
    proxy.inject(EXPIRED, lambda request: request.is_continuation)
    async with cluster_with(proxy, server) as cluster:
        await cluster.agreement()
        assert proxy.faults_left == 0
        assert len(cluster.witness.events) == 520
        pages = [each for each in proxy.requests if is_list(each)]
        assert [each.query["limit"] for each in pages] == ["100"] * len(pages)
        assert [each.is_continuation for each in pages] == [False, True, False, *[True] * 5]


async def test_retry_after_of_a_busy_server_is_respected(proxy: FaultProxy, server: Server) -> None:
    async with synced_cluster(proxy, server) as cluster:
        await cluster.change_while_disconnected()
        proxy.inject(BUSY, is_watch, times=2)
        began = cluster.clock.monotonic()
        proxy.reset_all()
        await cluster.agreement()
        assert cluster.clock.monotonic() - began >= 6
        assert len(proxy.requests) == 4
        assert not any(is_list(each) for each in proxy.requests)


@pytest.mark.parametrize("answer", [BROKEN, LATE], ids=["500", "504"])
async def test_burst_of_errors_is_retried_with_delays(
    proxy: FaultProxy, server: Server, answer: Answer
) -> None:
    async with synced_cluster(proxy, server, times=10) as cluster:
        await cluster.change_while_disconnected()
        proxy.inject(answer, is_any, times=7)
        began = cluster.clock.monotonic()
        proxy.reset_all()
        await cluster.agreement(within=30)
        assert proxy.faults_left == 0
        # A watch, and three times a streamed list and one in pages.
        assert cluster.clock.monotonic() - began >= 0.8 + 1.6 + 3.2 + 6.4


async def test_silent_open_connection_times_out(proxy: FaultProxy, server: Server) -> None:
    async with synced_cluster(proxy, server, times=60) as cluster:
        await cluster.change_while_disconnected()
        await cluster.agreement()
        await one_watches(proxy)


@pytest.mark.parametrize("fault", [Stall(after=100), Delay(3600)], ids=["half", "no-answer"])
async def test_a_first_list_that_stalls_is_read_in_another_way(
    proxy: FaultProxy, server: Server, fault: Fault
) -> None:
    await server.put("a", x="1")
    proxy.inject(fault, is_streamed_list)
    async with cluster_with(proxy, server, times=60) as cluster:
        await cluster.agreement()
        await one_watches(proxy)
        assert [is_list(each) for each in proxy.requests[:3]] == [False, True, False]


async def test_watch_that_ends_immediately_is_retried_with_backoff(
    proxy: FaultProxy, server: Server
) -> None:
    proxy.inject(Cut(after=0), is_watch, times=1000)
    async with cluster_with(proxy, server, times=40) as cluster:

        async def six() -> bool:
            return len(proxy.requests) >= 6

        await until(six, within=20, what="six requests")
        assert cluster.clock.monotonic() >= 0.8 + 1.6 + 3.2 + 6.4
        proxy.forget_faults()
        await cluster.agreement(within=20)


async def test_restarts_of_the_api_server_and_of_etcd_are_outlived(tmp_path: Path) -> None:
    async with running_plane() as plane, plane.client() as api:
        etcd, apiserver = plane.processes
        server = Server(api, await plane.create_namespace(api))

        async def put(name: str, x: str = "1") -> bool:
            try:
                await server.put(name, x=x)
            except (ApiError, UnreachableError):
                return False
            return True

        async def is_deleted(name: str) -> bool:
            try:
                await server.delete(name)
            except ApiError as error:
                return error.status == 404
            except UnreachableError:
                return False
            return True

        async with (
            running_proxy(plane, tmp_path) as proxy,
            synced_cluster(proxy, server) as cluster,
        ):
            for part in (apiserver, etcd):
                part.kill()
                part.start()
                await until(lambda: put("after"), within=60, what=f"{part.name} being back")
                changed = partial(put, "changed", part.name)
                await until(changed, within=60, what="a change of what was there")
                await until(lambda: is_deleted("after"), within=60, what="an end")
                await cluster.agreement(within=60)
            assert len(proxy.requests) < 60


FAULTS: list[Fault] = [
    *(Cut(after=size, reset=reset) for size in (0, 300, 5000) for reset in (False, True)),
    EXPIRED,
    BROKEN,
    LATE,
    BUSY,
    Stall(after=1000),
    Delay(0.1),
]


def most_are_kept(manifest: Manifest) -> bool:
    return int(manifest["data"]["n"]) % 3 > 0


READINGS = {
    "whole": EVERYTHING,
    "metadata": Reading(CONFIG_MAPS.only_metadata()),
    "kept": Reading(keep=most_are_kept),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
async def test_after_random_writes_and_faults_cache_and_server_agree(
    proxy: FaultProxy, server: Server, seed: int, reading: Reading
) -> None:
    rng = Random(seed)  # noqa: S311
    latest: dict[ObjectKey, Manifest] = {}
    async with cluster_with(proxy, server, times=60, reading=reading) as cluster:
        for n in range(120):
            name = f"c-{rng.randrange(8)}"
            if server.key(name) in latest and rng.random() < 0.4:
                await server.delete(name)
                del latest[server.key(name)]
            else:
                data = {"n": str(n), "x": "y" * rng.randrange(3000)}
                latest[server.key(name)] = await server.put(name, **data)
            match rng.random():
                case chance if chance < 0.1:
                    proxy.inject(rng.choice(FAULTS), is_any, times=rng.randrange(1, 3))
                case chance if chance < 0.18:
                    proxy.reset_all()
                case chance if chance < 0.2:
                    proxy.stall_all()
        proxy.forget_faults()
        # One that stalls is given up after two minutes, of the transport's clock and not of ours.
        proxy.reset_all(is_list)
        await cluster.agreement(within=30)
        assert cluster.witness.known.keys() == reading.of(latest).keys()
