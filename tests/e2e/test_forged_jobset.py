"""A JobSet that a namespace admin puts in the place of a TrainJob's JobSet."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import JOB, conditions_of
from tests.support.managers import ManagerProcess
from tests.support.objects import runtime
from tests.support.trainjobs import BY_THE_END, FOR_LONG, Ground, pods_with
from tests.support.webhooks import admitting_manager

KEPT = ("name", "labels", "annotations", "ownerReferences")
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


async def replaced(ground: Ground, image: str) -> Object:
    """Put a JobSet with this image and all marks in the place of the TrainJob's JobSet.

    The manager creates its own as soon as the deleted one is gone: the forger tries until it is
    faster.
    """

    async def forged() -> Object | None:
        live = await ground.until_there("JobSet")
        metadata = {field: live["metadata"][field] for field in KEPT if field in live["metadata"]}
        [job] = live["spec"]["replicatedJobs"]
        job["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
        await ground.delete("JobSet")
        for _ in range(100):
            try:
                return await ground.create(
                    {
                        "apiVersion": live["apiVersion"],
                        "kind": live["kind"],
                        "metadata": metadata,
                        "spec": live["spec"],
                    }
                )
            except ApiError:
                found = await ground.find("JobSet")
                if found is not None and found["metadata"]["uid"] != live["metadata"]["uid"]:
                    return None
        return None

    return await until(forged, within=BY_THE_END, what="the forger being faster")


async def test_forged_jobset_of_a_suspended_trainjob_is_never_resumed(
    ground: Ground, manager: ManagerProcess
) -> None:
    await ground.create(runtime("plain"))
    await ground.create_job(runtime="plain", suspend=True, **LASTING)
    await ground.until_says("Suspended", "Suspended")
    forged = await replaced(ground, "forged:1")
    await ground.suspend(suspend=False)
    job = await ground.until_says("Blocked", "ForeignJobSet")
    assert forged["metadata"]["uid"] in conditions_of(job)["Blocked"]["message"]
    assert job["status"]["jobSet"]["uid"] != forged["metadata"]["uid"]
    await ground.touch(manager)
    assert (await ground.get("JobSet"))["spec"]["suspend"] is True
    assert await ground.pods(JOB) == []

    await ground.delete("JobSet")

    async def started() -> list[str] | None:
        pods = await ground.pods(JOB)
        return [pod["spec"]["containers"][0]["image"] for pod in pods] or None

    images = await until(started, within=BY_THE_END, what="pods of the TrainJob")
    assert "forged:1" not in images
    job = await ground.until_without("Blocked")
    assert job["status"]["jobSet"]["uid"] == (await ground.get("JobSet"))["metadata"]["uid"]
