"""Kueue admits, sizes and finishes TrainJobs."""

import pytest

from kftrainer.devcluster.waiting import until
from tests.clients.kueue.queueing import STEP, Queueing, fast, kueue_patch, slow
from tests.integration.controllers.team import JOB, conditions_of
from tests.support.trainjobs import END_TO_END_TIMEOUT

pytestmark = pytest.mark.e2e


async def test_job_over_quota_waits_with_a_suspended_job_set(queueing: Queueing) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job(runtime="short", trainer={"numNodes": 2})
    job_set = await queueing.wait_until_queued()
    job = await queueing.get("TrainJob")
    assert (job["spec"]["suspend"], job_set["spec"]["suspend"]) == (True, True)
    assert await queueing.pods(JOB) == []
    # The JobSet is not queued on its own: its owner is.
    workload = (await queueing.workloads())[JOB]
    assert [owner["kind"] for owner in workload["metadata"]["ownerReferences"]] == ["TrainJob"]

    await queueing.set_quota(slow(2))
    await queueing.wait_until_ended(JOB)
    finished = await queueing.wait_for_workload("Finished")
    assert conditions_of(finished)["Finished"]["reason"] == "Succeeded"


async def test_empty_entry_of_kueue_is_stored_unchanged(queueing: Queueing) -> None:
    """Kueue dereferences the objects in it without checks."""
    await queueing.create_queue(slow(1))
    created = await queueing.queue_job(trainer={"numNodes": 2})
    await queueing.wait_until_queued()
    for job in (created, await queueing.get("TrainJob")):
        assert (kueue_patch(job) or {})["trainingRuntimeSpec"] == {"template": {"spec": {}}}


async def test_running_job_has_ready_pods(queueing: Queueing) -> None:
    await queueing.create_queue(slow(2))
    await queueing.queue_job(trainer={"numNodes": 2})
    await queueing.wait_until_running_on("slow", pods=2)
    await queueing.wait_for_workload("PodsReady")
    assert await queueing.used_cpus() == "2"


async def test_completed_job_releases_its_quota(queueing: Queueing) -> None:
    await queueing.create_queue(fast(1))
    await queueing.queue_job("first", "short")
    await queueing.queue_job("second", "short")
    await queueing.wait_until_ended("first")
    await queueing.wait_until_ended("second")
    await queueing.wait_until_used(0)


async def test_failed_job_releases_its_quota(queueing: Queueing) -> None:
    await queueing.create_queue(slow(1))
    await queueing.queue_job(runtime="failing")
    await queueing.wait_until_ended(JOB, "Failed")
    finished = await queueing.wait_for_workload("Finished")
    assert conditions_of(finished)["Finished"]["reason"] == "Failed"
    await queueing.wait_until_used(0)


async def test_finished_initializer_releases_its_quota(queueing: Queueing) -> None:
    await queueing.create_queue(slow(2))
    await queueing.queue_job(runtime="initialized")
    await queueing.wait_until_exists("JobSet")
    await queueing.queue_job("next")
    await queueing.wait_until_running_on("slow", "next")
    workload = (await queueing.workloads())[JOB]
    assert workload["status"]["reclaimablePods"] == [{"name": STEP, "count": 1}]
    await queueing.wait_until_used(2)
    assert not conditions_of(await queueing.get("TrainJob")).keys() & {"Complete", "Failed"}


async def test_mpi_job_of_one_node_reserves_what_it_runs(queueing: Queueing) -> None:
    """Kueue plans a worker besides the launcher; the worker job has no pods and is reclaimed."""
    await queueing.create_queue(slow(2))
    await queueing.queue_job(runtime="mpi", trainer={"numNodes": 1})

    async def launched() -> bool:
        return await queueing.pod_counts(JOB) == {"launcher": 1}

    await until(launched, within=END_TO_END_TIMEOUT, what="the launcher being created")
    await queueing.wait_for_workload("PodsReady")
    await queueing.wait_until_used(1)
    workload = (await queueing.workloads())[JOB]
    assert workload["status"]["reclaimablePods"] == [{"name": "node", "count": 1}]


async def test_mpi_job_of_two_nodes_reserves_what_it_runs(queueing: Queueing) -> None:
    await queueing.create_queue(slow(2))
    await queueing.queue_job(runtime="mpi", trainer={"numNodes": 2})

    async def launched() -> bool:
        return await queueing.pod_counts(JOB) == {"launcher": 1, "node": 1}

    await until(launched, within=END_TO_END_TIMEOUT, what="launcher and worker being created")
    await queueing.wait_for_workload("PodsReady")
    await queueing.wait_until_used(2)
