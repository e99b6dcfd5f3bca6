"""Large TrainJobs: reconciled as any other, and not held in memory."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import (
    COMPLETED,
    JOB,
    MERGE,
    ROW,
    TEST_TIMEOUT,
    Team,
    conditions_of,
    has_reconciled,
    reconciles,
)
from tests.integration.controllers.test_unreadable import CRD
from tests.support.managers import ManagerProcess, manager_process
from tests.support.objects import train_job

KIB, MIB = 2**10, 2**20
LARGE = 40 * KIB  # more than the cache holds of an object, and far less than a limit
HUGE = 1_000_000
MANY = 60


def large_job(name: str = JOB, size: int = LARGE, **spec: object) -> Object:
    reference = {"name": "torch", "kind": "TrainingRuntime"}
    # No field is long: the API's own limits are about single ones.
    args = ["x" * (size // 32)] * 32
    return train_job(name, runtimeRef=reference, trainer={"args": args}, **spec)


async def wait_until_settled(team: Team, manager: ManagerProcess, name: str = JOB) -> Object:
    """Wait until the manager has reconciled the current TrainJob; return it."""

    async def settled() -> Object | None:
        job = await team.get("TrainJob", name)
        return job if has_reconciled(manager, job) else None

    return await until(settled, within=TEST_TIMEOUT, what=f"{name} being reconciled")


async def test_large_trainjob_runs_to_completion_like_a_small_one(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create(large_job(suspend=True))
    await team.wait_for_condition("Suspended", "Suspended")
    args = (await team.get("TrainJob"))["spec"]["trainer"]["args"]
    await team.suspend(suspend=False)
    await team.wait_for_condition("Suspended", "Resumed", "False")
    [job] = (await team.wait_until_exists("JobSet"))["spec"]["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == args
    await team.set_jobset_status(rows=[ROW])
    await team.wait_for_jobs_status(ROW)
    await team.set_jobset_status(COMPLETED, rows=[ROW])
    job = await team.wait_for_condition("Complete", "AllJobsCompleted")
    assert "Blocked" not in conditions_of(job)


async def test_unchanged_large_trainjob_causes_no_writes_and_no_further_reconciles(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    await team.create(large_job())
    await team.wait_until_exists("JobSet")
    await team.set_jobset_status(rows=[ROW])
    job = await team.wait_for_jobs_status(ROW)
    job_set = await team.get("JobSet")
    before = reconciles(manager, team.namespace)
    patched = await team.patch("TrainJob", JOB, {"metadata": {"annotations": {"poke": "1"}}})
    await wait_until_settled(team, manager)
    assert (await team.get("JobSet"))["metadata"] == job_set["metadata"]
    after = await team.get("TrainJob")
    assert after["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"]
    assert after["status"] == job["status"]
    # One for the change, and perhaps some that were due before: it is not reconciled for ever.
    assert reconciles(manager, team.namespace) - before < 5


async def test_trainjob_on_a_large_runtime_gets_its_jobset(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create_runtime()
    note = {"metadata": {"annotations": {"example.com/note": "x" * LARGE}}}
    await team.patch("TrainingRuntime", "torch", note)
    await team.create_job()
    await team.wait_until_exists("JobSet")
    assert conditions_of(await wait_until_settled(team, manager)) == {}


@asynccontextmanager
async def any_schema(api: ApiClient) -> AsyncIterator[None]:
    """Serve TrainJobs for a while without a schema of their spec."""
    before = (await api.get(CRD))["spec"]["versions"]
    changed = (await api.get(CRD))["spec"]["versions"]
    properties = changed[0]["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await api.request("PATCH", CRD, body={"spec": {"versions": changed}}, content_type=MERGE)
    try:
        yield
    finally:
        await api.request("PATCH", CRD, body={"spec": {"versions": before}}, content_type=MERGE)


def memory_of(manager: ManagerProcess) -> int:
    """Return the bytes that the manager has in memory; it is the child of its wrapper."""
    wrapper = Path("/proc") / str(manager.pid)
    [pid] = (wrapper / "task" / wrapper.name / "children").read_text().split()
    [kib] = re.findall(r"VmRSS:\s+(\d+) kB", (Path("/proc") / pid / "status").read_text())
    return int(kib) * KIB


@pytest.fixture
async def stored(team: Team) -> AsyncIterator[None]:
    """Suspended TrainJobs with more than a mebibyte of arguments each."""
    await team.create_runtime()

    async def create(number: int) -> Object | None:
        job = large_job(f"huge-{number}", HUGE, suspend=True)
        try:
            return await team.create(job)
        except ApiError:  # the API server serves the new schema a moment later
            return None

    async with any_schema(team.api):
        for number in range(MANY):
            await until(partial(create, number), within=TEST_TIMEOUT, what="a huge TrainJob")
    yield
    for kind in ("TrainJob", "JobSet"):
        await team.api.request("DELETE", team.path(kind))


async def test_manager_does_not_hold_huge_trainjobs_in_memory(
    team: Team, plane: ControlPlane, stored: None
) -> None:
    empty = await plane.create_namespace(team.api)
    async with manager_process(plane.kubeconfig, "--namespace", empty) as manager:
        await manager.wait_ready()
        baseline = memory_of(manager)

    async def all_are_reconciled() -> bool:
        jobs = [each["name"] for each in manager.log_entries("trainjob_read")]
        return len({*jobs}) == MANY + 1

    await team.create_job("small")
    debug = ("--namespace", team.namespace, "--log-level", "debug")
    for attempt in ("at first", "after a restart"):
        async with manager_process(plane.kubeconfig, *debug) as manager:
            await manager.wait_ready()
            await team.wait_until_exists("JobSet", "small")
            await until(
                all_are_reconciled, within=TEST_TIMEOUT, what=f"all being reconciled {attempt}"
            )
            grown = memory_of(manager) - baseline
        # They, and the JobSets that they have or would have, are several times as large.
        assert grown < 0.75 * MANY * HUGE, f"{grown // MIB} MiB {attempt}"
