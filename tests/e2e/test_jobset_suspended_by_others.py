"""JobSets of TrainJobs that another controller suspends and resumes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.api.resources import JOB_SETS
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import NotReadyError
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.watch import Upserted
from kftrainer.kube.objects.resource import key_of
from tests.support.informers import connected
from tests.support.managers import ManagerProcess
from tests.support.objects import runtime
from tests.support.trainjobs import COMPLETES_LATE, ClusterTeam, pods_with
from tests.support.webhooks import admitting_manager

LASTING: Mapping[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)}
QUEUE = {"kueue.x-k8s.io/queue-name": "team"}
WINDOW = 5.0  # seconds
# Without a back-off there are some 25 in the window; with one that doubles from 1 s, three.
RESUMES = 6


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with admitting_manager(full_control_plane, "--log-level", "debug") as manager:
        yield manager


@dataclass(slots=True)
class SuspendingQueue:
    """Suspends a JobSet whenever it is resumed, and counts how often."""

    # Generations of the JobSet that were not suspended: its status changes without a new one.
    _resumed_as: set[int] = field(default_factory=set)

    @property
    def resumes(self) -> int:
        """How often the JobSet was resumed."""
        return len(self._resumed_as)

    async def run(self, client: Client, namespace: str) -> None:
        """Suspend the JobSets of the namespace until cancelled."""
        async with client.watch(
            JOB_SETS, namespace=namespace, send_initial_events=True, timeout_seconds=300
        ) as events:
            async for event in events:
                if isinstance(event, Upserted) and not event.manifest["spec"].get("suspend"):
                    self._resumed_as.add(event.manifest["metadata"]["generation"])
                    suspended = {"spec": {"suspend": True}}
                    await client.merge_patch(JOB_SETS, key_of(event.manifest), suspended)


@asynccontextmanager
async def suspending_queue(plane: ControlPlane, namespace: str) -> AsyncIterator[SuspendingQueue]:
    """A queue that admits nothing, for the length of the block."""
    queue = SuspendingQueue()
    async with connected(plane.kubeconfig) as client, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(queue.run(client, namespace))
        yield queue
        running.cancel()


async def test_jobset_that_another_controller_keeps_suspending_is_resumed_with_back_off(
    team: ClusterTeam, control_plane: ControlPlane
) -> None:
    """Row 7: two controllers that disagree must not write as fast as they can."""
    await team.create(runtime("torch"))
    await team.create_job(**LASTING)
    await team.wait_until_running("train", 1)
    async with suspending_queue(control_plane, team.namespace) as queue:

        async def too_many() -> bool:
            return queue.resumes > RESUMES

        with pytest.raises(NotReadyError):
            await until(too_many, within=WINDOW, what=f"more than {RESUMES} resumes")
        assert queue.resumes > 1, "the JobSet was never resumed"
    # The other client no longer suspends it.
    await team.wait_until_running("train", 1)


async def suspend_job_set(team: ClusterTeam, *, suspend: bool) -> None:
    """Suspend or resume the JobSet as its queue does."""
    await team.patch("JobSet", "train", {"spec": {"suspend": suspend}})


async def check_suspension_is_kept(
    team: ClusterTeam, manager: ManagerProcess, *, suspend: bool
) -> None:
    """Fail unless the manager has reconciled the TrainJob and not changed the suspension."""
    await team.touch(manager)
    await team.touch(manager)
    assert (await team.get("JobSet"))["spec"]["suspend"] is suspend


async def test_jobset_of_a_queue_of_its_own_is_neither_suspended_nor_resumed(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Row 7: the queue label is on the JobSet, and the TrainJob itself is not queued."""
    await team.create(runtime("torch"))
    await team.create_job(labels=QUEUE, **LASTING)
    await team.wait_until_running("train", 1)
    assert (await team.get("JobSet"))["metadata"]["labels"] == QUEUE

    await suspend_job_set(team, suspend=True)  # preempted
    await team.wait_until_children_deleted("train", ["Pod"])
    await check_suspension_is_kept(team, manager, suspend=True)
    await team.wait_for_condition("Suspended", "JobSetSuspended")

    await suspend_job_set(team, suspend=False)  # admitted once more
    await team.wait_until_running("train", 1)
    await check_suspension_is_kept(team, manager, suspend=False)
    await team.wait_for_condition("Suspended", "Resumed", "False")


async def test_suspended_trainjob_suspends_its_jobset_also_with_a_queue_of_its_own(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Suspending a TrainJob stops its pods; when they start again is up to the queue."""
    await team.create(runtime("torch"))
    await team.create_job(labels=QUEUE, **LASTING)
    await team.wait_until_running("train", 1)

    await team.suspend(suspend=True)
    await team.wait_until_children_deleted("train", ["Pod"])
    await team.wait_for_condition("Suspended", "Suspended")

    await team.suspend(suspend=False)
    await check_suspension_is_kept(team, manager, suspend=True)
    await suspend_job_set(team, suspend=False)
    await team.wait_until_running("train", 1)
    await team.wait_for_condition("Suspended", "Resumed", "False")
