"""Two processes that want to lead, on a real API server and in real time."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.machinery.clock import SystemClock
from tests.support.fault_proxy import FaultProxy, Stall, running_proxy

ELECTOR = Path(__file__).with_name("elector.py")
LEASE_DURATION = 3.0
ANY_MOMENT = 20.0  # more than it takes on a busy machine


class Elector:
    """A process that ticks while it leads."""

    def __init__(self, process: asyncio.subprocess.Process, file: Path) -> None:
        self.process = process
        self._file = file

    @property
    def ticks(self) -> list[float]:
        """When it led, by the clock that all processes of a machine share."""
        return [float(line) for line in self._file.read_text().splitlines()]

    async def leads(self) -> None:
        async def ticks() -> bool:
            return bool(self._file.exists() and self._file.read_text())

        await until(ticks, within=ANY_MOMENT, what="leading")

    async def ended(self) -> int:
        async with asyncio.timeout(ANY_MOMENT):
            return await self.process.wait()


@asynccontextmanager
async def elector(kubeconfig: Path, namespace: str, file: Path) -> AsyncIterator[Elector]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ELECTOR), str(kubeconfig), namespace, file.stem, str(file))
    )
    try:
        yield Elector(process, file)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
async def proxy(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with running_proxy(control_plane, tmp_path / "proxy") as proxy:
        yield proxy


Start = Callable[[str], Awaitable[Elector]]


@pytest.fixture
async def start(
    control_plane: ControlPlane, proxy: FaultProxy, namespace: str, tmp_path: Path
) -> AsyncIterator[Start]:
    """Starts electors of the same lease, by their names; the first one's wire can be broken."""
    kubeconfigs = {"first": proxy.kubeconfig, "second": control_plane.kubeconfig}
    async with AsyncExitStack() as stack:

        async def start(name: str) -> Elector:
            file = tmp_path / f"{name}.ticks"
            return await stack.enter_async_context(elector(kubeconfigs[name], namespace, file))

        yield start


@pytest.fixture
def lease_spec(api: ApiClient, namespace: str) -> Callable[[], Awaitable[dict[str, object]]]:
    async def spec() -> dict[str, object]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/lock"
        found: dict[str, object] = (await api.get(path))["spec"]
        return found

    return spec


async def test_a_leader_that_was_stopped_does_not_lead_beside_its_successor(
    start: Start, proxy: FaultProxy, lease_spec: Callable[[], Awaitable[dict[str, object]]]
) -> None:
    first = await start("first")
    await first.leads()
    second = await start("second")
    first.process.send_signal(signal.SIGSTOP)
    stopped_at = SystemClock().monotonic()
    await second.leads()
    # No answer will tell it what has happened: it must know from the clock.
    proxy.stall_all()
    proxy.inject(Stall(), lambda _request: True, times=1000)
    first.process.send_signal(signal.SIGCONT)
    assert await first.ended() == 1
    taken_over_at = second.ticks[0]
    assert taken_over_at > stopped_at
    # It may have been stopped between asking whether it leads and acting on it: once.
    late = [tick for tick in first.ticks if tick > taken_over_at]
    assert len(late) <= 1, f"led for {late[-1] - late[0]:.3f} s beside its successor"
    assert (await lease_spec())["holderIdentity"] == "second"
    assert (await lease_spec())["leaseTransitions"] == 1


async def test_a_leader_whose_loop_stalls_is_gone_before_another_leads(start: Start) -> None:
    first = await start("first")
    await first.leads()
    second = await start("second")
    first.process.send_signal(signal.SIGUSR1)
    assert await first.ended() == 1
    gone_at = SystemClock().monotonic()
    await second.leads()
    assert second.ticks[0] > gone_at


async def test_a_clean_exit_lets_another_lead_before_the_lease_runs_out(
    start: Start, lease_spec: Callable[[], Awaitable[dict[str, object]]]
) -> None:
    first = await start("first")
    await first.leads()
    second = await start("second")
    first.process.send_signal(signal.SIGTERM)
    assert await first.ended() == 0
    left_at = SystemClock().monotonic()
    assert (await lease_spec())["holderIdentity"] in ("", "second")
    await second.leads()
    assert second.ticks[0] - left_at < LEASE_DURATION
    assert not [tick for tick in first.ticks if tick > second.ticks[0]]
