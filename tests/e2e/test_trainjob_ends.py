"""How TrainJobs end: by failure, by deletion, and for good."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import conditions_of, reconciles
from tests.support.managers import ManagerProcess
from tests.support.objects import COLLECTIONS, runtime
from tests.support.trainjobs import (
    COMPLETES_LATE,
    END_TO_END_TIMEOUT,
    FAILS,
    ClusterTeam,
    created_jobset_count,
    one_try_runtime,
    pods_with,
    summary,
)
from tests.support.webhooks import MERGE, admitting_manager, wait_until_call_fails

IN_USE = "trainer.kubeflow.org/resource-in-use"
FAILING: dict[str, Any] = {"podTemplateOverrides": pods_with(labels=FAILS)}
LASTING: dict[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with admitting_manager(full_control_plane, "--log-level", "debug") as manager:
        yield manager


async def reconcile_again(team: ClusterTeam, manager: ManagerProcess, *jobs: str) -> None:
    """Check that a reconcile of TrainJobs without JobSets creates nothing."""
    for job in jobs:
        await team.touch(manager, job)
        assert created_jobset_count(manager, team.namespace, job) == 1
    assert await team.all("JobSet") == []


async def test_finished_trainjob_does_not_restart_without_its_job_set(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Defects D3 and D4."""
    await team.create(one_try_runtime())
    await team.create_job("good", "once")
    await team.create_job("bad", "once", **FAILING)
    before = {
        "good": await team.wait_until_ended("good", "Complete"),
        "bad": await team.wait_until_ended("bad", "Failed"),
    }
    assert summary(before["good"]) == {"Complete": "True/AllJobsCompleted"}
    assert summary(before["bad"]) == {"Failed": "True/FailedJobs"}
    why = conditions_of(before["bad"])["Failed"]["message"]
    assert re.match("jobset failed due to one or more job failures", why)

    for job in before:
        before_count = reconciles(manager, team.namespace, job)
        await team.delete("JobSet", job)
        await team.wait_until_deleted("JobSet", job)
        await team.wait_until_reconciled(manager, job, before_count)
    await reconcile_again(team, manager, *before)
    for job, then in before.items():
        status = (await team.get("TrainJob", job))["status"]
        assert status["conditions"] == then["status"]["conditions"]
        assert [row["name"] for row in status["jobsStatus"]] == ["node"]
        await team.wait_until_children_deleted(job)


async def test_finished_trainjob_does_not_restart_when_its_job_set_expires(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Defects D3 and D4."""
    await team.create(one_try_runtime("brief", ttlSecondsAfterFinished=5))
    await team.create_job("good", "brief")
    await team.create_job("bad", "brief", **FAILING)
    before = {
        "good": await team.wait_until_ended("good", "Complete"),
        "bad": await team.wait_until_ended("bad", "Failed"),
    }
    for job in before:
        await team.wait_until_deleted("JobSet", job)
    await reconcile_again(team, manager, *before)
    for job, then in before.items():
        assert conditions_of(await team.get("TrainJob", job)) == conditions_of(then)


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
async def test_dependents_of_a_deleted_job_are_removed_and_not_recreated(
    team: ClusterTeam, manager: ManagerProcess, policy: str
) -> None:
    """Defect D5."""
    await team.create_runtime("mpi")
    lasting = pods_with("launcher", "node", annotations=COMPLETES_LATE)
    await team.create_job(runtime="mpi", trainer={"numNodes": 2}, podTemplateOverrides=lasting)
    await team.wait_until_running("train", 2)
    assert await team.children() == [
        "Secret/train-mpi-ssh-auth",
        "ConfigMap/train-mpi-hostfile",
        "JobSet/train",
    ]
    await team.delete("TrainJob", policy=policy)
    await team.wait_until_deleted("TrainJob")

    async def collected() -> bool:
        return not await team.children()

    await until(collected, within=END_TO_END_TIMEOUT, what="the objects of the TrainJob being gone")
    await team.wait_until_children_deleted("train")
    assert created_jobset_count(manager, team.namespace, "train") == 1


async def test_runtime_in_use_is_kept_until_the_last_job_is_deleted(team: ClusterTeam) -> None:
    await team.create(runtime("torch"))
    await team.create_job("first", **LASTING)
    await team.create_job("second", suspend=True)
    await team.wait_until_running("first", 1)

    async def is_held() -> bool:
        found = await team.get("TrainingRuntime", "torch")
        return found["metadata"].get("finalizers") == [IN_USE]

    await until(is_held, within=END_TO_END_TIMEOUT, what="the finalizer on the runtime")
    await team.delete("TrainingRuntime", "torch")
    assert (await team.get("TrainingRuntime", "torch"))["metadata"]["deletionTimestamp"]

    await team.delete("TrainJob", "first")
    await team.wait_until_deleted("TrainJob", "first")
    await team.wait_until_deleted("JobSet", "first")
    # It serves those that refer to it as long as it is there.
    await team.suspend(suspend=False, name="second")
    await team.wait_until_ended("second")
    assert await is_held()

    await team.delete("TrainJob", "second")
    await team.wait_until_deleted("TrainingRuntime", "torch")


async def test_deletion_completes_while_the_webhook_is_unavailable(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Foreground deletion and the end of a namespace; the last test, as it stops the manager."""
    await team.create(runtime("own"))
    for name in ("deleted", "left"):
        await team.create_job(name, "own", **LASTING)
        await team.wait_until_running(name, 1)
    await team.wait_until_in_use("own")
    await manager.stop()
    await wait_until_call_fails(team.api)
    paths = {
        kind: f"{COLLECTIONS[kind].format(team.namespace)}/{name}"
        for kind, name in (("TrainJob", "deleted"), ("TrainingRuntime", "own"))
    }
    foreground = {"propagationPolicy": "Foreground"}
    await team.api.request("DELETE", paths["TrainJob"], query=foreground)
    for kind in ("TrainJob", "JobSet"):
        await team.wait_until_deleted(kind, "deleted")
    await team.wait_until_children_deleted("deleted", ["Job", "Pod"])

    own = f"/api/v1/namespaces/{team.namespace}"
    await team.api.delete(own)
    await team.wait_until_deleted("TrainJob", "left")
    free = {"metadata": {"finalizers": None}}  # which is the manager's to do
    await team.api.request("PATCH", paths["TrainingRuntime"], body=free, content_type=MERGE)

    async def is_deleted() -> bool:
        return await team.api.get_or_none(own) is None

    await until(is_deleted, within=END_TO_END_TIMEOUT, what="the end of the namespace")
