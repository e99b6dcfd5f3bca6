"""What becomes of TrainJobs that admission would not let in, or whose runtime is edited later."""

import re
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import a_runtime
from tests.support.managers import ManagerProcess
from tests.support.plans import container_of
from tests.support.trainjobs import (
    BY_THE_END,
    FOR_LONG,
    Ground,
    Kubectl,
    pods_with,
    ready_manager,
    summary,
)

PROBES = count()
LASTING: dict[str, Any] = {"podTemplateOverrides": pods_with(annotations=FOR_LONG)}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with ready_manager(full_control_plane) as manager:
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


def with_image(manifest: Object, image: str) -> Object:
    """The runtime, of whose one container the image is another."""
    job = manifest["spec"]["template"]["spec"]["replicatedJobs"][0]
    job["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return manifest


async def test_running_job_is_unaffected_by_edits_of_its_runtime(
    ground: Ground, manager: ManagerProcess
) -> None:
    await ground.create(a_runtime("torch"))
    await ground.create_job("old", **LASTING)
    await ground.until_seen_running("old", 1, manager)
    await edit_runtime(ground, manager, "old", "trainer:2")
    await ground.create_job("new")
    await ground.until_ended("new")
    images = {
        name: container_of(await ground.get("JobSet", name))["image"] for name in ("old", "new")
    }
    assert images == {"old": "trainer:1", "new": "trainer:2"}
    assert summary(await ground.get("TrainJob", "old")) == {}
    [pod] = await ground.pods("old")
    assert pod["status"]["phase"] == "Running"


async def until_labelled(ground: Ground, name: str, labels: Object) -> Object:
    """Wait until the TrainJob's JobSet has these labels and no others; the JobSet."""

    async def labelled() -> Object | None:
        found = await ground.get("JobSet", name)
        return found if (found["metadata"].get("labels") or {}) == labels else None

    return await until(labelled, within=BY_THE_END, what=f"the labels {labels}")


async def test_labels_reach_a_running_jobset_when_it_is_suspended(
    ground: Ground, manager: ManagerProcess
) -> None:
    """As admission warns; the pods of a JobSet never get them."""
    await ground.create(a_runtime("torch"))
    await ground.create_job(labels={"team": "vision"}, **LASTING)
    await ground.until_seen_running("train", 1, manager)
    await until_labelled(ground, "train", {"team": "vision"})
    await ground.patch("TrainJob", "train", {"spec": {"labels": {"team": "speech"}}})
    await ground.touch(manager, "train")
    await until_labelled(ground, "train", {"team": "vision"})

    await ground.suspend(suspend=True)
    await until_labelled(ground, "train", {"team": "speech"})
    await ground.until_says("Suspended", "Suspended")
    await ground.patch("TrainJob", "train", {"spec": {"labels": {"team": "robots"}}})
    await until_labelled(ground, "train", {"team": "robots"})

    changed = {"suspend": False, "labels": {"team": "audio"}}
    await ground.patch("TrainJob", "train", {"spec": changed})
    await until_labelled(ground, "train", {"team": "audio"})
    [pod] = await ground.until_running("train", 1)
    assert "team" not in pod["metadata"]["labels"]
    assert summary(await ground.get("TrainJob", "train")) == {"Suspended": "False/Resumed"}


async def edit_runtime(ground: Ground, manager: ManagerProcess, job: str, image: str) -> None:
    """Edit the runtime, and wait until the manager has looked at a running TrainJob since then.

    A TrainJob that begins with the edited runtime shows that the manager has it.
    """
    spec = with_image(a_runtime("torch"), image)["spec"]
    await ground.patch("TrainingRuntime", "torch", {"spec": spec})

    async def is_used() -> bool:
        name = f"probe-{next(PROBES)}"
        await ground.create_job(name, suspend=True)
        await ground.until_says("Suspended", "Suspended", name=name)
        used = container_of(await ground.get("JobSet", name))["image"]
        await ground.delete("TrainJob", name)
        return used == image

    await until(is_used, within=BY_THE_END, what="the edited runtime being used")
    await ground.touch(manager, job)


async def test_job_is_suspended_and_resumed_after_its_runtime_is_edited(
    ground: Ground, manager: ManagerProcess
) -> None:
    """Defect D35."""
    await ground.create(a_runtime("torch"))
    await ground.create_job(**LASTING)
    await ground.until_seen_running("train", 1, manager)
    await edit_runtime(ground, manager, "train", "trainer:2")

    await ground.suspend(suspend=True)
    await ground.until_left("train", ["Pod"])
    job = await ground.until_says("Suspended", "Suspended")
    assert summary(job) == {"Suspended": "True/Suspended"}

    # What decides where pods run follows all the same: Kueue depends on it.
    [override] = LASTING["podTemplateOverrides"]
    placed = {**override, "spec": {"nodeSelector": {"kubernetes.io/hostname": "kwok-3"}}}
    changed = {"podTemplateOverrides": [placed], "suspend": False}
    await ground.patch("TrainJob", "train", {"spec": changed})
    [pod] = await ground.until_running("train", 1)
    assert pod["spec"]["nodeName"] == "kwok-3"
    assert pod["spec"]["containers"][0]["image"] == "trainer:1"
    job = await ground.until_says("Suspended", "Resumed", "False")
    assert summary(job) == {"Suspended": "False/Resumed"}
    assert {each["reason"] for each in await ground.all("Event") if is_about_train(each)} == set()


def is_about_train(event: Object) -> bool:
    involved = event["involvedObject"]
    return (involved["kind"], involved["name"]) == ("TrainJob", "train")


async def test_job_is_suspended_and_resumed_with_an_invalid_runtime(
    ground: Ground, manager: ManagerProcess
) -> None:
    """Defects D35 and D37."""
    await ground.create(a_runtime("torch"))
    await ground.create_job(**LASTING)
    await ground.until_seen_running("train", 1, manager)
    broken = a_runtime("torch")["spec"]
    [job] = broken["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "other"
    await ground.patch("TrainingRuntime", "torch", {"spec": broken})
    await ground.create_job("new")
    await ground.until_says("Blocked", "InvalidRuntime", name="new")
    assert summary(await ground.get("TrainJob")) == {}

    await ground.suspend(suspend=True)
    await ground.until_left("train", ["Pod"])
    await ground.until_says("Suspended", "Suspended")
    await ground.suspend(suspend=False)
    await ground.until_running("train", 1)
    job = await ground.until_says("Suspended", "Resumed", "False")
    assert summary(job) == {"Suspended": "False/Resumed"}
    assert container_of(await ground.get("JobSet"))["image"] == "trainer:1"


async def test_kubectl_shows_the_events_of_a_job_that_waits_for_its_runtime(
    ground: Ground, kubectl: Kubectl
) -> None:
    await ground.create_job(trainer={"numNodes": 2})
    await kubectl("wait", "--for=condition=Blocked", "trainjob/train", "--timeout=60s")
    header, row = (await kubectl("get", "trainjob", "train", "-o", "wide")).splitlines()
    assert header.split() == ["NAME", "STATE", "READY", "NODES", "RUNTIME", "AGE", "REASON"]
    name, state, ready, nodes, of, _, reason = row.split()
    assert (name, state, ready, nodes, of) == ("train", "Blocked", "0", "2", "torch")
    assert reason == "RuntimeNotFound"

    why = f"TrainingRuntime torch is not found in namespace {ground.namespace}"

    async def event_message() -> str | None:  # events come when they come
        text = await kubectl("describe", "trainjob", "train")
        return text if "TrainJobResourcesCreationFailed" in text else None

    described = await until(event_message, within=BY_THE_END, what="the event in kubectl describe")
    status, events = re.sub(" +", " ", described).split("\nEvents:")
    assert f"Message: {why}\n Reason: RuntimeNotFound\n Status: True\n Type: Blocked" in status
    assert re.search(
        r"Warning TrainJobResourcesCreationFailed \S+(?: \(x\d+ over \S+\))? "
        r"trainer-trainjob-controller "
        rf"TrainJob resources reconciliation failed: {why}\n",
        events,
    )

    await ground.create(a_runtime("torch"))
    await kubectl("wait", "--for=condition=Complete", "trainjob/train", "--timeout=120s")
    [row] = (await kubectl("get", "tj", "train", "--no-headers")).splitlines()
    assert row.split()[:5] == ["train", "Complete", "2", "2", "torch"]
    assert summary(await ground.get("TrainJob")) == {"Complete": "True/AllJobsCompleted"}
