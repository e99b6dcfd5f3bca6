"""Runtime patches of Kueue, the SDK and kubectl, with the real JobSet and its webhook."""

from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import JOB, MERGE, a_runtime, conditions_of
from tests.support.managers import ManagerProcess
from tests.support.objects import train_job
from tests.support.other_releases import KUEUE_ENTRY
from tests.support.trainjobs import BY_THE_END, FOR_LONG, Ground, Kubectl
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


@pytest.fixture
def ground(api: ApiClient, namespace: str, manager: ManagerProcess) -> Ground:
    """A namespace of the test's own."""
    return Ground(api, namespace)


@pytest.fixture
def kubectl(
    kubectl_program: Path, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> Kubectl:
    """kubectl in the test's namespace."""
    return Kubectl(kubectl_program, control_plane.kubeconfig, namespace, tmp_path)


def entry(manager: str, metadata: Object | None = None, **spec: Any) -> Object:
    """A runtime patch of the job node."""
    pods = {"spec": spec} | ({"metadata": metadata} if metadata else {})
    job = {"name": "node", "template": {"spec": {"template": pods}}}
    return {
        "manager": manager,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }


LASTING = entry("acme.io/tests", {"annotations": FOR_LONG}, terminationGracePeriodSeconds=5)
ADMITTED = entry(
    QUEUE,
    {"labels": {"kueue.x-k8s.io/podset": "node"}, "annotations": {"kueue.x-k8s.io/workload": "w"}},
    nodeSelector={"kubernetes.io/os": "linux"},
    tolerations=[{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    schedulingGates=[{"name": GATE}],
)


async def put(ground: Ground, **spec: Any) -> Object:
    """Write the whole TrainJob as a Go client does, again if it was changed in between."""

    async def written() -> Object | None:
        stored = await ground.get("TrainJob")
        new = deepcopy(stored) | {"spec": {**stored["spec"], **spec}}
        try:
            return await ground.api.request("PUT", ground.path("TrainJob", JOB), body=new)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            return None

    return await until(written, within=BY_THE_END, what="a write without a conflict")


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


async def until_patched(ground: Ground, wanted: Object, *, suspended: bool) -> Object:
    """Wait until the pods of the JobSet are as patched, and return the JobSet."""

    async def patched() -> Object | None:
        found = await ground.find("JobSet")
        if found is None:
            return None
        is_so = patched_part(found) == wanted and bool(found["spec"].get("suspend")) is suspended
        return found if is_so else None

    return await until(patched, within=BY_THE_END, what=f"the pods having {wanted}")


PLAIN: Object = {"labels": {}, "annotations": FOR_LONG}
OF_QUEUE: Object = {
    "labels": {"kueue.x-k8s.io/podset": "node"},
    "annotations": {**FOR_LONG, "kueue.x-k8s.io/workload": "w"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "schedulingGates": [{"name": GATE}],
}


@pytest.mark.parametrize("steps", [1, 2], ids=["one request", "two requests"])
async def test_queue_admits_evicts_and_admits_again(
    steps: int, ground: Ground, manager: ManagerProcess
) -> None:
    await ground.create(a_runtime("torch"))
    await ground.create_job(suspend=True, runtimePatches=[KUEUE_ENTRY, LASTING])
    before = await until_patched(ground, PLAIN, suspended=True)
    ungated = {field: value for field, value in OF_QUEUE.items() if field != "schedulingGates"}
    admitted = deepcopy(ADMITTED)
    [job] = admitted["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    del job["template"]["spec"]["template"]["spec"]["schedulingGates"]
    for flavor, wanted in ((admitted, ungated), (ADMITTED, OF_QUEUE)):
        patches = [flavor, LASTING]
        if steps == 1:
            await put(ground, runtimePatches=patches, suspend=False)
        else:
            await put(ground, runtimePatches=patches)
            await until_patched(ground, wanted, suspended=True)
            await ground.suspend(suspend=False)
        job_set = await until_patched(ground, wanted, suspended=False)
        assert job_set["metadata"]["uid"] == before["metadata"]["uid"]
        await until_pods(ground, 1)
        if flavor is ADMITTED:
            break
        await ground.suspend(suspend=True)
        await ground.until_left(JOB, ["Pod"])
        await until_inactive(ground)
        await put(ground, runtimePatches=[KUEUE_ENTRY, LASTING])
        await until_patched(ground, PLAIN, suspended=True)
    [gated] = await ground.pods(JOB)
    assert gated["spec"]["schedulingGates"] == [{"name": GATE}]
    path = f"/api/v1/namespaces/{ground.namespace}/pods/{gated['metadata']['name']}"
    body = {"spec": {"schedulingGates": None}}
    await ground.api.request("PATCH", path, body=body, content_type=MERGE)
    [pod] = await ground.until_running(JOB, 1)
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "node"
    assert pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 5
    await ground.touch(manager, JOB)
    settled = (await ground.get("JobSet"))["metadata"]["resourceVersion"]
    await ground.touch(manager, JOB)
    assert (await ground.get("JobSet"))["metadata"]["resourceVersion"] == settled


async def until_pods(ground: Ground, number: int) -> None:
    async def created() -> bool:
        return len(await ground.pods(JOB)) == number

    await until(created, within=BY_THE_END, what=f"{number} pods")


async def until_inactive(ground: Ground) -> None:
    """Wait until the status reports no active job, as Kueue does before it clears its entry."""

    async def inactive() -> bool:
        rows = (await ground.get("TrainJob"))["status"]["jobsStatus"]
        return not any(row["active"] for row in rows)

    await until(inactive, within=BY_THE_END, what="no job being active")


async def test_patches_of_kubectl_and_the_sdk_reach_the_pods(
    ground: Ground, kubectl: Kubectl, tmp_path: Path, manager: ManagerProcess
) -> None:
    await ground.create(a_runtime("torch"))
    # The SDK sends its entry without a time, and kubectl applies another one beside it.
    sdk = entry("trainer.kubeflow.org/kubeflow-sdk", nodeSelector={"kubernetes.io/os": "linux"})
    await ground.create_job(suspend=True, runtimePatches=[sdk])
    applied = train_job(JOB, runtimeRef={"name": "torch", "kind": "TrainingRuntime"})
    applied["spec"]["runtimePatches"] = [entry("acme.io/tests", {"annotations": FOR_LONG})]
    file = tmp_path / "job.json"
    file.write_bytes(orjson.dumps(applied))
    await kubectl("apply", "--server-side", "--field-manager=kubectl", "-f", str(file))
    await ground.suspend(suspend=False)
    [pod] = await ground.until_running(JOB, 1)
    assert pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux"
    assert pod["metadata"]["annotations"].items() >= FOR_LONG.items()
    again = (await ground.get("TrainJob"))["metadata"]["generation"]
    await kubectl("apply", "--server-side", "--field-manager=kubectl", "-f", str(file))
    assert (await ground.get("TrainJob"))["metadata"]["generation"] == again


async def test_last_labels_and_annotations_of_suspended_pods_are_removed(ground: Ground) -> None:
    """The API server rejects an apply that leaves a map empty."""
    await ground.create(a_runtime("torch"))
    await ground.create_job(suspend=False, runtimePatches=[LASTING])
    await ground.until_running("train", 1)
    await ground.suspend(suspend=True)
    await ground.until_left("train", ["Pod"])
    await ground.until_says("Suspended", "Suspended")
    both = {"labels": {"a": "1"}, "annotations": {**FOR_LONG, "b": "2"}}
    for kept in (both, {"annotations": FOR_LONG}, both, {"labels": {"a": "1"}}):
        patch = entry("acme.io/tests", kept, terminationGracePeriodSeconds=5)
        await ground.patch("TrainJob", JOB, {"spec": {"runtimePatches": [patch]}})
        await until_pods_have(ground, kept)
        assert set(conditions_of(await ground.get("TrainJob"))) == {"Suspended"}


async def until_pods_have(ground: Ground, metadata: Object) -> None:
    async def has() -> bool:
        [job] = (await ground.get("JobSet"))["spec"]["replicatedJobs"]
        found = job["template"]["spec"]["template"].get("metadata") or {}
        return bool({field: each for field, each in found.items() if each} == metadata)

    await until(has, within=BY_THE_END, what=f"pods with {metadata}")
