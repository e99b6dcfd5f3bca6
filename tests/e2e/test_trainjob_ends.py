"""How TrainJobs end: by failure, by deletion, and for good."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import conditions_of, reconciles
from tests.support.managers import ManagerProcess
from tests.support.objects import COLLECTIONS, runtime
from tests.support.trainjobs import (
    BY_THE_END,
    FAILS,
    FOR_LONG,
    Ground,
    made_job_sets,
    one_try_runtime,
    pods_with,
    summary,
)
from tests.support.webhooks import MERGE, admitting_manager, until_missed

IN_USE = "trainer.kubeflow.org/resource-in-use"
FAILING: dict[str, Any] = {"podTemplateOverrides": pods_with(labels=FAILS)}
LASTING: dict[str, Any] = {"podTemplateOverrides": pods_with(annotations=FOR_LONG)}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with admitting_manager(full_control_plane, "--log-level", "debug") as manager:
        yield manager


@pytest.fixture
def ground(api: ApiClient, namespace: str, manager: ManagerProcess) -> Ground:
    """A namespace of the test's own."""
    return Ground(api, namespace)


async def look_once_more(ground: Ground, manager: ManagerProcess, *jobs: str) -> None:
    """See that the manager looks at TrainJobs whose JobSets are gone, and makes nothing."""
    for job in jobs:
        await ground.touch(manager, job)
        assert made_job_sets(manager, ground.namespace, job) == 1
    assert await ground.all("JobSet") == []


async def test_finished_trainjob_does_not_restart_without_its_job_set(
    ground: Ground, manager: ManagerProcess
) -> None:
    """Defects D3 and D4."""
    await ground.create(one_try_runtime())
    await ground.create_job("good", "once")
    await ground.create_job("bad", "once", **FAILING)
    before = {
        "good": await ground.until_ended("good", "Complete"),
        "bad": await ground.until_ended("bad", "Failed"),
    }
    assert summary(before["good"]) == {"Complete": "True/AllJobsCompleted"}
    assert summary(before["bad"]) == {"Failed": "True/FailedJobs"}
    why = conditions_of(before["bad"])["Failed"]["message"]
    assert re.match("jobset failed due to one or more job failures", why)

    for job in before:
        looks = reconciles(manager, ground.namespace, job)
        await ground.delete("JobSet", job)
        await ground.until_gone("JobSet", job)
        await ground.until_looked(manager, job, looks)
    await look_once_more(ground, manager, *before)
    for job, then in before.items():
        status = (await ground.get("TrainJob", job))["status"]
        assert status["conditions"] == then["status"]["conditions"]
        assert [row["name"] for row in status["jobsStatus"]] == ["node"]
        await ground.until_left(job)


async def test_finished_trainjob_does_not_restart_when_its_job_set_expires(
    ground: Ground, manager: ManagerProcess
) -> None:
    """Defects D3 and D4."""
    await ground.create(one_try_runtime("brief", ttlSecondsAfterFinished=5))
    await ground.create_job("good", "brief")
    await ground.create_job("bad", "brief", **FAILING)
    before = {
        "good": await ground.until_ended("good", "Complete"),
        "bad": await ground.until_ended("bad", "Failed"),
    }
    for job in before:
        await ground.until_gone("JobSet", job)
    await look_once_more(ground, manager, *before)
    for job, then in before.items():
        assert conditions_of(await ground.get("TrainJob", job)) == conditions_of(then)


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
async def test_dependents_of_a_deleted_job_are_removed_and_not_recreated(
    ground: Ground, manager: ManagerProcess, policy: str
) -> None:
    """Defect D5."""
    await ground.create_runtime("mpi")
    lasting = pods_with("launcher", "node", annotations=FOR_LONG)
    await ground.create_job(runtime="mpi", trainer={"numNodes": 2}, podTemplateOverrides=lasting)
    await ground.until_running("train", 2)
    assert await ground.children() == [
        "Secret/train-mpi-ssh-auth",
        "ConfigMap/train-mpi-hostfile",
        "JobSet/train",
    ]
    await ground.delete("TrainJob", policy=policy)
    await ground.until_gone("TrainJob")

    async def collected() -> bool:
        return not await ground.children()

    await until(collected, within=BY_THE_END, what="the objects of the TrainJob being gone")
    await ground.until_left("train")
    assert made_job_sets(manager, ground.namespace, "train") == 1


async def test_runtime_in_use_is_kept_until_the_last_job_is_deleted(ground: Ground) -> None:
    await ground.create(runtime("torch"))
    await ground.create_job("first", **LASTING)
    await ground.create_job("second", suspend=True)
    await ground.until_running("first", 1)

    async def is_held() -> bool:
        found = await ground.get("TrainingRuntime", "torch")
        return found["metadata"].get("finalizers") == [IN_USE]

    await until(is_held, within=BY_THE_END, what="the finalizer on the runtime")
    await ground.delete("TrainingRuntime", "torch")
    assert (await ground.get("TrainingRuntime", "torch"))["metadata"]["deletionTimestamp"]

    await ground.delete("TrainJob", "first")
    await ground.until_gone("TrainJob", "first")
    await ground.until_gone("JobSet", "first")
    # It serves those that refer to it as long as it is there.
    await ground.suspend(suspend=False, name="second")
    await ground.until_ended("second")
    assert await is_held()

    await ground.delete("TrainJob", "second")
    await ground.until_gone("TrainingRuntime", "torch")


async def test_deletion_completes_while_the_webhook_is_unavailable(
    ground: Ground, manager: ManagerProcess
) -> None:
    """Foreground deletion and the end of a namespace; the last test, as it stops the manager."""
    await ground.create(runtime("own"))
    for name in ("deleted", "left"):
        await ground.create_job(name, "own", **LASTING)
        await ground.until_running(name, 1)
    await ground.until_in_use("own")
    await manager.stop()
    await until_missed(ground.api)
    paths = {
        kind: f"{COLLECTIONS[kind].format(ground.namespace)}/{name}"
        for kind, name in (("TrainJob", "deleted"), ("TrainingRuntime", "own"))
    }
    foreground = {"propagationPolicy": "Foreground"}
    await ground.api.request("DELETE", paths["TrainJob"], query=foreground)
    for kind in ("TrainJob", "JobSet"):
        await ground.until_gone(kind, "deleted")
    await ground.until_left("deleted", ["Job", "Pod"])

    own = f"/api/v1/namespaces/{ground.namespace}"
    await ground.api.delete(own)
    await ground.until_gone("TrainJob", "left")
    free = {"metadata": {"finalizers": None}}  # which is the manager's to do
    await ground.api.request("PATCH", paths["TrainingRuntime"], body=free, content_type=MERGE)

    async def gone() -> bool:
        return await ground.api.get_or_none(own) is None

    await until(gone, within=BY_THE_END, what="the end of the namespace")
