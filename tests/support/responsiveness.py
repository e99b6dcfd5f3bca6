"""How late a manager's event loop and its lease are, for tests that put a load on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from math import inf

from kftrainer.api.configuration import DEFAULT
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.waiting import until
from tests.support.managers import ManagerProcess
from tests.support.scraping import Scraper

ELECTION = DEFAULT.leader_election
LAG = "machinery_event_loop_lag_seconds"
EVERY = 0.1
WITHIN = 90.0


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

    async def until_renewed(self, manager: ManagerProcess) -> None:
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
