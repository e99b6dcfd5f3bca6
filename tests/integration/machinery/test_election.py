"""Two managers that want to lead, each in a process, on a real API server and in real time.

Who led when is read from the server: what a manager writes are objects of its own, and their
resourceVersions are the order in which the server stored them, regardless of any clock.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.support.fault_proxy import (
    Answer,
    FaultProxy,
    ProxiedRequest,
    Stall,
    running_proxy,
)

ELECTOR = Path(__file__).with_name("elector.py")
TEST_TIMEOUT = 90.0  # more than it takes on a busy machine
# Longer than it takes to stop a process, and over when another may lead.
THROTTLED = Answer(429, "", {"Retry-After": "8"})


def now() -> float:
    """By the clock that all processes of a machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def is_write(request: ProxiedRequest) -> bool:
    return request.method == "POST" and request.path.endswith("/configmaps")


def is_of_the_lease(request: ProxiedRequest) -> bool:
    return "/leases" in request.path


@dataclass(frozen=True, slots=True, order=True)
class Write:
    """One thing that a leader did."""

    revision: int
    by: str
    at: float  # when its writer began with it


class Journal:
    """All that leaders have written, as the server has it."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def writes(self) -> list[Write]:
        """All of them, in the order in which the server took them."""
        found = await self._api.get(f"/api/v1/namespaces/{self._namespace}/configmaps")
        return sorted(_write(item) for item in found["items"] if "data" in item)

    async def first_of(self, name: str) -> Write:
        """Wait until this one has written."""
        return await self.first_after(0.0, name)

    async def first_after(self, moment: float, name: str) -> Write:
        """Wait until this one has written something that it began later than that."""

        async def found() -> Write | None:
            ours = (each for each in await self.writes() if each.by == name and each.at > moment)
            return next(ours, None)

        return await until(found, within=TEST_TIMEOUT, what=f"a write of {name}")

    async def overlap(self, old: str, new: str) -> list[str]:
        """What the old leader got through to the server after the new one had begun."""
        began = await self.first_of(new)
        return [
            f"a write begun {each.at - began.at:+.3f} s from its successor's first one"
            for each in await self.writes()
            if each.by == old and each > began
        ]


def _write(item: dict[str, Any]) -> Write:
    revision = int(item["metadata"]["resourceVersion"])
    return Write(revision, item["data"]["by"], float(item["data"]["at"]))


class Elector:
    """A process with a manager in it."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    def send(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    async def ended(self) -> int:
        async with asyncio.timeout(TEST_TIMEOUT):
            return await self._process.wait()

    def last_write_at(self) -> float:
        """The time of its last write, by the clock of `now`."""
        ago = time.clock_gettime(time.CLOCK_REALTIME) - self._log.stat().st_mtime
        return now() - ago


@asynccontextmanager
async def elector(
    kubeconfig: Path, namespace: str, lease_duration: float, log: Path
) -> AsyncIterator[Elector]:
    """An elector that has started to request the lease; its log's name is its identity."""
    arguments = (str(kubeconfig), namespace, log.stem, str(lease_duration))
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ELECTOR), *arguments), stdout=out, stderr=out
        )

    async def has_requested() -> bool:
        return "lease_waiting" in log.read_text()

    try:
        await until(has_requested, within=TEST_TIMEOUT, what=f"{log.stem} requesting the lease")
        yield Elector(process, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with running_proxy(control_plane, tmp_path / "proxy") as proxy:
        yield proxy


@pytest.fixture
async def journal(api: ApiClient, namespace: str) -> Journal:
    heartbeat = {"metadata": {"name": "beat", "namespace": namespace}}
    await api.create({"apiVersion": "v1", "kind": "ConfigMap", **heartbeat})
    return Journal(api, namespace)


@pytest.fixture
def lease_duration() -> float:
    """Soon over, for those who wait for that, and longer than a busy machine stands still."""
    return 12.0


Start = Callable[[str], Awaitable[Elector]]


@pytest.fixture
async def start(
    control_plane: ControlPlane,
    proxy: FaultProxy,
    namespace: str,
    lease_duration: float,
    tmp_path: Path,
) -> AsyncIterator[Start]:
    """Starts managers with the same lease, by their names; the first one's wire can be broken."""
    kubeconfigs = {"first": proxy.kubeconfig, "second": control_plane.kubeconfig}
    async with AsyncExitStack() as stack:

        async def start(name: str) -> Elector:
            log = tmp_path / f"{name}.log"
            return await stack.enter_async_context(
                elector(kubeconfigs[name], namespace, lease_duration, log)
            )

        yield start


@pytest.fixture
def lease_spec(api: ApiClient, namespace: str) -> Callable[[], Awaitable[dict[str, object]]]:
    async def spec() -> dict[str, object]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/lock"
        found: dict[str, object] = (await api.get(path))["spec"]
        return found

    return spec


async def stop_while_a_write_waits(leader: Elector, proxy: FaultProxy) -> None:
    """Stop a leader whose write was rejected with a delay and is due when it continues.

    At any other moment it depends on timing: a leader that has checked its lease and is stopped
    before the bytes are sent, sends them when it continues.
    """
    proxy.inject(THROTTLED, is_write)

    async def is_rejected() -> bool:
        return proxy.faults_left == 0

    await until(is_rejected, within=TEST_TIMEOUT, what="a write being turned away")
    leader.send(signal.SIGSTOP)


@pytest.mark.parametrize("sees_the_lease", [False, True], ids=["deaf", "hearing"])
async def test_a_leader_that_was_stopped_does_not_write_beside_its_successor(
    start: Start,
    journal: Journal,
    proxy: FaultProxy,
    lease_spec: Callable[[], Awaitable[dict[str, object]]],
    sees_the_lease: bool,
) -> None:
    first = await start("first")
    await journal.first_of("first")
    await start("second")
    await stop_while_a_write_waits(first, proxy)
    await journal.first_of("second")
    if not sees_the_lease:
        # No response reports what has happened: the clock must show it. Its writes would
        # get through all the same.
        proxy.inject(Stall(), is_of_the_lease, times=1000)
    first.send(signal.SIGCONT)
    assert await first.ended() == 1
    await journal.first_after(now(), "second")
    assert await journal.overlap("first", "second") == []
    assert (await lease_spec())["holderIdentity"] == "second"
    assert (await lease_spec())["leaseTransitions"] == 1


async def test_leader_with_stalled_loop_exits_before_another_leads(
    start: Start, journal: Journal
) -> None:
    first = await start("first")
    await journal.first_of("first")
    await start("second")
    first.send(signal.SIGUSR1)
    assert await first.ended() == 1
    # Its own last write: the test may see its end after the next leader starts.
    assert first.last_write_at() < (await journal.first_of("second")).at
    assert await journal.overlap("first", "second") == []


@pytest.mark.parametrize("lease_duration", [60.0])
async def test_clean_exit_releases_the_lease_before_it_expires(
    start: Start,
    journal: Journal,
    lease_spec: Callable[[], Awaitable[dict[str, object]]],
    lease_duration: float,
) -> None:
    first = await start("first")
    await journal.first_of("first")
    await start("second")
    first.send(signal.SIGTERM)
    assert await first.ended() == 0
    stopped_at = now()
    assert (await lease_spec())["holderIdentity"] in ("", "second")
    assert (await journal.first_of("second")).at - stopped_at < lease_duration
    assert await journal.overlap("first", "second") == []
