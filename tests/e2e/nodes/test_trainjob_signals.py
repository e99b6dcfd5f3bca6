"""SIGTERM and SIGKILL reach the processes of TrainJobs that are suspended, deleted or preempted."""

from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from tests.e2e.nodes.conftest import ACCELERATOR
from tests.support.process_trainjobs import (
    UNTIL_TERMINATED,
    SharedFolder,
    log_of,
    plain_runtime,
    pod_of,
    step,
    train,
)
from tests.support.trainjobs import ClusterTeam, Kubectl, summary

pytestmark = pytest.mark.process_nodes

HOSTS = ["train-node-0-0", "train-node-0-1"]
# Only SIGKILL ends it and its child.
IGNORES_SIGTERM = """
    (while :; do sleep 0.05; done) &
    trap 'echo $HOSTNAME >> /shared/terminated' TERM
    echo $HOSTNAME >> /shared/up
    while :; do sleep 0.05; done
"""


async def test_suspended_trainer_saves_on_sigterm_and_resumes_as_new_processes(
    team: ClusterTeam, kubectl: Kubectl, shared: SharedFolder
) -> None:
    await team.create(plain_runtime(step(shared)))
    script = """
        checkpoint=/shared/checkpoint-$HOSTNAME
        if [ -e $checkpoint ]; then
            echo resumed from $(cat $checkpoint)
            exit 0
        fi
        trap 'sleep 0.5; echo epoch 7 > $checkpoint; echo $HOSTNAME >> /shared/saved; exit 143' TERM
        echo $HOSTNAME >> /shared/up
        while :; do sleep 0.05; done
    """
    await train(team, shared.shell(script), nodes=2)
    await shared.until_lines("up", HOSTS)
    before = {each["metadata"]["uid"] for each in await team.pods("train")}

    await team.suspend(suspend=True)
    await shared.until_lines("saved", HOSTS)
    await shared.until_processes_ended()
    await team.wait_until_children_deleted("train", ["Pod"])
    assert summary(await team.get("TrainJob"))["Suspended"].startswith("True/")

    await team.suspend(suspend=False)
    await team.wait_until_ended("train")
    assert [await log_of(kubectl, index=index) for index in (0, 1)] == [
        "resumed from epoch 7\n"
    ] * 2
    assert not before & {each["metadata"]["uid"] for each in await team.pods("train")}


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
async def test_deleted_trainer_saves_within_its_grace_period(
    team: ClusterTeam, shared: SharedFolder, policy: str
) -> None:
    await team.create(plain_runtime(step(shared)))
    script = """
        trap 'sleep 0.5; echo $HOSTNAME >> /shared/saved; exit 0' TERM
        echo $HOSTNAME >> /shared/up
        while :; do sleep 0.05; done
    """
    await train(team, shared.shell(script), nodes=2)
    await shared.until_lines("up", HOSTS)
    await team.delete("TrainJob", policy=policy)
    await shared.until_lines("saved", HOSTS)
    await shared.until_processes_ended()
    await team.wait_until_deleted("TrainJob")
    await team.wait_until_children_deleted("train")


async def test_trainer_that_ignores_sigterm_is_killed_with_its_children(
    team: ClusterTeam, shared: SharedFolder
) -> None:
    job = step(shared)
    pod_of(job)["terminationGracePeriodSeconds"] = 1
    await team.create(plain_runtime(job))
    await train(team, shared.shell(IGNORES_SIGTERM))
    await shared.until_lines("up", HOSTS[:1])
    await team.delete("TrainJob")
    await shared.until_lines("terminated", HOSTS[:1])
    assert len(shared.pids()) > 1
    await shared.until_processes_ended()
    await team.wait_until_children_deleted("train", ["Pod"])


async def create_priority(api: ApiClient, name: str, value: int) -> None:
    """Create a PriorityClass."""
    metadata = {"name": name}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    await api.create({**kind, "metadata": metadata, "value": value})


async def test_preempted_trainer_gets_sigterm_and_runs_again_afterwards(
    team: ClusterTeam, api: ApiClient, shared: SharedFolder
) -> None:
    for name, value in (("low", 0), ("high", 1000)):
        job = step(shared, resources={"limits": {ACCELERATOR: "1"}})
        disrupted: dict[str, Any] = {"type": "DisruptionTarget", "status": "True"}
        ignored = {"action": "Ignore", "onPodConditions": [disrupted]}
        job["template"]["spec"]["podFailurePolicy"] = {"rules": [ignored]}
        pod_of(job)["priorityClassName"] = f"{team.namespace}-{name}"
        await create_priority(api, f"{team.namespace}-{name}", value)
        await team.create(plain_runtime(job, name=name))

    script = """
        trap 'echo $HOSTNAME >> /shared/terminated; exit 143' TERM
        echo $HOSTNAME >> /shared/up
        until [ -e /shared/go ]; do sleep 0.05; done
    """
    await train(team, shared.shell(script), nodes=2, runtime="low")
    await shared.until_lines("up", HOSTS)
    await train(team, shared.shell("echo $HOSTNAME >> /shared/urgent"), "urgent", runtime="high")
    await team.wait_until_ended("urgent")
    assert shared.lines("urgent") == ["urgent-node-0-0"]
    [preempted] = shared.lines("terminated")
    await shared.until_lines("up", [*HOSTS, preempted])
    shared.write("go")
    job = await team.wait_until_ended("train")
    assert summary(job) == {"Complete": "True/AllJobsCompleted"}


async def test_deadline_of_the_trainjob_ends_its_processes(
    team: ClusterTeam, shared: SharedFolder
) -> None:
    await team.create(plain_runtime(step(shared)))
    await train(team, shared.shell(UNTIL_TERMINATED), nodes=2, activeDeadlineSeconds=2)
    job = await team.wait_until_ended("train", "Failed")
    assert summary(job) == {"Failed": "True/DeadlineExceeded"}
    await shared.until_processes_ended()
    assert shared.lines("terminated") == shared.lines("up") == HOSTS
    await team.wait_until_children_deleted("train")


async def test_deadline_of_the_job_ends_its_processes(
    team: ClusterTeam, shared: SharedFolder
) -> None:
    job = step(shared)
    job["template"]["spec"]["activeDeadlineSeconds"] = 2
    await team.create(plain_runtime(job))
    await train(team, shared.shell(UNTIL_TERMINATED))
    await team.wait_until_ended("train", "Failed")
    await shared.until_lines("terminated", HOSTS[:1])
    await shared.until_processes_ended()
