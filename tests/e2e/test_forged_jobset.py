"""A JobSet that a namespace admin puts in the place of a TrainJob's JobSet."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import JOB, conditions_of
from tests.support.managers import ManagerProcess
from tests.support.objects import runtime
from tests.support.trainjobs import COMPLETES_LATE, END_TO_END_TIMEOUT, ClusterTeam, pods_with
from tests.support.webhooks import admitting_manager

KEPT = ("name", "labels", "annotations", "ownerReferences")
LASTING: dict[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with admitting_manager(full_control_plane, "--log-level", "debug") as manager:
        yield manager


async def replaced(team: ClusterTeam, image: str) -> Object:
    """Put a JobSet with this image and all marks in the place of the TrainJob's JobSet.

    The manager creates its own as soon as the deleted one is gone: the forger tries until it is
    faster.
    """

    async def forged() -> Object | None:
        live = await team.wait_until_exists("JobSet")
        metadata = {field: live["metadata"][field] for field in KEPT if field in live["metadata"]}
        [job] = live["spec"]["replicatedJobs"]
        job["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
        await team.delete("JobSet")
        for _ in range(100):
            try:
                return await team.create(
                    {
                        "apiVersion": live["apiVersion"],
                        "kind": live["kind"],
                        "metadata": metadata,
                        "spec": live["spec"],
                    }
                )
            except ApiError:
                found = await team.find("JobSet")
                if found is not None and found["metadata"]["uid"] != live["metadata"]["uid"]:
                    return None
        return None

    return await until(forged, within=END_TO_END_TIMEOUT, what="the forger being faster")


async def test_forged_jobset_of_a_suspended_trainjob_is_never_resumed(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    await team.create(runtime("plain"))
    await team.create_job(runtime="plain", suspend=True, **LASTING)
    await team.wait_for_condition("Suspended", "Suspended")
    forged = await replaced(team, "forged:1")
    await team.suspend(suspend=False)
    job = await team.wait_for_condition("Blocked", "ForeignJobSet")
    assert forged["metadata"]["uid"] in conditions_of(job)["Blocked"]["message"]
    assert job["status"]["jobSet"]["uid"] != forged["metadata"]["uid"]
    await team.touch(manager)
    assert (await team.get("JobSet"))["spec"]["suspend"] is True
    assert await team.pods(JOB) == []

    await team.delete("JobSet")

    async def started() -> list[str] | None:
        pods = await team.pods(JOB)
        return [pod["spec"]["containers"][0]["image"] for pod in pods] or None

    images = await until(started, within=END_TO_END_TIMEOUT, what="pods of the TrainJob")
    assert "forged:1" not in images
    job = await team.wait_until_condition_removed("Blocked")
    assert job["status"]["jobSet"]["uid"] == (await team.get("JobSet"))["metadata"]["uid"]
