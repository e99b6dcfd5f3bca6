"""TrainJobs beyond the limits, stored before there were any, while a manager starts and runs."""

from typing import Any

import pytest

from kftrainer.api.limits import REPLICATED_JOBS
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import JOB, TEST_TIMEOUT, Team, conditions_of
from tests.support.costly_objects import distinct_quantities, no_limits
from tests.support.managers import manager_process
from tests.support.responsiveness import ELECTION, responsiveness
from tests.support.scraping import scraper

HOSTILE = ("hostile-1", "hostile-2")
GANG = "gang"  # a runtime whose PodGroups sum up resources
COUNT = 11_000  # quantities, which are 240 KB
RENEW_DEADLINE = ELECTION.renew_deadline.seconds
# A busy machine delays everything by more than the operator's own work takes.
LONGEST_LAG = RENEW_DEADLINE / 4


def quantities(first: int, count: int) -> list[Object]:
    """Overrides with volumes of distinct sizes, each of which is costly to write out."""
    return [
        {
            "targetJobs": [{"name": "node"}],
            "spec": {
                "volumes": [
                    {"name": f"v{n}", "emptyDir": {"sizeLimit": f"{n + 1}e991"}}
                    for n in range(start, min(start + 100, first + count))
                ]
            },
        }
        for start in range(first, first + count, 100)
    ]


async def store(team: Team, name: str, **spec: Any) -> Object:
    """Create a TrainJob as soon as the API server accepts it."""

    async def created() -> Object | None:
        try:
            return await team.create_job(name, **spec)
        except ApiError:  # the API server serves the new schema a moment later
            return None

    return await until(created, within=TEST_TIMEOUT, what=f"{name} being stored")


@pytest.fixture
async def hostile(team: Team) -> None:
    """Two stored TrainJobs of 240 KB, each with thousands of quantities."""
    await team.create_runtime()
    async with no_limits(team.api):
        for index, name in enumerate(HOSTILE):
            await store(team, name, podTemplateOverrides=quantities(index * 10_000, 4_000))


async def test_stored_trainjobs_beyond_the_limits_are_blocked_and_do_not_delay_others(
    plane: ControlPlane, team: Team, hostile: None
) -> None:
    async with manager_process(
        plane.kubeconfig, "--namespace", team.namespace, "--log-level", "debug"
    ) as manager:
        await manager.wait_ready()
        await team.create_job()
        await team.wait_until_exists("JobSet")
        for name in HOSTILE:
            job = await team.wait_for_condition("Blocked", "TrainJobTooLarge", name=name)
            message = conditions_of(job)["Blocked"]["message"]
            assert "may not have more than 3000 fields and items" in message
        assert await team.children() == [f"JobSet/{JOB}"]
        # Suspending and labelling them stays possible, and costs no more.
        await team.suspend(suspend=True, name=HOSTILE[0])
        await team.touch(manager, HOSTILE[0])
        manager.check_no_reconcile_raised()


async def test_trainjob_at_the_limits_is_suspended_and_resumed_with_a_long_status(
    plane: ControlPlane, team: Team
) -> None:
    """The rows of the status do not count: it had 2,500 fields and items when it was admitted."""
    await team.create_runtime()
    large = {
        "env": [{"name": f"A{n}", "value": "b"} for n in range(512)],
        "args": ["a"] * 1_000,
    }
    numbers = dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), 0)
    rows = [{"name": f"job-{n}", **numbers} for n in range(REPLICATED_JOBS)]

    async def is_suspended() -> bool:
        return bool((await team.get("JobSet"))["spec"].get("suspend"))

    async def is_resumed() -> bool:
        return not await is_suspended()

    async with manager_process(
        plane.kubeconfig, "--namespace", team.namespace, "--log-level", "debug"
    ) as manager:
        await manager.wait_ready()
        await team.create_job(trainer=large)
        await team.wait_until_exists("JobSet")
        await team.set_jobset_status(rows=rows)
        await team.wait_for_jobs_status(*rows)
        await team.suspend(suspend=True)
        await until(is_suspended, within=TEST_TIMEOUT, what="the JobSet being suspended")
        await team.suspend(suspend=False)
        await until(is_resumed, within=TEST_TIMEOUT, what="the JobSet being resumed")
        assert "Blocked" not in conditions_of(await team.get("TrainJob"))


async def test_stored_trainjobs_with_many_quantities_do_not_delay_the_start_of_a_manager(
    plane: ControlPlane, team: Team
) -> None:
    await team.create_runtime(GANG)
    async with no_limits(team.api):
        for index, name in enumerate(HOSTILE):
            costly = distinct_quantities(COUNT, first=1 + index * COUNT)
            await store(team, name, runtime=GANG, trainer=costly)
    await team.create_job(runtime=GANG)
    async with scraper() as scraped:
        flags = (
            *("--leader-elect", "--leader-election-namespace", team.namespace),
            *("--namespace", team.namespace, "--log-level", "debug", *scraped.flags),
        )
        async with (
            manager_process(plane.kubeconfig, *flags) as manager,
            responsiveness(team.api, team.namespace, scraped) as observed,
        ):
            await manager.wait_ready()
            await team.wait_until_exists("JobSet")
            for name in HOSTILE:
                await team.wait_until_reconciled(manager, name, 0)
            await observed.wait_until_renewed(manager)
            assert await observed.longest_lag(manager) <= LONGEST_LAG
            for name in HOSTILE:
                await team.wait_for_condition("Blocked", "TrainJobTooLarge", name=name)
            assert manager.is_alive()
    assert len(observed.holders) == 1
    assert observed.longest_without_renewal.total_seconds() < RENEW_DEADLINE
