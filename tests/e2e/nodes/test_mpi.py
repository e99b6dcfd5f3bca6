"""MPI TrainJobs on process nodes: mpirun reaches the other pods over SSH."""

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from environments.mpi import AS_ROOT, IMPLEMENTATIONS, MPIKind, image, mpi_environment
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.progress import Progress
from tests.support.managers import ManagerProcess
from tests.support.mpi.ranks import PROGRAM, all_slots, ranks
from tests.support.objects import replicated_job, runtime
from tests.support.trainjobs import ClusterTeam, Kubectl, ready_manager, summary

pytestmark = pytest.mark.process_nodes

KINDS: tuple[MPIKind, ...] = ("openmpi", "mpich")
SSH_PORT = 22
DEMO_FILES = [
    Path(__file__).parents[3] / "hack" / "demo-mpi" / name
    for name in ("runtime.yaml", "trainjob.yaml")
]
# The variable of the TrainJob that the program prints, and how mpirun passes it to other hosts.
MESSAGE = {"name": "MESSAGE", "value": "learned"}
PASSED_ENV = {"openmpi": ["-x", "MESSAGE"], "mpich": []}

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def environments() -> None:
    """The images of the module."""
    for kind in KINDS:
        await mpi_environment(kind, Progress(sys.stderr))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(
    process_control_plane: ControlPlane, environments: None
) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with ready_manager(process_control_plane) as manager:
        yield manager


def mpi_runtime(kind: MPIKind, *, as_node: bool) -> Object:
    """A runtime whose image has this implementation; its launcher waits for the SSH servers."""
    probe = {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 1}
    node = replicated_job(
        "node", None, image=image(kind), command=["sshd", "-De"], readinessProbe=probe
    )
    env = [{"name": name, "value": value} for name, value in AS_ROOT.items()]
    launcher = replicated_job("launcher", image=image(kind), env=env)
    launcher["dependsOn"] = [{"name": "node", "status": "Ready"}]
    for job in (node, launcher):
        job["template"]["spec"]["backoffLimit"] = 0
        pod = job["template"]["spec"]["template"]["spec"]
        pod["containers"][0]["name"] = "node"
        pod["restartPolicy"] = "Never"
        pod["terminationGracePeriodSeconds"] = 2
    manifest = runtime(
        "mpi",
        jobs=[node, launcher],
        mlPolicy={
            "mpi": {"mpiImplementation": IMPLEMENTATIONS[kind], "runLauncherAsNode": as_node}
        },
    )
    manifest["spec"]["template"]["spec"] |= {
        "network": {"publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]},
    }
    return manifest


async def train(team: ClusterTeam, name: str = "train", **trainer: Any) -> None:
    """Create a TrainJob on the runtime."""
    command = ["mpirun", "python", "-c", PROGRAM]
    await team.create_job(name, "mpi", trainer={"command": command, **trainer})


async def log_of_launcher(kubectl: Kubectl, name: str = "train") -> str:
    """What the TrainJob has printed."""
    selector = (
        f"jobset.sigs.k8s.io/jobset-name={name},jobset.sigs.k8s.io/replicatedjob-name=launcher"
    )
    return await kubectl("logs", f"--selector={selector}", "--tail=-1")


def hosts_of(name: str, nodes: int, *, as_node: bool) -> list[str]:
    """The host names of the nodes."""
    workers = [f"{name}-node-0-{index}" for index in range(nodes - as_node)]
    return [*workers, f"{name}-launcher-0-0"] if as_node else workers


@each_kind
@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize(("nodes", "slots"), [(2, 2), (4, 1)])
async def test_processes_run_in_all_slots_of_all_nodes(
    team: ClusterTeam, kubectl: Kubectl, kind: MPIKind, as_node: bool, nodes: int, slots: int
) -> None:
    await team.create(mpi_runtime(kind, as_node=as_node))
    await train(team, numNodes=nodes, numProcPerNode=slots)
    job = await team.wait_until_ended("train")
    assert summary(job) == {"Complete": "True/AllJobsCompleted"}
    printed = await log_of_launcher(kubectl)
    assert ranks(printed) == all_slots(hosts_of("train", nodes, as_node=as_node), slots), printed


@each_kind
async def test_two_jobs_reach_only_their_own_nodes(
    team: ClusterTeam, kubectl: Kubectl, kind: MPIKind
) -> None:
    await team.create(mpi_runtime(kind, as_node=False))
    for name in ("first", "second"):
        await train(team, name, numNodes=2)
    for name in ("first", "second"):
        await team.wait_until_ended(name)
        printed = await log_of_launcher(kubectl, name)
        assert ranks(printed) == all_slots(hosts_of(name, 2, as_node=False), 1), printed


async def test_model_of_the_demo_learns_on_two_nodes(team: ClusterTeam, kubectl: Kubectl) -> None:
    demo_runtime, demo_job = (yaml.safe_load(file.read_text()) for file in DEMO_FILES)
    await team.create({**demo_runtime, "kind": "TrainingRuntime"})
    spec = demo_job["spec"]
    await team.create_job("demo", demo_runtime["metadata"]["name"], trainer=spec["trainer"])
    assert summary(await team.wait_until_ended("demo")) == {"Complete": "True/AllJobsCompleted"}
    printed = await log_of_launcher(kubectl, "demo")
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", printed)]
    hosts = re.findall(r"^rank \d of 2 on (.+): 2000 points$", printed, re.MULTILINE)
    assert sorted(hosts) == ["demo-launcher-0-0", "demo-node-0-0"], printed
    assert len(losses) > 1, printed
    assert losses == sorted({*losses}, reverse=True), printed


@each_kind
async def test_variables_of_the_trainjob_reach_processes_on_all_nodes(
    team: ClusterTeam, kubectl: Kubectl, kind: MPIKind
) -> None:
    await team.create(mpi_runtime(kind, as_node=False))
    command = ["mpirun", *PASSED_ENV[kind], "sh", "-c", 'echo "$MESSAGE on $(hostname)"']
    await train(team, numNodes=2, command=command, env=[MESSAGE])
    await team.wait_until_ended("train")
    printed = (await log_of_launcher(kubectl)).splitlines()
    assert {f"learned on {host}" for host in hosts_of("train", 2, as_node=False)} <= {*printed}


@each_kind
async def test_exit_code_of_a_process_fails_the_trainjob(team: ClusterTeam, kind: MPIKind) -> None:
    await team.create(mpi_runtime(kind, as_node=False))
    command = ["mpirun", "sh", "-c", "exit 7"]
    await train(team, numNodes=2, command=command)
    await team.wait_until_ended("train", "Failed")
    [pod] = [each for each in await team.pods("train") if "launcher" in each["metadata"]["name"]]
    [status] = pod["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 7
