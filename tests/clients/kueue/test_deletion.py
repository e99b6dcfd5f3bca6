"""TrainJobs that are deleted leave neither Workloads nor reservations."""

from collections.abc import Awaitable, Callable

import pytest

from tests.clients.kueue.queueing import Queueing, slow
from tests.clients.kueue.test_placement import PREEMPTION
from tests.integration.controllers.team import JOB

pytestmark = pytest.mark.e2e


async def queued(queueing: Queueing) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job(trainer={"numNodes": 2})
    await queueing.wait_until_queued()


async def admitted(queueing: Queueing) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job()
    await queueing.wait_for_workload("Admitted")


async def running(queueing: Queueing) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job()
    await queueing.wait_until_running_on("slow")


async def preempted(queueing: Queueing) -> None:
    await queueing.create_queue(slow(1), **PREEMPTION)
    await queueing.queue_job()
    await queueing.wait_until_running_on("slow")
    await queueing.queue_job("high", "short", priority="high")
    await queueing.wait_for_workload("Evicted")


async def finished(queueing: Queueing) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job(runtime="short")
    await queueing.wait_for_workload("Finished")


async def failed(queueing: Queueing) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job(runtime="failing")
    await queueing.wait_for_workload("Finished")


@pytest.mark.parametrize("state", [queued, admitted, running, preempted, finished, failed])
async def test_deleted_job_leaves_no_reservation(
    queueing: Queueing, state: Callable[[Queueing], Awaitable[None]]
) -> None:
    await state(queueing)
    await queueing.delete("TrainJob")
    await queueing.wait_until_deleted("TrainJob")
    await queueing.wait_until_deleted("JobSet")
    await queueing.wait_until_children_deleted(JOB, ["Job", "Pod"])
    await queueing.wait_until_workload_deleted()
    await queueing.queue_job("next", "short")
    await queueing.wait_until_ended("next")
    await queueing.wait_until_used(0)
