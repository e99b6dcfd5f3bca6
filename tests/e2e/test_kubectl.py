"""TrainJobs as kubectl sees them, on a whole cluster."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.api.resources import JOB_SETS
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.errors import ApiError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from tests.e2e.test_jobset import jobset
from tests.integration.controllers.team import conditions_of
from tests.support.informers import connected
from tests.support.managers import ManagerProcess
from tests.support.object_versions import version_now, versions_of
from tests.support.objects import train_job
from tests.support.trainjobs import (
    COMPLETES_AT_ONCE,
    COMPLETES_LATE,
    ClusterTeam,
    Kubectl,
    one_try_runtime,
    pods_with,
    ready_manager,
)

TRAIN_JOBS: Resource[Manifest] = Resource(
    "trainer.kubeflow.org",
    "v1alpha1",
    "TrainJob",
    "trainjobs",
    namespaced=True,
    decode=unstructured,
)
LAST = "{.status.conditions[-1:].type}"
PASSWORD = "correct-horse"  # noqa: S105


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """A manager."""
    async with ready_manager(full_control_plane) as manager:
        yield manager


async def test_last_condition_of_a_running_job_can_be_read_and_waited_for(
    team: ClusterTeam, kubectl: Kubectl, manager: ManagerProcess
) -> None:
    await team.create(one_try_runtime())
    await team.create_job(
        "train", "once", podTemplateOverrides=pods_with(annotations=COMPLETES_LATE)
    )
    await team.wait_until_running_is_observed("train", 1, manager)
    assert await kubectl("get", "trainjob", "train", "-o", f"jsonpath={LAST}") == ""
    column = "custom-columns=LAST:.status.conditions[-1:].type"
    printed = await kubectl("get", "trainjob", "train", "-o", column, "--no-headers")
    assert printed.split() == ["<none>"]
    wait = ("wait", f"--for=jsonpath={LAST}=Complete", "--timeout=1s")
    with pytest.raises(AssertionError, match="timed out waiting for the condition"):
        await kubectl(*wait, "trainjob/train")
    short = pods_with(annotations=COMPLETES_AT_ONCE)
    await team.create_job("short", "once", podTemplateOverrides=short)
    await kubectl(*wait[:-1], "--timeout=90s", "trainjob/short")


async def test_replaced_job_is_not_blocked_by_its_predecessor(
    team: ClusterTeam,
    kubectl: Kubectl,
    manager: ManagerProcess,
    control_plane: ControlPlane,
    tmp_path: Path,
) -> None:
    await team.create(one_try_runtime())
    spec = {
        "runtimeRef": {"name": "once", "kind": "TrainingRuntime"},
        "podTemplateOverrides": pods_with(annotations=COMPLETES_LATE),
    }
    await team.create(train_job("train", **spec))
    await team.wait_until_running("train", 1)
    slow = {"metadata": {"finalizers": ["example.org/slow"]}}
    await team.patch("JobSet", "train", slow)
    since = await version_now(team.api)
    before = await team.get("TrainJob", "train")
    file = tmp_path / "job.json"
    file.write_text(json.dumps(train_job("train", **spec)))
    await kubectl("replace", "--force", "-f", str(file))
    after = await team.get("TrainJob", "train")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]

    async def is_awaited() -> bool:
        found = manager.log_entries("objects_not_applied")
        return sum(each["namespace"] == team.namespace for each in found) > 3

    await until(is_awaited, within=team.within, what="some attempts")
    await team.patch("JobSet", "train", {"metadata": {"finalizers": None}})

    async def is_replaced() -> bool:
        found = await team.find("JobSet", "train")
        owners = [] if found is None else found["metadata"]["ownerReferences"]
        return [each["uid"] for each in owners] == [after["metadata"]["uid"]]

    await until(is_replaced, within=team.within, what="the JobSet of the new TrainJob")
    await team.wait_until_running("train", 1)
    key = ObjectKey(team.namespace, "train")
    versions = await versions_of(control_plane.kubeconfig, TRAIN_JOBS, key, since)
    assert [conditions_of(each) for each in versions] == [{}] * len(versions)
    events = [each["reason"] for each in await team.all("Event")]
    assert "TrainJobResourcesCreationFailed" not in events


async def test_values_of_a_jobset_are_not_in_errors_of_its_webhook(
    control_plane: ControlPlane, namespace: str
) -> None:
    manifest = jobset(namespace, "train")
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["env"] = [{"name": "PASSWORD", "value": PASSWORD}]
    async with connected(control_plane.kubeconfig) as client:
        await client.apply(JOB_SETS, manifest)
        pod["containers"][0]["image"] = "another"
        with pytest.raises(ApiError) as changed:
            await client.apply(JOB_SETS, manifest)
        pod["containers"][0]["env"] = [{"name": "PASSWORD", "value": 4711_4711}]
        with pytest.raises(ApiError) as wrong_type:
            await client.apply(JOB_SETS, manifest)
    assert "spec.replicatedJobs: Invalid value: (omitted): field is immutable" in str(changed.value)
    assert PASSWORD not in repr(changed.value)
    assert "4711" not in str(wrong_type.value)
    assert "PASSWORD" in str(wrong_type.value)
