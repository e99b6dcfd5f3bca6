"""How late a manager's event loop and its lease are, for tests that put a load on it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from math import inf
from pathlib import Path

from kftrainer.api.configuration import DEFAULT
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.waiting import until
from tests.support.managers import ManagerProcess
from tests.support.scraping import Scraper

ELECTION = DEFAULT.leader_election
LAG = "machinery_event_loop_lag_seconds"
EVERY = 0.1
WITHIN = 90.0
PROBED_EVERY = 0.005


class Responsiveness:
    """Measures one manager with leader election; `responsiveness` starts it."""

    def __init__(self, api: ApiClient, namespace: str, scraper: Scraper) -> None:
        self._api = api
        self._scraper = scraper
        self._lease = (
            f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{ELECTION.resource_name}"
        )
        self._renewals: list[datetime] = []
        self.holders: list[str] = []  # in their order

    async def observe(self) -> None:
        """Record the renewals of the lease until cancelled."""
        while True:
            lease = await self._api.get_or_none(self._lease)
            spec = (lease or {}).get("spec", {})
            if holder := spec.get("holderIdentity"):
                renewed = datetime.fromisoformat(spec["renewTime"])
                if [holder] != self.holders[-1:]:
                    self.holders.append(holder)
                if [renewed] != self._renewals[-1:]:
                    self._renewals.append(renewed)
            await asyncio.sleep(EVERY)

    async def wait_until_renewed(self, manager: ManagerProcess) -> None:
        """Wait until the lease has been renewed after now, or the manager has ended."""
        before = len(self._renewals)

        async def renewed() -> bool:
            return len(self._renewals) > before or not manager.is_alive()

        await until(renewed, within=WITHIN, what="the lease being renewed")

    @property
    def longest_without_renewal(self) -> timedelta:
        """The longest time between two renewals."""
        pairs = zip(self._renewals, self._renewals[1:], strict=False)
        return max((after - before for before, after in pairs), default=timedelta())

    async def longest_lag(self, manager: ManagerProcess) -> float:
        """The longest delay of the event loop so far, as a bound in seconds; inf if it ended."""
        before = await self._measured()

        async def measured() -> bool:
            return await self._measured() > before + 1 or not manager.is_alive()

        # A delay is counted when it is over: the second measurement from now began after now.
        await until(measured, within=WITHIN, what="the delay of the event loop being measured")
        buckets = await self._scraper.series(f"{LAG}_bucket", "le")
        at_most = {float(le): count for (le,), count in buckets.items()}
        most = max(at_most.values(), default=0)
        return min((le for le, count in at_most.items() if count == most), default=inf)

    async def _measured(self) -> float:
        return (await self._scraper.series(f"{LAG}_count")).get((), 0)


@asynccontextmanager
async def responsiveness(
    api: ApiClient, namespace: str, scraper: Scraper
) -> AsyncIterator[Responsiveness]:
    """Observe the lease in the namespace for the length of the block."""
    observed = Responsiveness(api, namespace, scraper)
    async with asyncio.TaskGroup() as tasks:
        observing = tasks.create_task(observed.observe())
        try:
            yield observed
        finally:
            observing.cancel()


class Probes:
    """Probes a manager, and measures the CPU time that it takes until it answers each probe.

    That is the time of the work that a probe has waited for. Other than the time that passes, it
    does not depend on how busy the machine is. `probes` starts it.
    """

    def __init__(self, manager: ManagerProcess) -> None:
        self._clock = _cpu_clock(_only_child(manager.pid))
        self._url = manager.health_url
        self._durations = [0.0]

    async def send(self) -> None:
        """Send probes until cancelled."""
        async with ApiClient(self._url, None) as health:
            while True:
                started = time.clock_gettime(self._clock)
                await health.fetch("GET", "/healthz")
                self._durations.append(time.clock_gettime(self._clock) - started)
                await asyncio.sleep(PROBED_EVERY)

    async def longest(self) -> float:
        """Return the longest of the probes that were sent since the last call, in seconds."""
        before = len(self._durations)

        async def answered() -> bool:
            return len(self._durations) > before + 1

        await until(answered, within=WITHIN, what="probes being answered")
        durations, self._durations = self._durations, [0.0]
        return max(durations)


@asynccontextmanager
async def probes(manager: ManagerProcess) -> AsyncIterator[Probes]:
    """Probe the manager for the length of the block."""
    sent = Probes(manager)
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(sent.send())
        try:
            yield sent
        finally:
            sending.cancel()


def _only_child(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def _cpu_clock(pid: int) -> int:
    """Return the clock of the CPU time of a process, as clock_getcpuclockid(3) does on Linux."""
    return (~pid << 3) | 2
