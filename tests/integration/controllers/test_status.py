"""A TrainJob's status during the life of its JobSet, whose status the test sets."""

from typing import Any

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    APPLY,
    COMPLETED,
    FAILED,
    JOB,
    MERGE,
    ROW,
    TEST_TIMEOUT,
    Team,
    conditions_of,
)
from tests.support.managers import ManagerProcess
from tests.support.objects import API

LONG_AGO = "2020-02-20T20:20:20Z"
OTHERS = {
    "type": "example.org/Warm",
    "status": "True",
    "reason": "Heated",
    "message": "by somebody else",
    "lastTransitionTime": LONG_AGO,
}


async def wait_until_suspend_is(team: Team, *, suspend: bool) -> Object:
    async def has_changed() -> Object | None:
        found = await team.find("JobSet")
        return found if found and found["spec"].get("suspend") is suspend else None

    return await until(
        has_changed, within=TEST_TIMEOUT, what=f"the JobSet having suspend: {suspend}"
    )


def without_time(condition: Object) -> Object:
    return {key: value for key, value in condition.items() if key != "lastTransitionTime"}


async def test_a_job_that_runs_has_a_jobset_and_no_conditions(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    job = await team.create_job()
    job_set = await wait_until_suspend_is(team, suspend=False)
    assert job_set["metadata"]["ownerReferences"] == [
        {
            "apiVersion": API,
            "kind": "TrainJob",
            "name": JOB,
            "uid": job["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    await team.set_jobset_status(rows=[ROW])
    assert conditions_of(await team.wait_for_jobs_status(ROW)) == {}


async def test_a_job_is_suspended_resumed_and_suspended_again(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job(suspend=True)
    first = await wait_until_suspend_is(team, suspend=True)
    job = await team.wait_for_condition("Suspended", "Suspended")
    assert [without_time(each) for each in job["status"]["conditions"]] == [
        {
            "type": "Suspended",
            "status": "True",
            "reason": "Suspended",
            "message": "TrainJob is suspended",
        }
    ]
    await team.suspend(suspend=False)
    await wait_until_suspend_is(team, suspend=False)
    job = await team.wait_for_condition("Suspended", "Resumed", "False")
    assert without_time(conditions_of(job)["Suspended"]) == {
        "type": "Suspended",
        "status": "False",
        "reason": "Resumed",
        "message": "TrainJob is resumed",
    }
    await team.suspend(suspend=True)
    last = await wait_until_suspend_is(team, suspend=True)
    await team.wait_for_condition("Suspended", "Suspended")
    assert last["metadata"]["uid"] == first["metadata"]["uid"]


@pytest.mark.parametrize(
    ("end", "kind"), [(COMPLETED, "Complete"), (FAILED, "Failed")], ids=["complete", "failed"]
)
async def test_terminal_jobset_condition_is_copied_with_message_and_time(
    end: Object, kind: str, team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    startup = {**end, "type": "StartupPolicyCompleted"}
    rows = [{**ROW, "ready": 0, "active": 0, "succeeded": 1}]
    await team.set_jobset_status(startup, {**end, "observedGeneration": 7}, rows=rows)
    job = await team.wait_for_condition(kind, end["reason"])
    job_set = {"uid": (await team.get("JobSet"))["metadata"]["uid"]}
    conditions = [{**end, "type": kind}]
    assert job["status"] == {
        "conditions": conditions,
        "jobsStatus": rows,
        "jobSet": job_set,
        "runtimeRevision": job["status"]["runtimeRevision"],
        "state": kind,
        "nodes": {"ready": 1, "desired": 1},
    }


async def test_state_and_nodes_follow_the_jobset(team: Team, manager: ManagerProcess) -> None:
    await team.create_runtime()
    created = await team.create_job(trainer={"numNodes": 2})
    assert "status" not in created
    await team.wait_until_exists("JobSet")
    none = {**ROW, "ready": 0}
    ended = {**none, "active": 0, "succeeded": 1}
    for row, state, ready in ((none, "Pending", 0), (ROW, "Running", 2), (ended, "Running", 2)):
        await team.set_jobset_status(rows=[row])
        status = (await team.wait_for_jobs_status(row))["status"]
        assert (status["state"], status["nodes"]) == (state, {"ready": ready, "desired": 2})
    await team.set_jobset_status(COMPLETED, rows=[ended])
    status = (await team.wait_for_condition("Complete", COMPLETED["reason"]))["status"]
    assert (status["state"], status["nodes"]) == ("Complete", {"ready": 2, "desired": 2})


async def test_pods_that_are_ready_are_counted_before_their_job_is_ready(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job(trainer={"numNodes": 3})
    job_set = await team.wait_until_exists("JobSet")
    await team.set_jobset_status(rows=[{**ROW, "ready": 0}])
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "controller": True}
    identity = {"name": JOB, "uid": job_set["metadata"]["uid"]}
    labels = {
        "jobset.sigs.k8s.io/jobset-name": JOB,
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
    }
    pods = {"containers": [{"name": "node", "image": "x"}], "restartPolicy": "Never"}
    spec = {"parallelism": 3, "completions": 3, "template": {"spec": pods}}
    metadata = {
        "name": "train-node-0",
        "labels": labels,
        "ownerReferences": [{**owner, **identity}],
    }
    await team.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    foreign = {**metadata, "name": "other", "ownerReferences": []}
    await team.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": foreign, "spec": spec})

    async def wait_until_ready(pods: int) -> None:
        async def is_ready() -> bool:
            nodes = (await team.get("TrainJob")).get("status", {}).get("nodes")
            return bool(nodes == {"ready": pods, "desired": 3})

        await until(is_ready, within=TEST_TIMEOUT, what=f"{pods} ready nodes")

    await wait_until_ready(0)
    for ready in (2, 1):
        for name, number in (("train-node-0", ready), ("other", 2)):
            path = f"/apis/batch/v1/namespaces/{team.namespace}/jobs/{name}/status"
            body = {"status": {"active": 3, "ready": number}}
            await team.api.request("PATCH", path, body=body, content_type=MERGE)
        await wait_until_ready(ready)
    assert (await team.get("TrainJob"))["status"]["state"] == "Pending"


async def test_an_end_that_is_not_true_is_none(team: Team, manager: ManagerProcess) -> None:
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    await team.set_jobset_status({**COMPLETED, "status": "False"}, rows=[ROW])
    assert conditions_of(await team.wait_for_jobs_status(ROW)) == {}


async def test_rows_follow_the_jobset_and_have_all_six_fields(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create_job()
    await team.wait_until_exists("JobSet")
    numbers = ("ready", "succeeded", "failed", "active", "suspended")
    no_pods = {"name": "node", **dict.fromkeys(numbers, 0)}
    for rows in (
        [no_pods],
        [ROW, {**no_pods, "name": "launcher"}],
        [{**dict(zip(numbers, range(1, 6), strict=True)), "name": "node"}],
    ):
        await team.set_jobset_status(rows=rows)
        job = await team.wait_for_jobs_status(*rows)
        assert [set(row) for row in job["status"]["jobsStatus"]] == [{"name", *numbers}] * len(rows)


async def apply_as_another(team: Team) -> None:
    manifest = {"apiVersion": API, "kind": "TrainJob", "metadata": {"name": JOB}}
    await team.api.request(
        "PATCH",
        f"{team.path('TrainJob', JOB)}/status",
        query={"fieldManager": "another"},
        body={**manifest, "status": {"conditions": [OTHERS]}},
        content_type=APPLY,
    )


async def update_as_another(team: Team) -> None:
    job = await team.get("TrainJob")
    job["status"].setdefault("conditions", []).append(OTHERS)
    await team.api.request(
        "PUT",
        f"{team.path('TrainJob', JOB)}/status",
        query={"fieldManager": "another"},
        body=job,
    )


@pytest.mark.parametrize("write", [apply_as_another, update_as_another])
async def test_conditions_of_other_writers_are_preserved(
    write: Any, team: Team, manager: ManagerProcess
) -> None:
    """Defect D8."""
    await team.create_runtime()
    await team.create_job(suspend=True)
    await team.wait_for_condition("Suspended", "Suspended")
    await write(team)
    await team.suspend(suspend=False)
    resumed = await team.wait_for_condition("Suspended", "Resumed", "False")
    await team.set_jobset_status(COMPLETED, rows=[ROW])
    ended = await team.wait_for_condition("Complete", COMPLETED["reason"])
    for job in (resumed, ended):
        assert conditions_of(job)[OTHERS["type"]] == OTHERS
        managers = [each["manager"] for each in job["metadata"]["managedFields"]]
        assert "another" in managers
    assert set(conditions_of(ended)) == {"Suspended", "Complete", OTHERS["type"]}


async def age(team: Team) -> None:
    """Let all conditions be old, without changing whose they are."""
    job = await team.get("TrainJob")
    aged = [{**each, "lastTransitionTime": LONG_AGO} for each in job["status"]["conditions"]]
    manifest = {"apiVersion": API, "kind": "TrainJob", "metadata": {"name": JOB}}
    await team.api.request(
        "PATCH",
        f"{team.path('TrainJob', JOB)}/status",
        query={"fieldManager": "trainer", "force": "true"},
        body={**manifest, "status": {"conditions": aged, "jobsStatus": []}},
        content_type=APPLY,
    )


async def test_conditions_keep_their_times_until_their_status_changes(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_job(suspend=True)
    await team.wait_for_condition("Blocked", "RuntimeNotFound")
    await age(team)
    await team.touch(manager)
    broken = {"apiVersion": API, "kind": "TrainingRuntime", "metadata": {"name": "torch"}}
    await team.create({**broken, "spec": {"template": {"spec": {"replicatedJobs": []}}}})
    job = await team.wait_for_condition("Blocked", "InvalidRuntime")
    times = [each["lastTransitionTime"] for each in job["status"]["conditions"]]
    assert times == [LONG_AGO, LONG_AGO]
    await team.suspend(suspend=False)
    job = await team.wait_for_condition("Suspended", "Resumed", "False")
    found = conditions_of(job)
    assert found["Suspended"]["lastTransitionTime"] > LONG_AGO
    assert found["Blocked"]["lastTransitionTime"] == LONG_AGO


async def test_nothing_is_written_when_nothing_has_changed(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime("mpi")
    await team.create_job(runtime="mpi", suspend=True)
    job_set = await team.wait_until_exists("JobSet")
    before = await team.wait_for_condition("Suspended", "Suspended")
    await team.touch(manager)
    touched = await team.get("TrainJob")
    await team.touch(manager, kind="JobSet")
    assert await team.get("TrainJob") == touched
    assert touched["status"] == before["status"]
    after = await team.get("JobSet")
    assert (after["spec"], after["metadata"]["generation"]) == (
        job_set["spec"],
        job_set["metadata"]["generation"],
    )
