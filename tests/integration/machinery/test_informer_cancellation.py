"""An informer that is cancelled at each of its awaits, behind a proxy and on a real API server."""

import ast
import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.cache import delta_queue, informer, list_watcher, source
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.manager import time_slices
from tests.support.cancellation import Canceller, Wait, watched_tasks
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.fault_proxy import FaultProxy, running_proxy, status_answer
from tests.support.informers import CONFIG_MAPS, RecordingHandler, Server, agreement, running

# All that an informer is made of and that can wait; below is the wire.
MODULES = (informer, list_watcher, delta_queue, source, time_slices)
EXPIRED = status_answer(410, "Expired")
STREAMS_NO_LISTS = status_answer(422, "Invalid")
TEST_TIMEOUT = 30.0
LONGEST_DELAY = 60.0  # who sleeps longer guards a watch
SILENT_SECONDS = 121.0


class PausableClock(FakeClock):
    """Work seems to take long by it: who works lets others run at each occasion."""

    def __init__(self) -> None:
        super().__init__()
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.paused = 0  # how many have let others run, and have to wait now

    def monotonic(self) -> float:
        self._time += 0.006
        return self._time

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if not seconds:
            self.paused += 1
            await self.resumed.wait()
            self.paused -= 1


async def happens(condition: Callable[[], bool], what: str) -> None:
    async def check() -> bool:
        return condition()

    await until(check, within=TEST_TIMEOUT, what=what, every=0.001)


class Environment:
    """A client behind a proxy, whose answers are counted."""

    def __init__(self, server: Server, proxy: FaultProxy) -> None:
        self.server = server
        self.proxy = proxy
        self._answers = 0
        proxy.forget_faults()
        proxy.requests.clear()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        connection = await load_connection(self.proxy.kubeconfig)
        transport = HttpTransport(connection, user_agent="tests", on_response=self._answered)
        async with transport:
            yield Client(transport)

    def _answered(self, *_: object) -> None:
        self._answers += 1

    @property
    def is_watched(self) -> bool:
        """Whether the answer to the last request, which is a watch, has begun to come."""
        requests = self.proxy.requests
        return bool(requests) and requests[-1].is_watch and self._answers == len(requests)


class Scenario:
    """All that can happen to an informer, in one story."""

    def __init__(self, client: Client, environment: Environment, number: int) -> None:
        self._environment = environment
        self._data = {"play": str(number)}  # what an earlier one left behind is none
        self._clock = PausableClock()
        self.informer = Informer(
            client, CONFIG_MAPS, clock=self._clock, namespace=environment.server.namespace
        )
        self.informer.add_handler(self._add_second_handler)
        self._is_alone = True

    def _add_second_handler(self, change: ObjectEvent[Manifest]) -> None:
        """Add a handler while the objects of a list are being delivered."""
        if self._is_alone:
            self._is_alone = False
            self.informer.add_handler(RecordingHandler())

    @property
    def _has_latest_data(self) -> bool:
        latest = self.informer.get(self._environment.server.key("news"))
        return latest is not None and latest["data"] == self._data

    async def perform(self) -> None:
        """From the first list to a watch that is thought dead."""
        await self.informer.wait_synced()
        await self._update_during_delivery()
        await self._environment.server.delete("news")
        await happens(lambda: not self._has_latest_data, "the delete being received")
        await self._expiry()
        await self._stay_silent()

    async def _update_during_delivery(self) -> None:
        await at_rest()
        self._clock.resumed.clear()
        self.informer.add_handler(RecordingHandler())
        await happens(lambda: self._clock.paused == 1, "the first object being delivered")
        await self._environment.server.put("news", **self._data)
        await happens(lambda: self._clock.paused == 2, "the news being read")
        await at_rest()
        self._clock.resumed.set()
        await happens(lambda: self._has_latest_data, "the update being received")

    async def _expiry(self) -> None:
        """The watch is cut and cannot be resumed; the new list has to be read in pages."""
        proxy = self._environment.proxy
        proxy.inject(EXPIRED, lambda request: request.is_watch)
        proxy.inject(STREAMS_NO_LISTS, lambda request: request.is_watch)
        before = len(proxy.requests)
        proxy.reset_all()

        async def is_over() -> bool:
            now = self._clock.monotonic()
            delays = [at - now for at in self._clock.sleeping if at < now + LONGEST_DELAY]
            if delays:  # no further than that, or a request under way would be given up
                await self._clock.advance(min(delays))
            is_listed = any(each.is_list for each in proxy.requests[before:])
            return is_listed and self._environment.is_watched

        await until(is_over, within=TEST_TIMEOUT, what="another watch", every=0.001)

    async def _stay_silent(self) -> None:
        """Nothing arrives, so the informer reads the server's version and watches again."""
        await at_rest()
        before = len(self._environment.proxy.requests)
        await self._clock.advance(SILENT_SECONDS)

        def is_over() -> bool:
            requests = self._environment.proxy.requests[before:]
            return (
                any("fieldSelector" in each.query for each in requests)
                and self._environment.is_watched
            )

        await happens(is_over, "a watch after a version")


async def perform(scenario: Scenario, canceller: Canceller) -> bool:
    """Run the informer through the play; whether it was cancelled, which ends both."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        work = group.create_task(canceller.run(run_and_wait(scenario.informer, stop)))
        scenario_task = group.create_task(scenario.perform())
        cancelling = group.create_task(canceller.has_cancelled.wait())
        await asyncio.wait((scenario_task, cancelling), return_when=asyncio.FIRST_COMPLETED)
        if scenario_task.done():
            stop.set()
        scenario_task.cancel()
        cancelling.cancel()
        await asyncio.wait((work,), timeout=TEST_TIMEOUT)
        runs_on = [task.get_name() for task in canceller.still_running]
        await canceller.end_by_force()
    assert runs_on == [], f"cancelled at {canceller.cancelled_at}"
    return work.cancelled()


async def run_and_wait(informer: Informer[Manifest], stop: asyncio.Event) -> None:
    """Run it, and have a task wait for it."""
    async with asyncio.TaskGroup() as group:
        group.create_task(informer.run(lambda: None, stop))
        group.create_task(informer.wait_synced())
        group.create_task(informer.wait_settled())


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with running_proxy(control_plane, tmp_path) as proxy:
        yield proxy


@pytest.fixture
def server(api: ApiClient, namespace: str) -> Server:
    return Server(api, namespace)


@pytest.fixture
async def collect_errors() -> list[dict[str, Any]]:
    """Errors of tasks that were never retrieved, as reported to the event loop."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: errors.append(about))
    return errors


async def test_a_canceller_strikes_wherever_a_task_or_one_of_its_tasks_waits() -> None:
    interrupted: set[str] = set()

    async def wait_two_times(name: str) -> None:
        for n in range(2):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                interrupted.add(f"{name} {n}")
                raise

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_two_times("child"))
            await wait_two_times("parent")

    tried: set[Wait] = set()
    with watched_tasks():
        while True:
            canceller = Canceller(tried)
            async with asyncio.TaskGroup() as group:
                group.create_task(canceller.run(work()))
            if canceller.cancelled_at is None:
                break
            tried.add(canceller.cancelled_at)
    assert interrupted == {"parent 0", "parent 1", "child 0", "child 1"}
    assert len(tried) == 5, "the parent waits for its child besides"


async def a_fresh_start(client: Client, server: Server) -> None:
    """Another informer on the same connections comes to hold what the server holds."""
    witness = RecordingHandler()
    fresh = Informer(client, CONFIG_MAPS, clock=FakeClock(), namespace=server.namespace)
    fresh.add_handler(witness)
    async with running(fresh), asyncio.timeout(TEST_TIMEOUT):
        await fresh.wait_synced()
        await agreement(fresh, server, witness)


def waits_in(module: ModuleType) -> Iterator[tuple[str, range]]:
    """The lines of each place of the module's text where it can wait."""
    file = inspect.getfile(module)
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.Await):
            yield file, range(node.lineno, (node.end_lineno or node.lineno) + 1)
        elif isinstance(node, ast.AsyncWith | ast.AsyncFor):
            yield file, range(node.lineno, node.body[0].lineno)


def unreached_waits(tried: Set[Wait]) -> list[str]:
    """The places of the informer's text that none of these waits were in."""
    known = {place for wait in tried for place in wait.places}
    return [
        f"{file}:{lines.start}"
        for module in MODULES
        for file, lines in waits_in(module)
        if known.isdisjoint((file, line) for line in lines)
    ]


async def test_cancellation_at_any_await_leaves_no_tasks_and_another_can_start(
    proxy: FaultProxy, server: Server, collect_errors: list[dict[str, Any]]
) -> None:
    for name in ("a", "b", "c"):
        await server.put(name)
    tried: set[Wait] = set()
    while True:
        environment, canceller = Environment(server, proxy), Canceller(tried)
        async with environment.connected() as client:
            with watched_tasks():
                was_cancelled = await perform(Scenario(client, environment, len(tried)), canceller)
            wait = canceller.cancelled_at
            assert was_cancelled == (wait is not None), f"{wait}"
            # Before the client closes what it has: the informer is to leave no watch to it.
            await happens(lambda: not proxy.open_connections, f"hanging up after {wait}")
            proxy.forget_faults()
            await a_fresh_start(client, server)
        if wait is None:
            break
        tried.add(wait)
    assert collect_errors == []
    assert unreached_waits(tried) == []
