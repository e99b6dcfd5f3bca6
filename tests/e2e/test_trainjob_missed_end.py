"""TrainJobs whose JobSet disappeared while no manager was running."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.support.kubelet import end_pods
from tests.support.managers import ManagerProcess
from tests.support.objects import runtime
from tests.support.trainjobs import (
    COMPLETES_LATE,
    END_TO_END_TIMEOUT,
    ClusterTeam,
    created_jobset_count,
    one_try_runtime,
    pods_with,
    ready_manager,
    summary,
)

LASTING: Mapping[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)}
SUCCEEDED = {"name": "node", "ready": 0, "succeeded": 1, "failed": 0, "active": 0, "suspended": 0}
# Running TrainJobs and their runtimes; what happens to each without a manager is in
# `without_manager`.
RUNNING = {
    "expired": "brief",  # it completed, and JobSet's TTL passed
    "expired-failed": "brief",  # it failed, and JobSet's TTL passed
    "succeeded": "brief",  # its status already shows that all its jobs succeeded
    "deleted": "lasting",  # a user deleted its JobSet, which has no TTL
    "watched": "lasting",  # nothing
}


async def create_jobs(team: ClusterTeam, manager: ManagerProcess) -> None:
    """Create the TrainJobs, and wait until the status of each shows its running JobSet."""
    await team.create(one_try_runtime("brief", ttlSecondsAfterFinished=1))
    await team.create(runtime("lasting"))
    for name, runtime_name in RUNNING.items():
        await team.create_job(name, runtime_name, **LASTING)
    await team.create_job("suspended", "brief", suspend=True, **LASTING)
    for name in RUNNING:
        await team.wait_until_running_is_observed(name, 1, manager)
    await team.wait_for_jobs_status({**SUCCEEDED, "succeeded": 0, "suspended": 1}, name="suspended")
    await team.wait_for_condition("Suspended", "Suspended", name="suspended")


async def without_manager(team: ClusterTeam) -> None:
    """Let each JobSet disappear, and create one more TrainJob."""
    await team.delete("JobSet", "deleted")
    await team.delete("JobSet", "suspended")
    await team.patch("TrainJob", "succeeded", {"status": {"jobsStatus": [SUCCEEDED]}}, "/status")
    await end_pods(team.api, await team.pods("expired"), "Succeeded")
    await end_pods(team.api, await team.pods("succeeded"), "Succeeded")
    await end_pods(team.api, await team.pods("expired-failed"), "Failed")
    await team.create_job("fresh", "brief", **LASTING)
    for name in ("expired", "expired-failed", "succeeded", "deleted", "suspended"):
        await team.wait_until_deleted("JobSet", name)
        await team.wait_until_children_deleted(name, ["Job", "Pod"])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module, restarted after the JobSets have disappeared."""
    async with ready_manager(full_control_plane) as manager:
        yield manager


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def namespace_after_restart(full_control_plane: ControlPlane, manager: ManagerProcess) -> str:
    """Where all the TrainJobs are."""
    async with full_control_plane.client() as api:
        team = ClusterTeam(api, await full_control_plane.create_namespace(api))
        await create_jobs(team, manager)
        await manager.stop()
        await without_manager(team)
        manager.start()
        await manager.wait_ready()
    return team.namespace


@pytest.fixture
def team(api: ApiClient, namespace_after_restart: str) -> ClusterTeam:
    """The namespace, for one test."""
    return ClusterTeam(api, namespace_after_restart)


async def wait_until_finished(team: ClusterTeam, manager: ManagerProcess, name: str) -> Object:
    """Wait until the TrainJob is Complete or Failed, with no second JobSet; the TrainJob."""

    async def finished() -> Object | None:
        assert created_jobset_count(manager, team.namespace, name) == 1, f"{name} was started again"
        job = await team.get("TrainJob", name)
        return job if {"Complete", "Failed"} & summary(job).keys() else None

    return await until(finished, within=END_TO_END_TIMEOUT, what=f"{name} being finished")


async def check_not_trained_again(team: ClusterTeam, manager: ManagerProcess, name: str) -> None:
    """Fail if the TrainJob was started once more, also after another reconcile."""
    await team.touch(manager, name)
    assert await team.find("JobSet", name) is None
    assert created_jobset_count(manager, team.namespace, name) == 1
    assert await team.pods(name) == []


@pytest.mark.parametrize("name", ["expired", "expired-failed", "deleted"])
async def test_deleted_jobset_of_unknown_outcome_is_not_created_again(
    team: ClusterTeam, manager: ManagerProcess, name: str
) -> None:
    """Row 4: the status shows running jobs, and the JobSet may have ended either way."""
    job = await wait_until_finished(team, manager, name)
    assert summary(job) == {"Failed": "True/OutcomeUnknown"}
    await check_not_trained_again(team, manager, name)


async def test_expired_jobset_whose_jobs_succeeded_completes_its_trainjob(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Row 4: the status shows that every job succeeded, so the outcome is known."""
    job = await wait_until_finished(team, manager, "succeeded")
    assert summary(job) == {"Complete": "True/AllJobsCompleted"}
    await check_not_trained_again(team, manager, "succeeded")


async def test_jobset_deleted_by_a_user_under_a_running_manager_is_created_again(
    team: ClusterTeam,
) -> None:
    """As in the original: the manager watched the deletion, and the training had not ended."""
    before = await team.get("JobSet", "watched")
    await team.delete("JobSet", "watched")

    async def created_again() -> bool:
        found = await team.find("JobSet", "watched")
        return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

    await until(created_again, within=END_TO_END_TIMEOUT, what="another JobSet")
    await team.wait_until_running("watched", 1)
    assert summary(await team.get("TrainJob", "watched")) == {}


async def test_jobset_deleted_while_suspended_is_created_again(team: ClusterTeam) -> None:
    """A suspended JobSet cannot have ended."""
    job_set = await team.wait_until_exists("JobSet", "suspended")
    assert job_set["spec"]["suspend"] is True
    assert summary(await team.get("TrainJob", "suspended")) == {"Suspended": "True/Suspended"}
    await team.suspend(suspend=False, name="suspended")
    await team.wait_until_running("suspended", 1)


async def test_trainjob_created_without_manager_gets_its_jobset(team: ClusterTeam) -> None:
    await team.wait_until_running("fresh", 1)
    assert summary(await team.get("TrainJob", "fresh")) == {}
