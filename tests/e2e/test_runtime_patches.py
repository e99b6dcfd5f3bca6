"""Runtime patches of Kueue, the SDK and kubectl, with the real JobSet and its webhook."""

from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import JOB, MERGE, a_runtime, conditions_of
from tests.support.managers import ManagerProcess
from tests.support.objects import train_job
from tests.support.other_releases import KUEUE_ENTRY
from tests.support.trainjobs import COMPLETES_LATE, END_TO_END_TIMEOUT, ClusterTeam, Kubectl
from tests.support.webhooks import admitting_manager

CONFLICT = 409
QUEUE = "kueue.x-k8s.io/manager"
GATE = "kueue.x-k8s.io/topology"
IN_PODS = ("nodeSelector", "tolerations", "schedulingGates")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module, with its webhook."""
    async with admitting_manager(full_control_plane, "--log-level", "debug") as manager:
        await manager.wait_ready()
        yield manager


def entry(manager: str, metadata: Object | None = None, **spec: Any) -> Object:
    """A runtime patch of the job node."""
    pods = {"spec": spec} | ({"metadata": metadata} if metadata else {})
    job = {"name": "node", "template": {"spec": {"template": pods}}}
    return {
        "manager": manager,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }


LASTING = entry("acme.io/tests", {"annotations": COMPLETES_LATE}, terminationGracePeriodSeconds=5)
ADMITTED = entry(
    QUEUE,
    {"labels": {"kueue.x-k8s.io/podset": "node"}, "annotations": {"kueue.x-k8s.io/workload": "w"}},
    nodeSelector={"kubernetes.io/os": "linux"},
    tolerations=[{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    schedulingGates=[{"name": GATE}],
)


async def put(team: ClusterTeam, **spec: Any) -> Object:
    """Write the whole TrainJob as a Go client does, again if it was changed in between."""

    async def written() -> Object | None:
        stored = await team.get("TrainJob")
        new = deepcopy(stored) | {"spec": {**stored["spec"], **spec}}
        try:
            return await team.api.request("PUT", team.path("TrainJob", JOB), body=new)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            return None

    return await until(written, within=END_TO_END_TIMEOUT, what="a write without a conflict")


def patched_part(job_set: Object) -> Object:
    """What Kueue's patch sets in the pods of the JobSet."""
    [job] = job_set["spec"]["replicatedJobs"]
    template = job["template"]["spec"]["template"]
    metadata = template.get("metadata") or {}
    return {
        "labels": metadata.get("labels") or {},
        "annotations": metadata.get("annotations") or {},
        **{field: template["spec"][field] for field in IN_PODS if field in template["spec"]},
    }


async def wait_until_patched(team: ClusterTeam, wanted: Object, *, suspended: bool) -> Object:
    """Wait until the pods of the JobSet are as patched, and return the JobSet."""

    async def patched() -> Object | None:
        found = await team.find("JobSet")
        if found is None:
            return None
        matches = patched_part(found) == wanted and bool(found["spec"].get("suspend")) is suspended
        return found if matches else None

    return await until(patched, within=END_TO_END_TIMEOUT, what=f"the pods having {wanted}")


PLAIN: Object = {"labels": {}, "annotations": COMPLETES_LATE}
OF_QUEUE: Object = {
    "labels": {"kueue.x-k8s.io/podset": "node"},
    "annotations": {**COMPLETES_LATE, "kueue.x-k8s.io/workload": "w"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "schedulingGates": [{"name": GATE}],
}


@pytest.mark.parametrize("steps", [1, 2], ids=["one request", "two requests"])
async def test_queue_admits_evicts_and_admits_again(
    steps: int, team: ClusterTeam, manager: ManagerProcess
) -> None:
    await team.create(a_runtime("torch"))
    await team.create_job(suspend=True, runtimePatches=[KUEUE_ENTRY, LASTING])
    before = await wait_until_patched(team, PLAIN, suspended=True)
    ungated = {field: value for field, value in OF_QUEUE.items() if field != "schedulingGates"}
    admitted = deepcopy(ADMITTED)
    [job] = admitted["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    del job["template"]["spec"]["template"]["spec"]["schedulingGates"]
    for flavor, wanted in ((admitted, ungated), (ADMITTED, OF_QUEUE)):
        patches = [flavor, LASTING]
        if steps == 1:
            await put(team, runtimePatches=patches, suspend=False)
        else:
            await put(team, runtimePatches=patches)
            await wait_until_patched(team, wanted, suspended=True)
            await team.suspend(suspend=False)
        job_set = await wait_until_patched(team, wanted, suspended=False)
        assert job_set["metadata"]["uid"] == before["metadata"]["uid"]
        await wait_for_pods(team, 1)
        if flavor is ADMITTED:
            break
        await team.suspend(suspend=True)
        await team.wait_until_children_deleted(JOB, ["Pod"])
        await wait_until_inactive(team)
        await put(team, runtimePatches=[KUEUE_ENTRY, LASTING])
        await wait_until_patched(team, PLAIN, suspended=True)
    [gated] = await team.pods(JOB)
    assert gated["spec"]["schedulingGates"] == [{"name": GATE}]
    path = f"/api/v1/namespaces/{team.namespace}/pods/{gated['metadata']['name']}"
    body = {"spec": {"schedulingGates": None}}
    await team.api.request("PATCH", path, body=body, content_type=MERGE)
    [pod] = await team.wait_until_running(JOB, 1)
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "node"
    assert pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 5
    await team.touch(manager, JOB)
    settled = (await team.get("JobSet"))["metadata"]["resourceVersion"]
    await team.touch(manager, JOB)
    assert (await team.get("JobSet"))["metadata"]["resourceVersion"] == settled


async def wait_for_pods(team: ClusterTeam, number: int) -> None:
    async def created() -> bool:
        return len(await team.pods(JOB)) == number

    await until(created, within=END_TO_END_TIMEOUT, what=f"{number} pods")


async def wait_until_inactive(team: ClusterTeam) -> None:
    """Wait until the status reports no active job, as Kueue does before it clears its entry."""

    async def inactive() -> bool:
        rows = (await team.get("TrainJob"))["status"]["jobsStatus"]
        return not any(row["active"] for row in rows)

    await until(inactive, within=END_TO_END_TIMEOUT, what="no job being active")


async def test_patches_of_kubectl_and_the_sdk_reach_the_pods(
    team: ClusterTeam, kubectl: Kubectl, tmp_path: Path, manager: ManagerProcess
) -> None:
    await team.create(a_runtime("torch"))
    # The SDK sends its entry without a time, and kubectl applies another one beside it.
    sdk = entry("trainer.kubeflow.org/kubeflow-sdk", nodeSelector={"kubernetes.io/os": "linux"})
    await team.create_job(suspend=True, runtimePatches=[sdk])
    applied = train_job(JOB, runtimeRef={"name": "torch", "kind": "TrainingRuntime"})
    applied["spec"]["runtimePatches"] = [entry("acme.io/tests", {"annotations": COMPLETES_LATE})]
    file = tmp_path / "job.json"
    file.write_bytes(orjson.dumps(applied))
    await kubectl("apply", "--server-side", "--field-manager=kubectl", "-f", str(file))
    await team.suspend(suspend=False)
    [pod] = await team.wait_until_running(JOB, 1)
    assert pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux"
    assert pod["metadata"]["annotations"].items() >= COMPLETES_LATE.items()
    again = (await team.get("TrainJob"))["metadata"]["generation"]
    await kubectl("apply", "--server-side", "--field-manager=kubectl", "-f", str(file))
    assert (await team.get("TrainJob"))["metadata"]["generation"] == again


async def test_last_labels_and_annotations_of_suspended_pods_are_removed(team: ClusterTeam) -> None:
    """The API server rejects an apply that leaves a map empty."""
    await team.create(a_runtime("torch"))
    await team.create_job(suspend=False, runtimePatches=[LASTING])
    await team.wait_until_running("train", 1)
    await team.suspend(suspend=True)
    await team.wait_until_children_deleted("train", ["Pod"])
    await team.wait_for_condition("Suspended", "Suspended")
    both = {"labels": {"a": "1"}, "annotations": {**COMPLETES_LATE, "b": "2"}}
    for kept in (both, {"annotations": COMPLETES_LATE}, both, {"labels": {"a": "1"}}):
        patch = entry("acme.io/tests", kept, terminationGracePeriodSeconds=5)
        await team.patch("TrainJob", JOB, {"spec": {"runtimePatches": [patch]}})
        await wait_until_pods_have(team, kept)
        assert set(conditions_of(await team.get("TrainJob"))) == {"Suspended"}


async def wait_until_pods_have(team: ClusterTeam, metadata: Object) -> None:
    async def has() -> bool:
        [job] = (await team.get("JobSet"))["spec"]["replicatedJobs"]
        found = job["template"]["spec"]["template"].get("metadata") or {}
        return bool({field: each for field, each in found.items() if each} == metadata)

    await until(has, within=END_TO_END_TIMEOUT, what=f"pods with {metadata}")
