"""What Kueue writes about a flavor reaches the pods, on each admission."""

import copy
from typing import Any

import pytest

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.clients.kueue.queueing import (
    HOST,
    POOL,
    TOLERATION,
    Queueing,
    fast,
    kueue_patch,
    racked,
    slow,
)
from tests.integration.controllers.team import JOB, conditions_of
from tests.support.kueue import PATCH_MANAGER
from tests.support.trainjobs import END_TO_END_TIMEOUT
from tests.support.webhooks import admission_client_for

pytestmark = pytest.mark.e2e

GATE = "kueue.x-k8s.io/topology"
PREEMPTION: dict[str, Any] = {
    "preemption": {"withinClusterQueue": "LowerPriority"},
    "flavorFungibility": {"whenCanPreempt": "MayStopSearch"},
}


def template(job_set: Object) -> Object:
    """The pod template of the JobSet's first job."""
    found: Object = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return found


def selectors(entry: Object | None) -> list[Object]:
    """The node selectors of each job in an entry of runtimePatches."""
    spec = (entry or {})["trainingRuntimeSpec"]["template"]["spec"]
    jobs = spec.get("replicatedJobs", ())
    return [each["template"]["spec"]["template"]["spec"]["nodeSelector"] for each in jobs]


async def test_flavor_reaches_the_pods_in_two_steps(queueing: Queueing) -> None:
    """Kueue replaces the suspended TrainJob with its patches, then resumes it."""
    await queueing.create_queue(fast(1))
    await queueing.queue_job()
    [pod] = await queueing.wait_until_running_on("fast")
    assert TOLERATION in pod["spec"]["tolerations"]
    metadata, workload = pod["metadata"], (await queueing.workloads())[JOB]
    assert {
        "kueue.x-k8s.io/podset": "node",
        "kueue.x-k8s.io/local-queue-name": "queue",
        "kueue.x-k8s.io/cluster-queue-name": queueing.namespace,
    }.items() <= metadata["labels"].items()
    assert metadata["annotations"]["kueue.x-k8s.io/workload"] == workload["metadata"]["name"]


async def test_scheduling_gates_reach_the_pods_and_are_removed_by_kueue(
    queueing: Queueing,
) -> None:
    await queueing.create_queue(racked(2))
    await queueing.queue_job(runtime="racked", trainer={"numNodes": 2})
    pods = await queueing.wait_until_running_on("slow", pods=2)
    assert [
        each["name"] for each in template(await queueing.get("JobSet"))["spec"]["schedulingGates"]
    ] == [GATE]
    # One host, as the template requires, chosen by Kueue when it removed the gates.
    assert len({pod["spec"]["nodeSelector"][HOST] for pod in pods}) == 1
    assert {pod["spec"]["nodeName"] for pod in pods} == {
        pod["spec"]["nodeSelector"][HOST] for pod in pods
    }


async def test_flavor_reaches_the_pods_in_one_request(queueing: Queueing) -> None:
    """A client that writes the patches and resumes at once: the job is in no queue."""
    reference = {"name": "lasting", "kind": "TrainingRuntime"}
    created = await queueing.create_job(runtimeRef=reference, suspend=True)
    assert kueue_patch(created), "Kueue adds its entry to every TrainJob"
    await queueing.wait_until_exists("JobSet")

    def admitted(job: Object) -> Object:
        changed = copy.deepcopy(job)
        pod = {
            "metadata": {"labels": {"example.com/label": "set"}},
            "spec": {"nodeSelector": {POOL: "fast"}, "tolerations": [TOLERATION]},
        }
        patched = {"name": "node", "template": {"spec": {"template": pod}}}
        [entry] = [
            each for each in changed["spec"]["runtimePatches"] if each["manager"] == PATCH_MANAGER
        ]
        entry["trainingRuntimeSpec"]["template"]["spec"] = {"replicatedJobs": [patched]}
        changed["spec"]["suspend"] = False
        return changed

    outcome = await admission_client_for(queueing.api).replace_now(created, admitted)
    assert outcome.accepted, outcome.message
    [pod] = await queueing.wait_until_running_on("fast")
    assert TOLERATION in pod["spec"]["tolerations"]
    assert pod["metadata"]["labels"]["example.com/label"] == "set"


async def test_preempted_job_is_admitted_again_on_another_flavor(queueing: Queueing) -> None:
    await queueing.create_queue(fast(1), **PREEMPTION)
    await queueing.queue_job("low")
    await queueing.wait_until_running_on("fast", "low")
    await queueing.queue_job("high", priority="high")
    await queueing.wait_until_running_on("fast", "high")

    async def cleared() -> Object | None:
        job = await queueing.get("TrainJob", "low")
        return job if not selectors(kueue_patch(job)) else None

    low = await until(cleared, within=END_TO_END_TIMEOUT, what="Kueue's entry being cleared")
    assert low["spec"]["suspend"] is True
    assert [row["active"] for row in low["status"]["jobsStatus"]] == [0]
    assert await queueing.pods("low") == []
    assert conditions_of(low)["Suspended"]["status"] == "True"

    async def is_reset() -> bool:
        pods = template(await queueing.get("JobSet", "low"))
        return not pods["spec"].get("nodeSelector") and "tolerations" not in pods["spec"]

    await until(is_reset, within=END_TO_END_TIMEOUT, what="the JobSet without the flavor")
    await queueing.set_quota(fast(1), slow(1))
    await queueing.wait_until_running_on("slow", "low")
    # JobSet 0.12 only adds to the tolerations of a Job that it resumes, so the pods keep them.
    assert "tolerations" not in template(await queueing.get("JobSet", "low"))["spec"]
    assert selectors(kueue_patch(await queueing.get("TrainJob", "low"))) == [{POOL: "slow"}]
    assert conditions_of(await queueing.wait_for_workload("PodsReady", "low"))
