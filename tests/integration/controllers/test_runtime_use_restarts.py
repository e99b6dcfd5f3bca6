"""How often runtimes are written, and that no wake-up is lost while the manager is away."""

import asyncio
from collections.abc import AsyncIterator
from itertools import permutations
from pathlib import Path

import pytest

from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.burst import some_at_a_time
from tests.integration.controllers.team import TEST_TIMEOUT, Team, finalizers
from tests.support.fault_proxy import (
    Cut,
    Fault,
    FaultProxy,
    ProxiedRequest,
    running_proxy,
    status_answer,
)
from tests.support.managers import manager_process

MANY = 200


@pytest.fixture
async def proxy(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with running_proxy(plane, tmp_path) as proxy:
        yield proxy


STEPS = ("delete the runtime", "delete one", "delete two")


async def do(step: str, team: Team) -> None:
    if step == "delete the runtime":
        await team.delete("TrainingRuntime", "torch")
    else:
        await team.delete("TrainJob", step.removeprefix("delete "))


async def test_the_last_of_all_opens_the_door_in_every_order_with_the_manager_up_or_down(
    team: Team, plane: ControlPlane
) -> None:
    """Each order of events in a namespace of its own; the manager is away after the first steps."""
    orders = [(order, away) for order in permutations(STEPS) for away in range(len(STEPS) + 1)]
    teams = [Team(team.api, await plane.create_namespace(team.api)) for _ in orders]
    async with asyncio.TaskGroup() as creations:
        for each in teams:
            creations.create_task(_create_and_delete(each))
    flags = [flag for each in teams for flag in ("--namespace", each.namespace)]
    async with manager_process(plane.kubeconfig, *flags) as manager:
        await manager.wait_ready()
        for each in teams:
            await each.wait_until_in_use()
        for (order, away), each in zip(orders, teams, strict=True):
            for step in order[:away]:
                await do(step, each)
        manager.kill()
        for (order, away), each in zip(orders, teams, strict=True):
            for step in order[away:]:
                await do(step, each)
        manager.start()
        await manager.wait_ready()
        for each in teams:
            await each.wait_until_deleted("TrainingRuntime", "torch")


async def _create_and_delete(team: Team) -> None:
    await team.create_runtime()
    for name in ("one", "two"):
        await team.create_job(name)


async def test_finalizer_of_a_runtime_with_many_jobs_takes_two_writes(
    team: Team, proxy: FaultProxy, plane: ControlPlane
) -> None:
    for name in ("torch", "unused"):
        await team.create_runtime(name)
    async with manager_process(proxy.kubeconfig, "--namespace", team.namespace) as manager:
        await manager.wait_ready()
        await some_at_a_time(
            team.create_job(f"job-{number}", managedBy="kueue.x-k8s.io/multikueue")
            for number in range(MANY)
        )
        await team.wait_until_in_use()
        await team.delete("TrainingRuntime", "torch")
        path = team.path("TrainJob")
        await team.api.request("DELETE", path)
        await team.wait_until_deleted("TrainingRuntime", "torch")
        writes = [each for each in proxy.requests if each.is_write]
        assert [each.path for each in writes] == [team.path("TrainingRuntime", "torch")] * 2
        assert finalizers(await team.get("TrainingRuntime", "unused")) == []


def is_of_runtimes(request: ProxiedRequest) -> bool:
    return "/trainingruntimes" in request.path


def is_write_of_runtimes(request: ProxiedRequest) -> bool:
    return request.method == "PATCH" and is_of_runtimes(request)


async def test_a_finalizer_that_the_cache_does_not_show_yet_is_not_written_again(
    team: Team, proxy: FaultProxy
) -> None:
    await team.create_runtime()
    flags = ("--namespace", team.namespace, "--log-level", "debug")
    async with manager_process(proxy.kubeconfig, *flags) as manager:
        await manager.wait_ready()
        proxy.stall_all(lambda each: each.is_watch and is_of_runtimes(each))
        for number in range(5):
            await team.create_job(f"job-{number}")
            await team.wait_until_reconciled(manager, f"job-{number}", 0)
        await team.wait_until_in_use()

        async def is_reconciled() -> bool:
            done = manager.log_entries("reconcile_succeeded")
            times = [each for each in done if each["controller"] == "trainingruntime_controller"]
            return len(times) >= 3

        await until(is_reconciled, within=TEST_TIMEOUT, what="another reconcile of the runtime")
        assert [each.method for each in proxy.requests if is_write_of_runtimes(each)] == ["PATCH"]


@pytest.mark.parametrize(
    "fault", [Cut(0, reset=True), status_answer(500, "InternalError")], ids=["lost", "error"]
)
async def test_a_finalizer_that_could_not_be_written_is_tried_again(
    fault: Fault, team: Team, proxy: FaultProxy
) -> None:
    await team.create_runtime()
    proxy.inject(fault, is_write_of_runtimes)
    async with manager_process(proxy.kubeconfig, "--namespace", team.namespace):
        await team.create_job()
        await team.wait_until_in_use()
        proxy.inject(fault, is_write_of_runtimes)
        await team.delete("TrainingRuntime", "torch")
        await team.delete("TrainJob")
        await team.wait_until_deleted("TrainingRuntime", "torch")
    assert proxy.faults_left == 0
