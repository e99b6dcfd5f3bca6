"""A training whose JobSet is gone: it is never repeated if it may have ended."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    COMPLETED,
    FAILED,
    ROW,
    TEST_TIMEOUT,
    Team,
    conditions_of,
)
from tests.integration.controllers.test_writes import is_watch_of
from tests.support.fault_proxy import running_proxy
from tests.support.managers import ManagerProcess, manager_process

SUCCEEDED = {**ROW, "ready": 0, "active": 0, "succeeded": 1}
WAITING = {**ROW, "ready": 0, "active": 0, "suspended": 1}


@pytest.fixture
async def alone(plane: ControlPlane, team: Team) -> AsyncIterator[ManagerProcess]:
    """A manager of the test's own namespace, which the test stops and starts."""
    flags = ("--namespace", team.namespace, "--log-level", "debug")
    async with manager_process(plane.kubeconfig, *flags) as manager:
        await manager.wait_ready()
        yield manager


async def trained_without_manager(
    team: Team, manager: ManagerProcess, rows: Sequence[Object], **spec: object
) -> None:
    """Have the manager report these rows, and delete the JobSet while it does not run."""
    await team.create_runtime()
    await team.create_job(**spec)
    await team.wait_until_exists("JobSet")
    await team.set_jobset_status(rows=rows)
    await team.wait_for_jobs_status(*rows)
    await manager.stop()
    await team.set_jobset_status(COMPLETED, rows=[SUCCEEDED])
    await team.delete("JobSet")
    await team.wait_until_deleted("JobSet")
    manager.start()


@pytest.mark.parametrize(
    ("rows", "kind", "reason"),
    [
        ([SUCCEEDED], "Complete", "AllJobsCompleted"),
        ([ROW], "Failed", "OutcomeUnknown"),
    ],
    ids=["succeeded", "running"],
)
async def test_training_is_not_repeated_after_an_unobserved_deletion_of_its_jobset(
    rows: Sequence[Object], kind: str, reason: str, team: Team, alone: ManagerProcess
) -> None:
    await trained_without_manager(team, alone, rows)
    job = await team.wait_for_condition(kind, reason)
    assert job["status"]["jobsStatus"] == rows
    await team.touch(alone)
    assert await team.children() == []
    assert alone.log_entries("object_created")[1:] == []


async def test_training_is_not_repeated_if_only_the_uid_of_its_jobset_is_known(
    team: Team, alone: ManagerProcess
) -> None:
    """The manager stops after it has recorded the JobSet, and before the JobSet has rows."""
    await team.create_runtime()
    await team.create_job(suspend=True)
    await team.wait_for_condition("Suspended", "Suspended")
    await team.suspend(suspend=False)
    await team.wait_for_condition("Suspended", "Resumed", "False")
    await alone.stop()
    assert "jobsStatus" not in (await team.get("TrainJob"))["status"]
    await team.set_jobset_status(COMPLETED, rows=[SUCCEEDED])
    await team.delete("JobSet")
    await team.wait_until_deleted("JobSet")
    alone.start()
    await team.wait_for_condition("Failed", "OutcomeUnknown")
    assert await team.children() == []


async def test_training_that_never_ran_gets_its_jobset_again(
    team: Team, alone: ManagerProcess
) -> None:
    await trained_without_manager(team, alone, [WAITING], suspend=True)
    created = await team.wait_until_exists("JobSet")
    assert created["spec"]["suspend"] is True


async def test_running_jobset_that_is_deleted_under_the_manager_is_created_again(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    first = await team.wait_until_exists("JobSet")
    await team.set_jobset_status(rows=[ROW])
    await team.wait_for_jobs_status(ROW)
    await team.delete("JobSet")

    async def created_again() -> bool:
        found = await team.find("JobSet")
        return found is not None and found["metadata"]["uid"] != first["metadata"]["uid"]

    await until(created_again, within=TEST_TIMEOUT, what="another JobSet")
    assert conditions_of(await team.get("TrainJob")) == {}


@pytest.mark.parametrize(
    ("end", "kind"), [(COMPLETED, "Complete"), (FAILED, "Failed")], ids=["complete", "failed"]
)
async def test_end_is_taken_from_the_deleted_jobset(
    end: Object, kind: str, plane: ControlPlane, team: Team, tmp_path: Path
) -> None:
    """The JobSet ends and is deleted at once, as with `ttlSecondsAfterFinished: 0`."""
    await team.create_runtime()
    async with running_proxy(plane, tmp_path) as proxy:
        flags = ("--namespace", team.namespace, "--log-level", "debug")
        async with manager_process(proxy.kubeconfig, *flags) as manager:
            await manager.wait_ready()
            await team.create_job()
            await team.wait_until_exists("JobSet")
            await team.set_jobset_status(rows=[ROW])
            await team.wait_for_jobs_status(ROW)
            # The manager receives both events at the same time.
            proxy.stall_all(is_watch_of("jobsets"))
            await team.set_jobset_status(end, rows=[ROW])
            await team.delete("JobSet")
            await team.wait_until_deleted("JobSet")
            proxy.reset_all(is_watch_of("jobsets"))
            await team.wait_for_condition(kind, end["reason"])
            await team.touch(manager)
            assert await team.children() == []


LEADERS = """
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
leaderElection:
  leaderElect: true
  retryPeriod: 500ms
  resourceNamespace: {namespace}
"""


async def test_training_is_not_repeated_by_a_leader_whose_trainjob_cache_lags(
    plane: ControlPlane, team: Team, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(LEADERS.format(namespace=team.namespace))
    flags = ("--namespace", team.namespace, "--config", str(file), "--log-level", "debug")
    await team.create_runtime()
    await team.create_job()
    async with (
        running_proxy(plane, tmp_path) as proxy,
        manager_process(plane.kubeconfig, *flags) as first,
    ):
        await team.wait_until_exists("JobSet")
        async with manager_process(proxy.kubeconfig, *flags) as second:
            await second.wait_ready()
            proxy.stall_all(is_watch_of("trainjobs"))
            await team.set_jobset_status(COMPLETED, rows=[SUCCEEDED])
            ended = await team.wait_for_condition("Complete", COMPLETED["reason"])
            await team.delete("JobSet")
            await team.wait_until_deleted("JobSet")
            await first.stop()
            await until(lambda: _reconciled(second), within=TEST_TIMEOUT, what="the second leading")
            assert second.log_entries("object_created") == []
    assert (await team.get("TrainJob"))["status"] == ended["status"]
    assert await team.children() == []


async def test_jobset_is_not_suspended_by_a_leader_whose_trainjob_cache_lags(
    plane: ControlPlane, team: Team, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(LEADERS.format(namespace=team.namespace))
    flags = ("--namespace", team.namespace, "--config", str(file), "--log-level", "debug")
    await team.create_runtime()
    await team.create_job(suspend=True)
    async with (
        running_proxy(plane, tmp_path) as proxy,
        manager_process(plane.kubeconfig, *flags) as first,
    ):
        await team.wait_for_condition("Suspended", "Suspended")
        async with manager_process(proxy.kubeconfig, *flags) as second:
            await second.wait_ready()
            proxy.stall_all(is_watch_of("trainjobs"))
            await team.suspend(suspend=False)
            resumed = await team.wait_for_condition("Suspended", "Resumed", "False")
            await first.stop()
            await until(lambda: _reconciled(second), within=TEST_TIMEOUT, what="the second leading")
            assert second.log_entries("object_updated") == []
    assert (await team.get("TrainJob"))["status"] == resumed["status"]
    assert (await team.get("JobSet"))["spec"]["suspend"] is False


async def _reconciled(manager: ManagerProcess) -> bool:
    return any(
        each["controller"] == "trainjob_controller"
        for each in manager.log_entries("reconcile_succeeded")
    )
