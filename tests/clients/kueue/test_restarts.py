"""The manager is killed while Kueue admits, evicts or finishes a TrainJob, and started again."""

import pytest

from kftrainer.devcluster.waiting import until
from tests.clients.kueue.queueing import STEP, Queueing, fast, slow
from tests.clients.kueue.test_placement import PREEMPTION
from tests.integration.controllers.team import JOB, conditions_of
from tests.support.managers import ManagerProcess
from tests.support.trainjobs import END_TO_END_TIMEOUT

pytestmark = pytest.mark.e2e


async def restart(manager: ManagerProcess) -> None:
    """Start it after it was killed."""
    manager.start()
    await manager.wait_ready()


async def wait_for_phase(queueing: Queueing, *phases: str, job: str = JOB) -> None:
    """Wait until the pods of the TrainJob are in these phases."""

    async def reached() -> bool:
        return tuple(each["status"].get("phase") for each in await queueing.pods(job)) == phases

    await until(reached, within=END_TO_END_TIMEOUT, what=f"the pods of {job} being {phases}")


async def test_quota_becomes_free_during_the_restart(
    queueing: Queueing, manager: ManagerProcess
) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job(trainer={"numNodes": 2})
    job_set = await queueing.wait_until_queued()
    manager.kill()
    await queueing.set_quota(slow(2))
    await queueing.wait_for_workload("QuotaReserved")
    await restart(manager)
    await queueing.wait_until_running_on("slow", pods=2)
    await queueing.wait_for_workload("PodsReady")
    assert (await queueing.get("JobSet"))["metadata"]["uid"] == job_set["metadata"]["uid"]


async def test_job_is_admitted_before_the_restart(
    queueing: Queueing, manager: ManagerProcess
) -> None:
    await queueing.create_queue(fast(1))
    await queueing.queue_job()
    await queueing.wait_for_workload("Admitted")
    manager.kill()
    await restart(manager)
    await queueing.wait_until_running_on("fast")
    await queueing.wait_for_workload("PodsReady")


async def test_job_is_preempted_during_the_restart(
    queueing: Queueing, manager: ManagerProcess
) -> None:
    await queueing.create_queue(fast(1), slow(1), **PREEMPTION)
    await queueing.queue_job("low")
    await queueing.wait_until_running_on("fast", "low")
    await queueing.queue_job("high", priority="high")

    async def suspended() -> bool:
        return bool((await queueing.get("TrainJob", "low"))["spec"]["suspend"])

    await until(suspended, within=END_TO_END_TIMEOUT, what="Kueue suspending the job")
    manager.kill()
    await restart(manager)
    await queueing.wait_until_running_on("fast", "high")
    await queueing.wait_until_running_on("slow", "low")


@pytest.mark.parametrize(
    ("runtime", "phase", "reason"),
    [("short", "Succeeded", "Succeeded"), ("failing", "Failed", "Failed")],
)
async def test_job_ends_during_the_restart(
    queueing: Queueing, manager: ManagerProcess, runtime: str, phase: str, reason: str
) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job(runtime=runtime)

    async def started() -> bool:
        return not (await queueing.get("JobSet"))["spec"]["suspend"]

    await queueing.wait_until_exists("JobSet")
    await until(started, within=END_TO_END_TIMEOUT, what="the JobSet being resumed")
    manager.kill()
    await wait_for_phase(queueing, phase)
    await restart(manager)
    finished = await queueing.wait_for_workload("Finished")
    assert conditions_of(finished)["Finished"]["reason"] == reason
    await queueing.wait_until_used(0)


async def test_initializer_ends_during_the_restart(
    queueing: Queueing, manager: ManagerProcess
) -> None:
    await queueing.create_queue(slow(2))
    await queueing.queue_job(runtime="initialized")

    async def initializing() -> bool:
        return await queueing.pod_counts(JOB) == {STEP: 1}

    await until(initializing, within=END_TO_END_TIMEOUT, what="the initializer running")
    manager.kill()

    async def training() -> bool:
        return await queueing.pod_counts(JOB) == {STEP: 1, "node": 1}

    await until(training, within=END_TO_END_TIMEOUT, what="the trainer running")
    await restart(manager)
    await queueing.wait_until_used(1)


async def test_job_is_deleted_during_the_restart(
    queueing: Queueing, manager: ManagerProcess
) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job()
    await queueing.wait_until_running_on("slow")
    manager.kill()
    await queueing.delete("TrainJob")
    await restart(manager)
    await queueing.wait_until_deleted("JobSet")
    await queueing.wait_until_workload_deleted()
    await queueing.wait_until_used(0)
