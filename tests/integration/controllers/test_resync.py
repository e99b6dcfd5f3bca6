"""What planning reads triggers it; and what is settled is reconciled again without any write."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kftrainer.api import names
from kftrainer.api.configuration import Configuration
from kftrainer.cli.manager_setup.assembly import Assembly, ManagerOptions
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.runtime.framework.plugin_loader import load_framework
from tests.integration.controllers.team import JOB, TEST_TIMEOUT, Team
from tests.support.managers import ManagerProcess
from tests.support.objects import replicated_job
from tests.support.objects import runtime as runtime_of

CONFIGURATION = Configuration.parse(
    {
        "apiVersion": names.CONFIG_API_VERSION,
        "kind": names.CONFIGURATION,
        "webhook": {"port": 0},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
        "leaderElection": {"leaderElect": False},
    }
)
MODEL = "trainer.kubeflow.org/torchtune-model"
PERIOD = 1.0


def torchtune_without_a_model() -> Object:
    """A runtime that does not specify the model."""
    node = replicated_job("node", command=["tune", "run", "full_finetune_distributed"])
    return runtime_of("tune", jobs=[node])


async def test_changed_runtime_annotation_that_planning_reads_triggers_reconcile(
    team: Team, manager: ManagerProcess
) -> None:
    await team.create(torchtune_without_a_model())
    await team.create_job(runtime="tune", trainer={"command": ["tune", "run"]})
    await team.wait_for_condition("Blocked", "InvalidTrainJob")
    annotations = {MODEL: "llama3_2/1B"}
    await team.patch("TrainingRuntime", "tune", {"metadata": {"annotations": annotations}})
    await team.wait_until_exists("JobSet")
    await team.wait_until_condition_removed("Blocked")


class Watched:
    """A manager in this process, of which writes and reconciles are counted."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.writes = 0

    def observe(self, code: str, method: str, host: str, seconds: float) -> None:
        self.writes += method != "GET"

    def reconciles(self) -> float:
        labels = {"controller": "trainjob_controller", "result": "success"}
        name = "controller_runtime_reconcile_total"
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def managing(plane: ControlPlane, namespace: str) -> AsyncIterator[Watched]:
    watched, stop = Watched(), asyncio.Event()
    connection = await load_connection(plane.kubeconfig)
    async with (
        HttpTransport(connection, user_agent="tests", on_response=watched.observe) as transport,
        asyncio.TaskGroup() as tasks,
    ):
        assembly = Assembly(
            CONFIGURATION,
            load_framework(),
            ManagerOptions(namespaces=(namespace,)),
            transport,
            watched.metrics,
            resync_period=PERIOD,
        )
        tasks.create_task(assembly.manager().run(stop))
        yield watched
        stop.set()


async def test_unchanged_job_is_reconciled_again_without_a_write(
    team: Team, plane: ControlPlane
) -> None:
    await team.create_runtime("gang")
    await team.create_job(runtime="gang")
    async with managing(plane, team.namespace) as manager:
        await team.wait_until_exists("JobSet")
        await team.wait_until_in_use("gang")

        async def again(times: float) -> None:
            async def reconciled() -> bool:
                return manager.reconciles() >= times

            await until(reconciled, within=TEST_TIMEOUT, what=f"{times} reconciles of {JOB}")

        await again(manager.reconciles() + 2)  # what its creation has caused is over
        before = manager.writes
        await again(manager.reconciles() + 3)
        assert manager.writes == before
