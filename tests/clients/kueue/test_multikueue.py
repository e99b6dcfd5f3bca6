"""MultiKueue: a TrainJob of one cluster runs on another one, both with Kueue and our manager."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.pytest_plugin import for_session
from kftrainer.devcluster.waiting import until
from tests.clients.kueue.conftest import manager_with_integers, with_kueue
from tests.clients.kueue.queueing import Queueing, kueue_patch, slow
from tests.integration.controllers.team import JOB
from tests.support.kueue import MULTI_KUEUE, multi_kueue
from tests.support.managers import ManagerProcess
from tests.support.trainjobs import END_TO_END_TIMEOUT

pytestmark = pytest.mark.e2e

CHECK = {"admissionChecksStrategy": {"admissionChecks": [{"name": "worker"}]}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def worker_plane(
    pytestconfig: pytest.Config,
    kueue_shape: Shape,
    kueue_programs: Mapping[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ControlPlane]:
    """The cluster that runs the jobs."""
    async for plane in for_session(pytestconfig, kueue_shape):
        async with AsyncExitStack() as stack:
            home = tmp_path_factory.mktemp("worker")
            await stack.enter_async_context(with_kueue(plane, kueue_programs, home / "kueue"))
            await stack.enter_async_context(manager_with_integers(plane, home))
            yield plane


@pytest_asyncio.fixture
async def worker(queueing: Queueing, worker_plane: ControlPlane) -> AsyncIterator[Queueing]:
    """The namespace of the same name on the worker, with a queue."""
    async with worker_plane.client() as api:
        metadata = {"name": queueing.namespace}
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        worker = Queueing(api, queueing.namespace)
        await worker.create_runtimes()
        await worker.create_queue(slow(2))
        for manifest in multi_kueue("worker", worker_plane.kubeconfig.read_text()):
            await queueing.api.apply(manifest)
        yield worker


async def test_job_runs_on_the_worker_only(
    queueing: Queueing, worker: Queueing, manager: ManagerProcess
) -> None:
    await queueing.create_queue(slow(2), **CHECK)
    created = await queueing.queue_job(trainer={"numNodes": 2})
    assert created["spec"]["managedBy"] == MULTI_KUEUE
    await worker.wait_until_running_on("slow", pods=2)
    copied = await worker.get("TrainJob")
    assert copied["spec"]["managedBy"] == "trainer.kubeflow.org/trainjob-controller"
    assert kueue_patch(copied), "the worker's Kueue adds its own entry"

    async def ready() -> bool:
        status = (await queueing.get("TrainJob")).get("status", {})
        return [row["ready"] for row in status.get("jobsStatus", ())] == [1]

    await until(ready, within=END_TO_END_TIMEOUT, what="Kueue copying the status")
    job = await queueing.get("TrainJob")
    assert await queueing.children() == []
    writers = {
        each["manager"]
        for each in job["metadata"]["managedFields"]
        if each.get("subresource") == "status"
    }
    assert writers == {"kueue"}
    await queueing.touch(manager, JOB)
    assert await queueing.children() == []

    await queueing.delete("TrainJob")
    await worker.wait_until_deleted("TrainJob")
    await worker.wait_until_children_deleted(JOB, ["Job", "Pod"])


@pytest.mark.parametrize(("runtime", "condition"), [("short", "Complete"), ("failing", "Failed")])
async def test_end_on_the_worker_ends_the_job(
    queueing: Queueing, worker: Queueing, runtime: str, condition: str
) -> None:
    await queueing.create_queue(slow(2), **CHECK)
    await queueing.queue_job(runtime=runtime)
    await queueing.wait_until_ended(JOB, condition)
    await queueing.wait_for_workload("Finished")
    assert await queueing.children() == []
    await worker.wait_until_deleted("TrainJob")
