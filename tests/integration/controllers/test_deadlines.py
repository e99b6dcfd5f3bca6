"""TrainJobs with `activeDeadlineSeconds`."""

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    COMPLETED,
    JOB,
    ROW,
    TEST_TIMEOUT,
    Team,
    conditions_of,
    time_of,
)
from tests.support.managers import ManagerProcess

REASON = "DeadlineExceeded"
NO_ROWS = {**ROW, "ready": 0, "active": 0}


async def wait_until_older(team: Team, job: Object, seconds: float) -> None:
    async def is_older() -> bool:
        return await team.age_of(job) >= seconds

    await until(is_older, within=TEST_TIMEOUT, what=f"an age of {seconds} s", every=0.5)


async def wait_until_failed(team: Team) -> Object:
    return await team.wait_for_condition("Failed", REASON)


async def test_overdue_trainjob_fails_and_its_jobset_is_deleted_for_good(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    job = await team.create_job(activeDeadlineSeconds=2)
    await team.wait_until_exists("JobSet")
    await team.set_jobset_status(rows=[ROW])
    failed = await wait_until_failed(team)
    condition = conditions_of(failed)["Failed"]
    assert condition["message"] == "TrainJob exceeded its active deadline"
    created = time_of(job["metadata"]["creationTimestamp"])
    assert (time_of(condition["lastTransitionTime"]) - created).total_seconds() >= 2
    await team.wait_until_deleted("JobSet")
    ended = await team.wait_for_jobs_status(NO_ROWS)
    assert ended["status"]["state"] == "Failed"
    event = await team.wait_for_event(REASON)
    assert (event["type"], event["message"]) == (
        "Warning",
        "TrainJob exceeded its active deadline of 2 s: its JobSet is deleted",
    )
    await team.touch(manager)
    await team.touch(manager)
    assert await team.find("JobSet") is None
    assert (await team.get("TrainJob"))["status"] == ended["status"]


async def test_suspended_time_does_not_count(team: Team, manager: ManagerProcess) -> None:
    await team.create_runtime()
    await team.create_job(suspend=True, activeDeadlineSeconds=3)
    suspended = await team.wait_for_condition("Suspended", "Suspended")
    await wait_until_older(team, suspended, 5)
    await team.touch(manager)
    assert "Failed" not in conditions_of(await team.get("TrainJob"))
    await team.suspend(suspend=False)
    resumed = await team.wait_for_condition("Suspended", "Resumed", "False")
    assert "Failed" not in conditions_of(resumed)
    failed = conditions_of(await wait_until_failed(team))
    since = time_of(failed["Suspended"]["lastTransitionTime"])
    assert (time_of(failed["Failed"]["lastTransitionTime"]) - since).total_seconds() >= 3
    await team.suspend(suspend=True)
    await team.touch(manager)
    assert (await team.get("TrainJob"))["status"]["conditions"] == [*failed.values()]


async def test_completed_trainjob_does_not_fail_later(team: Team, manager: ManagerProcess) -> None:
    await team.create_runtime()
    await team.create_job(activeDeadlineSeconds=6)
    await team.wait_until_exists("JobSet")
    await team.set_jobset_status(COMPLETED, rows=[{**NO_ROWS, "succeeded": 1}])
    done = await team.wait_for_condition("Complete", COMPLETED["reason"])
    await wait_until_older(team, done, 8)
    await team.touch(manager)
    assert "Failed" not in conditions_of(await team.get("TrainJob"))
    assert await team.find("JobSet") is not None


async def test_blocked_trainjob_fails_at_its_deadline(team: Team, manager: ManagerProcess) -> None:
    await team.create_job(activeDeadlineSeconds=3)  # its runtime does not exist
    await team.wait_for_condition("Blocked", "RuntimeNotFound")
    failed = await wait_until_failed(team)
    assert failed["status"]["state"] == "Failed"
    assert "Blocked" not in conditions_of(failed)
    await team.create_runtime()
    await team.touch(manager)
    assert await team.find("JobSet") is None


@pytest.mark.parametrize(
    ("stored", "changed"), [(60, None), (60, 61), (None, 1)], ids=["removed", "changed", "added"]
)
async def test_removed_changed_or_added_deadline_is_rejected(
    team: Team, stored: int | None, changed: int | None
) -> None:
    await team.create_job(**({"activeDeadlineSeconds": stored} if stored else {}))
    with pytest.raises(ApiError, match="field is immutable"):
        await team.patch("TrainJob", JOB, {"spec": {"activeDeadlineSeconds": changed}})
