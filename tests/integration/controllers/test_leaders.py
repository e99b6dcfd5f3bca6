"""Two managers, one leading: if it dies in the middle of a burst, the other continues."""

import asyncio
from pathlib import Path

import pytest

from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.burst import SETTLED_WITHIN, Burst, created_objects
from tests.integration.controllers.team import TEST_TIMEOUT, Team
from tests.support.managers import ManagerProcess, manager_process

SIZE = 60
FIRST_LATE = SIZE // 2  # the number of the first TrainJob that comes when its leader is dead
CONFIGURATION = """
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
leaderElection:
  leaderElect: true
  leaseDuration: 12s
  renewDeadline: 10s
  retryPeriod: 1s
  resourceNamespace: {namespace}
"""


async def wait_until_leading(manager: ManagerProcess) -> None:
    async def leads() -> bool:
        return bool(manager.log_entries("manager_started"))

    await until(leads, within=TEST_TIMEOUT, what="the manager leading", every=0.01)


@pytest.fixture
def flags(team: Team, tmp_path: Path) -> list[str]:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIGURATION.format(namespace=team.namespace))
    return ["--namespace", team.namespace, "--config", str(file)]


async def test_leader_killed_during_a_burst_is_replaced_without_duplicate_writes(
    team: Team, plane: ControlPlane, flags: list[str]
) -> None:
    burst = Burst(team, SIZE)
    async with (
        manager_process(plane.kubeconfig, *flags) as first,
        manager_process(plane.kubeconfig, *flags) as second,
    ):
        await first.wait_ready()
        await second.wait_ready()

        async def one_leads() -> ManagerProcess | None:
            leading = [each for each in (first, second) if each.log_entries("manager_started")]
            return leading[0] if leading else None

        leader = await until(one_leads, within=TEST_TIMEOUT, what="a leader")
        other = second if leader is first else first

        async def is_partly_done() -> bool:
            return len(created_objects(leader.log_entries())) > FIRST_LATE // 2

        await burst.create_runtimes()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(burst.create_jobs(range(FIRST_LATE)))
            await until(is_partly_done, within=SETTLED_WITHIN, what="some of it", every=0.003)
            assert created_objects(other.log_entries()) == []
            leader.kill()
        # Something is left to make, even if the leader was through with all that was there.
        await burst.create_jobs(range(FIRST_LATE, SIZE))
        await wait_until_leading(other)
        await burst.play_jobset_controller()
        await burst.wait_until_settled()
        created = created_objects(leader.log_entries()) + created_objects(other.log_entries())
        assert created_objects(other.log_entries())
        assert sorted(set(created)) == sorted(created)
        for each in (leader, other):
            assert each.log_entries("object_updated") == []
    await burst.check_each_was_created_once()
