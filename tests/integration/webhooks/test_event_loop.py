"""A TrainJob whose review would take long, while the lease and other tenants need the manager."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.webhooks.cases import job_on, placed, torch
from tests.support.costly_objects import distinct_quantities, no_limits
from tests.support.responsiveness import ELECTION, probes, responsiveness
from tests.support.scraping import scraper
from tests.support.webhooks import (
    AdmissionClient,
    AdmissionOutcome,
    admission_client_for,
    admitting_manager,
)

pytestmark = pytest.mark.integration

COUNT = 38_200  # quantities, which are 818 KB
INVALID = 422
WITHIN = 60.0
RENEW_DEADLINE = ELECTION.renew_deadline.seconds
# Seconds of CPU that a probe may wait for longer than without the TrainJob.
LONGEST_WAIT = 0.1
# A busy machine delays everything by more than the operator's own work takes.
LONGEST_REVIEW = RENEW_DEADLINE / 2


class Tenant:
    """Sends TrainJobs that are small and valid, one after the other."""

    def __init__(self, user: AdmissionClient, namespace: str) -> None:
        self._user = user
        self._job = job_on("TrainingRuntime", namespace, namespace)
        self.outcomes: list[AdmissionOutcome] = []
        self.durations: list[float] = []  # seconds

    async def send(self) -> None:
        """Send until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            self.outcomes.append(await self._user.create(self._job, dry_run=True))
            self.durations.append(loop.time() - begun)

    async def wait_for_response(self) -> None:
        """Wait until a TrainJob that is sent after now was answered."""
        before = len(self.outcomes)

        async def answered() -> bool:
            return len(self.outcomes) > before + 1

        await until(answered, within=WITHIN, what="another tenant's TrainJobs being answered")


@asynccontextmanager
async def tenant(api: ApiClient, namespace: str) -> AsyncIterator[Tenant]:
    """Another tenant, who sends TrainJobs for the length of the block."""
    user = admission_client_for(api)
    runtime = placed(torch(), "TrainingRuntime", namespace, namespace)
    assert (await user.create(runtime)).accepted
    it = Tenant(user, namespace)
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(it.send())
        try:
            await it.wait_for_response()
            yield it
            await it.wait_for_response()
        finally:
            sending.cancel()


async def wait_until_reviewed(user: AdmissionClient, job: Object) -> AdmissionOutcome:
    """Send the TrainJob in a dry run until the API server serves the schema without limits."""

    async def reviewed() -> AdmissionOutcome | None:
        outcome = await user.create(job, dry_run=True)
        return None if outcome.status == INVALID else outcome

    return await until(reviewed, within=WITHIN, what="the TrainJob passing its schema")


async def test_review_of_many_quantities_delays_neither_the_lease_nor_other_tenants(
    plane: ControlPlane, api: ApiClient, namespace: str
) -> None:
    elected = ("--leader-elect", "--leader-election-namespace", namespace)
    hostile = job_on(
        "TrainingRuntime", namespace, namespace, name="hostile", trainer=distinct_quantities(COUNT)
    )
    async with scraper() as scraped:
        async with (
            no_limits(api),
            admitting_manager(plane, *elected, *scraped.flags) as manager,
            responsiveness(api, namespace, scraped) as observed,
            tenant(api, namespace) as other,
            probes(manager) as probed,
        ):
            await observed.wait_until_renewed(manager)
            before = await probed.longest()
            refused = await wait_until_reviewed(admission_client_for(api), hostile)
            after = await probed.longest()
            await observed.wait_until_renewed(manager)
            assert manager.is_alive()
        assert [each.message for each in other.outcomes if not each.accepted] == []
        assert after <= before + LONGEST_WAIT
        assert max(other.durations) < LONGEST_REVIEW
        assert len(observed.holders) == 1
        assert observed.longest_without_renewal.total_seconds() < RENEW_DEADLINE
        assert "may not have more than 3000 fields and items" in refused.denial
