"""The condition Failed of a TrainJob reports which pod failed first, and why."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kftrainer.devcluster.client import Object
from tests.integration.controllers.team import (
    AT_THE_END,
    FAILED,
    JOB,
    MERGE,
    Team,
    condition,
    conditions_of,
    wait_until_jobs_are_watched,
    wait_until_logged,
)
from tests.support.fault_proxy import FaultProxy, ProxiedRequest, status_answer
from tests.support.managers import ManagerProcess, manager_process

STEP = "dataset-initializer"
JOB_NAME = f"{JOB}-{STEP}-0"
OTHER_UID = "6a3c6b1c-3a2c-4b4d-9d57-0c1a4e2d8f11"


@asynccontextmanager
async def running(proxy: FaultProxy) -> AsyncIterator[ManagerProcess]:
    """A manager whose requests pass the proxy."""
    async with manager_process(proxy.kubeconfig, "--log-level", "debug") as manager:
        await manager.wait_ready()
        yield manager


def labels_of(job_set: Object) -> Object:
    return {
        "jobset.sigs.k8s.io/jobset-name": JOB,
        "jobset.sigs.k8s.io/jobset-uid": job_set["metadata"]["uid"],
        "jobset.sigs.k8s.io/replicatedjob-name": STEP,
    }


async def fail_pod(
    team: Team, name: str, job_set: Object, *, restarts: int = 0, **state: Any
) -> None:
    """Create a pod of the JobSet as its Job does, and fail it as the kubelet does.

    With restarts, it runs again.
    """
    labels = {**labels_of(job_set), "job-name": JOB_NAME}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": JOB_NAME, "uid": OTHER_UID}
    await team.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": labels,
                "ownerReferences": [{**job, "controller": True}],
            },
            "spec": {"containers": [{"name": STEP, "image": "initializer"}]},
        }
    )
    terminated = {"exitCode": 1, "reason": "Error", "startedAt": None, **state}
    container = {
        "name": STEP,
        "image": "initializer",
        "imageID": "",
        "ready": False,
        "restartCount": restarts,
        "state": {"running": {}} if restarts else {"terminated": terminated},
        "lastState": {"terminated": terminated} if restarts else {},
    }
    path = f"/api/v1/namespaces/{team.namespace}/pods/{name}/status"
    phase = "Running" if restarts else "Failed"
    status = {"phase": phase, "containerStatuses": [container]}
    await team.api.request("PATCH", path, body={"status": status}, content_type=MERGE)


async def failing(team: Team) -> Object:
    """Start a TrainJob whose dataset initializer fails twice; the JobSet."""
    await team.create_runtime()
    await team.create_job()
    job_set = await team.wait_until_exists("JobSet")
    for name, second, line in (("a", 2, "later"), ("b", 1, "\x1b[31mNo such dataset: x\x1b[0m")):
        time = f"2026-01-01T00:00:0{second}Z"
        await fail_pod(team, name, job_set, finishedAt=time, message=f"Traceback:\n{line}\n")
    return job_set


async def message_of_failure(team: Team) -> str:
    await team.set_jobset_status(FAILED)
    job = await team.wait_for_condition("Failed", FAILED["reason"])
    return str(conditions_of(job)["Failed"]["message"])


async def test_condition_names_the_pod_that_failed_first(team: Team, proxy: FaultProxy) -> None:
    what = f"pod b of replicated job {STEP}, container {STEP}: exit code 1: No such dataset: x"
    async with running(proxy) as manager:
        await failing(team)
        message = await message_of_failure(team)
        assert message == f"{FAILED['message']}; first failure: {what}"
        await team.touch(manager)
        job = await team.get("TrainJob")
        assert conditions_of(job)["Failed"]["message"] == message


async def job_is_failing(team: Team, job_set: Object) -> None:
    """Create a Job whose pods restart in place, with the condition that precedes its failure."""
    owner = {"apiVersion": job_set["apiVersion"], "kind": "JobSet", "name": JOB, "controller": True}
    container = {"name": STEP, "image": "initializer"}
    await team.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": JOB_NAME,
                "labels": {**labels_of(job_set), "jobset.sigs.k8s.io/restart-attempt": "0"},
                "ownerReferences": [{**owner, "uid": job_set["metadata"]["uid"]}],
            },
            "spec": {
                "template": {"spec": {"restartPolicy": "OnFailure", "containers": [container]}}
            },
        }
    )
    path = f"/apis/batch/v1/namespaces/{team.namespace}/jobs/{JOB_NAME}/status"
    target = condition("FailureTarget", "BackoffLimitExceeded")
    body = {"status": {"conditions": [target], "startTime": AT_THE_END}}
    await team.api.request("PATCH", path, body=body, content_type=MERGE)


async def test_pod_that_restarts_in_place_is_read_before_its_job_has_failed(
    team: Team, proxy: FaultProxy
) -> None:
    async with running(proxy) as manager:
        await wait_until_jobs_are_watched(manager)
        await team.create_runtime()
        await team.create_job()
        job_set = await team.wait_until_exists("JobSet")
        time = "2026-01-01T00:00:00Z"
        await fail_pod(team, "p", job_set, restarts=7, finishedAt=time, message="boom")
        await job_is_failing(team, job_set)
        await wait_until_logged(manager, "failing_job_read")
        pod = f"/api/v1/namespaces/{team.namespace}/pods/p"
        await team.api.request("DELETE", pod, query={"gracePeriodSeconds": "0"})
        what = f"pod p of replicated job {STEP}, container {STEP}: exit code 1: boom"
        assert await message_of_failure(team) == f"{FAILED['message']}; first failure: {what}"


def is_list_of_pods(request: ProxiedRequest) -> bool:
    return request.path.split("?")[0].endswith("/pods")


async def test_status_is_written_without_permission_to_list_pods(
    team: Team, proxy: FaultProxy
) -> None:
    proxy.inject(status_answer(403, "Forbidden"), is_list_of_pods, times=1000)
    async with running(proxy) as manager:
        await failing(team)
        assert await message_of_failure(team) == FAILED["message"]
        lists = len(manager.log_entries("failed_pods_not_read"))
        assert lists >= 1
        await team.touch(manager)
        assert len(manager.log_entries("failed_pods_not_read")) == lists
