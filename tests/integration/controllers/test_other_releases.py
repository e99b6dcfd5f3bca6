"""TrainJobs that another release has stored, with fields that are not served here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import ANY_MOMENT, JOB, Team, conditions_of
from tests.support.managers import ManagerProcess
from tests.support.objects import train_job
from tests.support.other_releases import (
    KUEUE_ADMISSION,
    KUEUE_ENTRY,
    definitions,
    without_rejections,
)


@asynccontextmanager
async def rules_lifted(team: Team) -> AsyncIterator[None]:
    """The CRD of another release, as far as these fields go, for the length of the block."""
    [crd] = [each for each in definitions() if each["spec"]["names"]["kind"] == "TrainJob"]
    try:
        await team.api.apply_crd(without_rejections(crd))
        await _until_enforced(team, enforced=False)
        yield
    finally:
        await team.api.apply_crd(crd)
        await _until_enforced(team, enforced=True)


async def _until_enforced(team: Team, *, enforced: bool) -> None:
    probe = train_job("probe", activeDeadlineSeconds=600)

    async def seen() -> bool:
        return await _rejects(team.api, team.path("TrainJob"), probe) is enforced

    await until(seen, within=ANY_MOMENT, what=f"the rules being {enforced=}")


async def _rejects(api: ApiClient, path: str, probe: dict[str, object]) -> bool:
    try:
        await api.request("POST", path, query={"dryRun": "All"}, body=probe)
    except ApiError as error:
        return error.status == 422
    return False


async def test_stored_patch_does_not_prevent_suspension_and_resumption(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job(runtimePatches=[KUEUE_ENTRY])
    job_set = await team.until_there("JobSet")
    async with rules_lifted(team):
        change = {"spec": {"runtimePatches": [KUEUE_ADMISSION]}}
        stored = await team.patch("TrainJob", JOB, change)
        await team.until_seen(manager, stored)
    running = await team.get("JobSet")
    assert running["metadata"]["uid"] == job_set["metadata"]["uid"]
    assert running["spec"] == job_set["spec"]
    assert conditions_of(await team.get("TrainJob")) == {}

    await team.suspend(suspend=True)
    await team.until_says("Suspended", "Suspended")
    await team.suspend(suspend=False)
    job = await team.until_says("Suspended", "Resumed", "False")
    assert set(conditions_of(job)) == {"Suspended"}
    resumed = await team.get("JobSet")
    assert resumed["metadata"]["uid"] == job_set["metadata"]["uid"]
    assert resumed["spec"]["suspend"] is False
    [node] = resumed["spec"]["replicatedJobs"]
    assert node["template"]["spec"]["template"]["spec"]["nodeSelector"] == {"flavor": "spot"}


async def test_stored_deadline_blocks_the_resumption_until_it_is_removed(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    job_set = await team.until_there("JobSet")
    async with rules_lifted(team):
        stored = await team.patch("TrainJob", JOB, {"spec": {"activeDeadlineSeconds": 600}})
        await team.until_seen(manager, stored)
    assert conditions_of(await team.get("TrainJob")) == {}

    await team.suspend(suspend=True)
    job = await team.until_says("Blocked", "InvalidTrainJob")
    assert (
        "spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds (Kubeflow Trainer 2.2) is "
        "not supported"
    ) in conditions_of(job)["Blocked"]["message"]
    assert (await team.get("JobSet"))["spec"]["suspend"] is True

    await team.suspend(suspend=False)
    await team.patch("TrainJob", JOB, {"spec": {"activeDeadlineSeconds": None}})
    await team.until_without("Blocked")
    await team.until_says("Suspended", "Resumed", "False")
    assert (await team.get("JobSet"))["metadata"]["uid"] == job_set["metadata"]["uid"]
