"""A manager that is killed in the middle of a burst, again and again, ends where any other does."""

import asyncio
from random import Random

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.burst import SETTLED_WITHIN, Burst, created_objects
from tests.integration.controllers.team import Team
from tests.support.managers import ManagerProcess, manager_process

SIZE = 200
OBJECTS = SIZE // 2 + SIZE // 2 * 3  # a JobSet each, with MPI a Secret and a ConfigMap besides
KILLS = 3


async def wait_until_created(manager: ManagerProcess, number: int) -> None:
    """Wait until this number of objects was created, by any number of managers."""

    async def are_created() -> bool:
        return len(created_objects(manager.log_entries())) >= number

    await until(
        are_created, within=SETTLED_WITHIN, what=f"{number} objects being made", every=0.003
    )


async def run(plane: ControlPlane, team: Team, kills: list[int]) -> Object:
    """The outcome of a burst in which the manager is killed after creating `number` objects."""
    burst = Burst(team, SIZE)
    async with manager_process(plane.kubeconfig, "--namespace", team.namespace) as manager:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(burst.create())
            tasks.create_task(burst.play_jobset_controller())
            for number in kills:
                await wait_until_created(manager, number)
                manager.kill()
                manager.start()
        await burst.wait_until_settled()
    await burst.check_each_was_created_once()
    return await burst.outcome()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run_without_kill(plane: ControlPlane) -> Object:
    """The outcome of a burst in which no manager is killed."""
    async with plane.client() as api:
        return await run(plane, Team(api, await plane.create_namespace(api)), [])


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_end_is_the_same_as_without_the_kills(
    seed: int, run_without_kill: Object, team: Team, plane: ControlPlane
) -> None:
    kills = sorted(Random(seed).sample(range(OBJECTS - OBJECTS // 10), KILLS))  # noqa: S311
    outcome = await run(plane, team, kills)
    assert len(outcome) == 2 + SIZE + OBJECTS
    assert outcome == run_without_kill
