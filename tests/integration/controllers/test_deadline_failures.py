"""Deadlines of TrainJobs while requests fail, and while no manager runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    JOB,
    TEST_TIMEOUT,
    Team,
    conditions_of,
)
from tests.support.fault_proxy import FaultProxy, ProxiedRequest, status_answer
from tests.support.managers import FAST, ManagerProcess, manager_process

REASON = "DeadlineExceeded"


def is_deletion(request: ProxiedRequest) -> bool:
    return request.method == "DELETE" and "/jobsets/" in request.path


def is_status_write(request: ProxiedRequest) -> bool:
    return request.method == "PATCH" and request.path.endswith(f"/trainjobs/{JOB}/status")


@asynccontextmanager
async def running(
    proxy: FaultProxy, plane: ControlPlane, *flags: str
) -> AsyncIterator[ManagerProcess]:
    """A manager whose requests pass the proxy."""
    async with manager_process(proxy.kubeconfig, *flags) as manager:
        await manager.wait_ready()
        yield manager


async def wait_until_failed(team: Team) -> Object:
    return await team.wait_for_condition("Failed", REASON)


async def test_condition_is_written_before_the_jobset_is_deleted_and_deletion_is_retried(
    team: Team, proxy: FaultProxy, plane: ControlPlane
) -> None:
    proxy.inject(status_answer(500, "InternalError"), is_deletion, times=3)
    async with running(proxy, plane, "--log-level", "debug") as manager:
        await team.create_runtime()
        await team.create_job(activeDeadlineSeconds=3)
        await team.wait_until_exists("JobSet")
        await wait_until_failed(team)
        await team.wait_until_deleted("JobSet")
        assert proxy.faults_left == 0
        errors = [each["error"] for each in manager.log_entries("reconcile_failed")]
        assert len(errors) == 3
        assert all("cannot delete the JobSet of the TrainJob" in each for each in errors)


async def test_jobset_is_kept_while_the_condition_cannot_be_written(
    team: Team, proxy: FaultProxy, plane: ControlPlane
) -> None:
    async with running(proxy, plane, "--log-level", "debug") as manager:
        await team.create_runtime()
        await team.create_job(activeDeadlineSeconds=3)
        job_set = await team.wait_until_exists("JobSet")
        proxy.inject(status_answer(500, "InternalError"), is_status_write, times=1000)

        async def failed() -> bool:
            return len(manager.log_entries("reconcile_failed")) > 2

        await until(failed, within=TEST_TIMEOUT, what="failed writes of the status")
        assert (await team.get("JobSet"))["metadata"]["uid"] == job_set["metadata"]["uid"]
        proxy.forget_faults()
        await wait_until_failed(team)
        await team.wait_until_deleted("JobSet")


async def test_manager_killed_before_the_deletion_is_continued_by_the_next(
    team: Team, proxy: FaultProxy, plane: ControlPlane
) -> None:
    proxy.inject(status_answer(500, "InternalError"), is_deletion, times=1000)
    await team.create_runtime()
    async with running(proxy, plane, "--log-level", "debug") as manager:
        await team.create_job(activeDeadlineSeconds=3)
        await team.wait_until_exists("JobSet")
        await wait_until_failed(team)
        manager.kill()
    assert await team.find("JobSet") is not None
    proxy.forget_faults()
    async with running(proxy, plane):
        await team.wait_until_deleted("JobSet")


async def test_deadline_that_passes_while_no_manager_runs_is_enforced_at_the_next_start(
    team: Team, proxy: FaultProxy, plane: ControlPlane
) -> None:
    await team.create_runtime()
    async with running(proxy, plane, "--log-level", "debug") as manager:
        await team.create_job(activeDeadlineSeconds=4)
        await team.wait_until_exists("JobSet")
        manager.kill()
    assert conditions_of(await team.get("TrainJob")) == {}
    async with running(proxy, plane):
        await wait_until_failed(team)
        await team.wait_until_deleted("JobSet")


async def test_clock_of_the_manager_that_runs_fast_does_not_fail_a_trainjob_early(
    team: Team, plane: ControlPlane
) -> None:
    program = (*FAST, "20")
    async with manager_process(plane.kubeconfig, program=program) as manager:
        await manager.wait_ready()
        await team.create_runtime()
        job = await team.create_job(activeDeadlineSeconds=5)
        await wait_until_failed(team)
        assert await team.age_of(job) >= 5
        await team.wait_until_deleted("JobSet")
