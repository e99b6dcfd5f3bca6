"""Finished is finished, what is being deleted is let go, and what is others' is left to them."""

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    COMPLETED,
    FAILED,
    JOB,
    ROW,
    TEST_TIMEOUT,
    Team,
    reconciles,
)
from tests.support.managers import ManagerProcess

HOLD = "example.org/hold"


async def finish(team: Team, end: Object, kind: str) -> Object:
    """Let a TrainJob come to its end; the TrainJob."""
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    await team.set_jobset_status(end, rows=[ROW])
    return await team.wait_for_condition(kind, end["reason"])


@pytest.mark.parametrize(
    ("end", "kind"), [(COMPLETED, "Complete"), (FAILED, "Failed")], ids=["complete", "failed"]
)
async def test_finished_job_does_not_run_again_when_its_jobset_is_deleted(
    end: Object, kind: str, team: Team, manager: ManagerProcess
) -> None:
    """Defects D2, D3 and D4."""
    ended = await finish(team, end, kind)
    before = reconciles(manager, team.namespace)
    await team.delete("JobSet")
    await team.wait_until_reconciled(manager, JOB, before)
    await team.touch(manager)
    await team.patch("TrainJob", JOB, {"spec": {"trainer": {"image": "another"}}})
    await team.suspend(suspend=True)
    await team.touch(manager)
    assert await team.children() == []
    assert (await team.get("TrainJob"))["status"] == ended["status"]


async def test_finished_job_keeps_its_conditions_when_its_jobset_changes(
    team: Team, manager: ManagerProcess
) -> None:
    ended = await finish(team, COMPLETED, "Complete")
    row = {**ROW, "active": 0, "succeeded": 1}
    await team.set_jobset_status(FAILED, rows=[row])
    job = await team.wait_for_jobs_status(row)
    assert job["status"]["conditions"] == ended["status"]["conditions"]


@pytest.mark.parametrize("way", ["finalizer", "foreground"])
async def test_nothing_is_created_for_a_job_that_is_being_deleted(
    way: str, team: Team, manager: ManagerProcess
) -> None:
    """Defect D5."""
    await team.create_runtime("mpi")
    await team.create_job(runtime="mpi", suspend=True)
    await team.wait_until_exists("JobSet")
    await team.wait_for_condition("Suspended", "Suspended")
    if way == "finalizer":
        await team.patch("TrainJob", JOB, {"metadata": {"finalizers": [HOLD]}})
        await team.delete("TrainJob")
    else:
        await team.delete("TrainJob", policy="Foreground")
    await team.touch(manager)
    leaving = await team.get("TrainJob")
    assert leaving["metadata"]["deletionTimestamp"]
    before = reconciles(manager, team.namespace)
    for child, name in (("JobSet", JOB), ("ConfigMap", f"{JOB}-mpi-hostfile")):
        await team.delete(child, name)
    await team.wait_until_reconciled(manager, JOB, before)
    await team.suspend(suspend=False)
    await team.touch(manager)
    assert await team.children() == [f"Secret/{JOB}-mpi-ssh-auth"]
    assert (await team.get("TrainJob"))["status"] == leaving["status"]


async def test_nothing_is_created_for_a_job_deleted_before_its_first_reconcile(
    team: Team, manager: ManagerProcess
) -> None:
    """Defect D5."""
    await team.create_job()
    await team.wait_for_condition("Blocked", "RuntimeNotFound")
    await team.patch("TrainJob", JOB, {"metadata": {"finalizers": [HOLD]}})
    await team.delete("TrainJob")
    await team.touch(manager)
    before = reconciles(manager, team.namespace)
    await team.create_runtime()
    await team.wait_until_reconciled(manager, JOB, before)
    await team.touch(manager)
    assert await team.children() == []


async def test_job_managed_by_multikueue_is_not_reconciled(
    team: Team, manager: ManagerProcess
) -> None:
    """Defect D10."""
    await team.create_runtime("mpi")
    await team.create_job(runtime="mpi", suspend=True, managedBy="kueue.x-k8s.io/multikueue")
    await team.wait_until_in_use("mpi")  # by this one, too
    await team.touch(manager)
    await team.suspend(suspend=False)
    await team.touch(manager)
    job = await team.get("TrainJob")
    assert await team.children() == []
    assert "status" not in job
    assert "finalizers" not in job["metadata"]
    assert await team.all("Event") == []


async def test_status_that_multikueue_copies_gets_no_state(
    team: Team, manager: ManagerProcess
) -> None:
    """A state that is not updated would contradict the conditions."""
    await team.create_runtime()
    await team.create_job(managedBy="kueue.x-k8s.io/multikueue")
    condition = {
        "type": "Complete",
        "status": "True",
        "reason": "AllJobsCompleted",
        "message": "jobset completed successfully",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    await team.patch("TrainJob", JOB, {"status": {"conditions": [condition]}}, "/status")
    await team.touch(manager)
    assert (await team.get("TrainJob"))["status"] == {"conditions": [condition]}


async def test_deleted_jobset_of_a_running_job_is_recreated(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    first = await team.wait_until_exists("JobSet")
    await team.delete("JobSet")

    async def another() -> bool:
        found = await team.find("JobSet")
        return found is not None and found["metadata"]["uid"] != first["metadata"]["uid"]

    await until(another, within=TEST_TIMEOUT, what="another JobSet")
