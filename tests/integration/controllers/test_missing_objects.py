"""What the manager awaits without reporting it, and what it restores; one manager for all."""

import pytest

from kftrainer.devcluster.waiting import until
from kftrainer.machinery.manager.clock import SystemClock
from tests.integration.controllers.team import COMPLETED, JOB, ROW, TEST_TIMEOUT, Team
from tests.integration.controllers.test_blocked import NEEDED
from tests.integration.controllers.test_retries import (
    PENDING,
    create_needed,
    owned_by_other_trainjob,
    with_finalizer,
)
from tests.support.managers import ManagerProcess

CLOCK = SystemClock()


async def test_status_changed_by_another_client_is_restored_at_growing_intervals(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job(suspend=True)
    before = (await team.wait_for_condition("Suspended", "Suspended"))["status"]
    tampered = [{**before["conditions"][0], "reason": "Tampered"}]
    seconds = list[float]()
    for _ in range(3):
        started = CLOCK.monotonic()
        await team.patch("TrainJob", JOB, {"status": {"conditions": tampered}}, "/status")
        job = await team.wait_for_condition("Suspended", "Suspended")
        seconds.append(CLOCK.monotonic() - started)
        assert job["status"] == before
    assert seconds[1] >= 0.5
    assert seconds[2] >= 1.0


async def wait_until_retried(manager: ManagerProcess, team: Team, reason: str, times: int) -> None:
    async def retried() -> bool:
        found = [
            each
            for each in manager.log_entries("objects_not_applied")
            if (each["namespace"], each["reason"]) == (team.namespace, reason)
        ]
        return len(found) >= times

    await until(retried, within=TEST_TIMEOUT, what=f"{times} attempts that ended with {reason}")


@pytest.mark.parametrize("kind", NEEDED)
async def test_object_of_an_earlier_trainjob_of_the_same_name_is_awaited_silently(
    kind: str, team: Team, manager: ManagerProcess
) -> None:
    runtime, name = await create_needed(team, kind, owned_by_other_trainjob)
    await team.create_runtime(runtime)
    job = await team.create_job(runtime=runtime)
    await wait_until_retried(manager, team, PENDING, 4)
    await team.delete(kind, name)  # as the garbage collector does
    await team.wait_until_exists("JobSet")
    ours = await team.wait_until_exists(kind, name)
    assert ours["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    await team.touch(manager)
    assert "status" not in await team.get("TrainJob")
    assert await team.all("Event") == []


@pytest.mark.parametrize("kind", NEEDED)
async def test_object_that_is_being_deleted_is_awaited_silently(
    kind: str, team: Team, manager: ManagerProcess
) -> None:
    runtime, name = await create_needed(team, kind, with_finalizer)
    await team.delete(kind, name)
    await team.create_runtime(runtime)
    await team.create_job(runtime=runtime)
    await wait_until_retried(manager, team, PENDING, 4)
    await team.patch(kind, name, {"metadata": {"finalizers": None}})
    await team.wait_until_exists("JobSet")
    await team.touch(manager)
    assert "status" not in await team.get("TrainJob")
    assert await team.all("Event") == []


async def test_status_has_no_empty_lists_and_loses_those_of_older_releases(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_job()
    await team.wait_for_condition("Blocked", "RuntimeNotFound")
    await team.create_runtime()
    job = await team.wait_until_condition_removed("Blocked")
    uid = {"uid": (await team.get("JobSet"))["metadata"]["uid"]}
    nodes = {"ready": 0, "desired": 1}
    own = {"jobSet": uid, "runtimeRevision": job["status"]["runtimeRevision"]}
    assert job["status"] == {**own, "state": "Pending", "nodes": nodes}
    await team.set_jobset_status(rows=[ROW])
    job = await team.wait_for_jobs_status(ROW)
    running = {"state": "Running", "nodes": {"ready": 1, "desired": 1}}
    assert job["status"] == {"jobsStatus": [ROW], **own, **running}
    await team.patch("TrainJob", JOB, {"status": {"conditions": []}}, "/status")
    await team.touch(manager)
    found = (await team.get("TrainJob"))["status"]
    assert found == {"jobsStatus": [ROW], **own, **running}
    await team.set_jobset_status()

    async def no_rows() -> bool:
        wanted = {**own, "state": "Pending", "nodes": nodes}
        return bool((await team.get("TrainJob"))["status"] == wanted)

    await until(no_rows, within=TEST_TIMEOUT, what="the last row being removed")
    await team.patch("TrainJob", JOB, {"status": {"conditions": [], "jobsStatus": []}}, "/status")
    await team.touch(manager)
    assert await no_rows()
    await team.set_jobset_status(COMPLETED)
    job = await team.wait_for_condition("Complete", COMPLETED["reason"])
    assert set(job["status"]) == {"conditions", *own, "state", "nodes"}
