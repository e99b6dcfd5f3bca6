"""torchrun on two nodes learns a model through a TrainJob; run by `make test-torch`."""

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import conditions_of
from tests.support.processes import pids_of
from tests.support.torch.training import COMMAND, LEARNED, PROGRAM, Outcome, outcome
from tests.support.trainjobs import ClusterTeam, Kubectl, summary

pytestmark = pytest.mark.process_nodes

SHIPPED = {"name": "torch-distributed"}
ONCE = {"name": "once", "kind": "TrainingRuntime"}
NODES = ("train-node-0-0", "train-node-0-1")
FAILED = {"Failed": "True/FailedJobs"}
JOB_FAILED = (
    "jobset failed due to one or more job failures (first failed job: train-node-0); first failure:"
)
# torchrun waits up to 15 minutes for the other nodes unless this is shorter.
IMPATIENT = [{"name": "PET_RDZV_CONF", "value": "timeout=5"}]
ENDLESS = [{"name": "STEPS", "value": "1000000"}]
WITHIN = 60.0


async def train(team: ClusterTeam, runtime: Object, **trainer: Any) -> None:
    """Create a TrainJob with two processes on each of two nodes."""
    two = {"numNodes": 2, "numProcPerNode": 2, "command": [*COMMAND]}
    await team.create_job("train", runtimeRef=runtime, trainer={**two, **trainer})


async def pods_of(team: ClusterTeam) -> dict[str, Object]:
    """The pods of the TrainJob by hostname."""
    return {each["spec"]["hostname"]: each for each in await team.pods("train")}


async def followed_log(team: ClusterTeam, kubectl: Kubectl, host: str) -> str:
    """Follow the log of a node to its end; its pod may be deleted when the TrainJob fails."""

    async def running() -> str | None:
        pod = (await pods_of(team)).get(host, {"status": {}})
        return pod["metadata"]["name"] if pod["status"].get("phase") == "Running" else None

    name = await until(running, within=WITHIN, what=f"{host} running")
    return await kubectl("logs", "--follow", name)


def first_failure(job: Object) -> str:
    """The first failure in the message of the condition Failed; pods are shown as hostnames."""
    message: str = conditions_of(job)["Failed"]["message"]
    assert message.startswith(JOB_FAILED), message
    return re.sub(r"(train-node-0-\d)-\w{5}\b", r"\1", message.removeprefix(JOB_FAILED).strip())


def processes_of(host: str, marker: str) -> Sequence[int]:
    """The processes of torchrun on a node whose command lines contain the marker."""
    return [
        pid
        for pid, command in pids_of(marker)
        if "torchrun" in command
        and f"HOSTNAME={host}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ]


async def test_four_ranks_on_two_nodes_learn_the_same_model(
    team: ClusterTeam, kubectl: Kubectl
) -> None:
    await train(team, SHIPPED)
    job = await team.wait_until_ended("train")
    assert summary(job) == {"Complete": "True/AllJobsCompleted"}

    printed = await kubectl("logs", "--selector=jobset.sigs.k8s.io/jobset-name=train", "--tail=-1")
    learned = outcome(printed)
    assert learned == Outcome(
        hosts={0: NODES[0], 1: NODES[0], 2: NODES[1], 3: NODES[1]},
        world_sizes=frozenset({4}),
        losses=learned.losses,
        weights=frozenset({LEARNED}),
        digests=frozenset([*learned.digests][:1]),
    )
    assert all(first > 1 and last < 0.001 for first, last in learned.losses), printed


@pytest.mark.parametrize(
    ("arguments", "network", "address"),
    [
        (["--master-addr=other-node-0-0.other"], {}, "other-node-0-0.other"),
        ([], {"enableDNSHostnames": False}, f"{NODES[0]}.train"),
    ],
    ids=["of the command", "without DNS"],
)
async def test_wrong_master_address_is_in_the_message_of_the_trainjob(
    team: ClusterTeam,
    kubectl: Kubectl,
    once: Object,
    arguments: list[str],
    network: Object,
    address: str,
) -> None:
    once["spec"]["template"]["spec"]["network"] = network
    await team.create(once)
    await train(team, ONCE, command=[COMMAND[0], *arguments, *COMMAND[1:]], env=IMPATIENT)
    async with asyncio.TaskGroup() as tasks:
        log = tasks.create_task(followed_log(team, kubectl, NODES[1]))
        job = await team.wait_until_ended("train", "Failed")
    assert summary(job) == FAILED
    assert re.fullmatch(
        r"pod train-node-0-[01] of replicated job node, "
        r"container node: exit code 1: torch\.distributed\.DistNetworkError: The client socket has "
        rf"timed out after 5000ms while trying to connect to \({re.escape(address)}, 29500\)\.",
        first_failure(job),
    )
    unknown = f"({address}, 29500) cannot be retrieved (gai error: -2 - Name or service not known)"
    assert unknown in log.result()


async def test_node_that_cannot_start_is_missing_at_the_rendezvous(
    team: ClusterTeam, once: Object
) -> None:
    await team.create(once)
    # 10 s on the first node and 110 s on the others, so that the first is the one that fails.
    script = 'exec torchrun --rdzv-conf "timeout=${PET_NODE_RANK}10" "$@"'
    command = ["sh", "-c", script, *COMMAND]
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    await train(team, ONCE, numNodes=3, resourcesPerNode=gpu, command=command)

    async def scheduled() -> dict[str, str] | None:
        found = {
            host: each.get("reason") or each["status"]
            for host, pod in (await pods_of(team)).items()
            for each in pod["status"].get("conditions", ())
            if each["type"] == "PodScheduled"
        }
        return found if len(found) == 3 else None

    found = await until(scheduled, within=WITHIN, what="three pods being scheduled or not")
    assert sorted(found.values()) == ["True", "True", "Unschedulable"]

    job = await team.wait_until_ended("train", "Failed")
    assert summary(job) == FAILED
    assert first_failure(job) == (
        f"pod {NODES[0]} of replicated job node, container node: "
        "exit code 1: torch.distributed.DistStoreError: Timed out after 11 seconds waiting for "
        "clients. 2/3 clients joined."
    )


async def test_lost_node_fails_the_trainjob_and_the_other_ranks(
    team: ClusterTeam, kubectl: Kubectl, once: Object, namespace: str
) -> None:
    await team.create(once)
    command = [*COMMAND[:-1], f"{PROGRAM}# {namespace}\n"]
    await train(team, ONCE, command=command, env=ENDLESS)
    await team.wait_until_running("train", 2)
    lost = (await pods_of(team))[NODES[1]]["metadata"]["name"]

    async def training() -> bool:
        printed = await kubectl("logs", lost)
        return all(f"rank {rank} is training" in printed for rank in (2, 3))

    async with asyncio.TaskGroup() as tasks:
        log = tasks.create_task(followed_log(team, kubectl, NODES[0]))
        await until(training, within=WITHIN, what=f"training on {lost}")
        [pid] = processes_of(NODES[1], namespace)
        os.kill(pid, signal.SIGKILL)
        job = await team.wait_until_ended("train", "Failed")
    assert summary(job) == FAILED
    assert re.fullmatch(
        rf"pod {NODES[1]} of replicated job node, "
        r"container node: exit code 137: rank [23] is training",
        first_failure(job),
    )
    assert re.search(r"RuntimeError: .*Connection (reset|closed) by peer", log.result())
