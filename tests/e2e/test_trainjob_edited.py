"""What becomes of TrainJobs that admission would not let in, or whose runtime is edited later."""

import re
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest_asyncio

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import a_runtime
from tests.support.managers import ManagerProcess
from tests.support.plans import container_of
from tests.support.trainjobs import (
    COMPLETES_LATE,
    END_TO_END_TIMEOUT,
    ClusterTeam,
    Kubectl,
    pods_with,
    ready_manager,
    summary,
)

PROBES = count()
LASTING: dict[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(full_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with ready_manager(full_control_plane) as manager:
        yield manager


def with_image(manifest: Object, image: str) -> Object:
    """The runtime, of whose one container the image is another."""
    job = manifest["spec"]["template"]["spec"]["replicatedJobs"][0]
    job["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return manifest


async def test_running_job_is_unaffected_by_edits_of_its_runtime(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    await team.create(a_runtime("torch"))
    await team.create_job("old", **LASTING)
    await team.wait_until_running_is_observed("old", 1, manager)
    await edit_runtime(team, manager, "old", "trainer:2")
    await team.create_job("new")
    await team.wait_until_ended("new")
    images = {
        name: container_of(await team.get("JobSet", name))["image"] for name in ("old", "new")
    }
    assert images == {"old": "trainer:1", "new": "trainer:2"}
    assert summary(await team.get("TrainJob", "old")) == {}
    [pod] = await team.pods("old")
    assert pod["status"]["phase"] == "Running"


async def wait_until_labelled(team: ClusterTeam, name: str, labels: Object) -> Object:
    """Wait until the TrainJob's JobSet has these labels and no others; the JobSet."""

    async def labelled() -> Object | None:
        found = await team.get("JobSet", name)
        return found if (found["metadata"].get("labels") or {}) == labels else None

    return await until(labelled, within=END_TO_END_TIMEOUT, what=f"the labels {labels}")


async def test_labels_reach_a_running_jobset_when_it_is_suspended(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """As admission warns; the pods of a JobSet never get them."""
    await team.create(a_runtime("torch"))
    await team.create_job(labels={"team": "vision"}, **LASTING)
    await team.wait_until_running_is_observed("train", 1, manager)
    await wait_until_labelled(team, "train", {"team": "vision"})
    await team.patch("TrainJob", "train", {"spec": {"labels": {"team": "speech"}}})
    await team.touch(manager, "train")
    await wait_until_labelled(team, "train", {"team": "vision"})

    await team.suspend(suspend=True)
    await wait_until_labelled(team, "train", {"team": "speech"})
    await team.wait_for_condition("Suspended", "Suspended")
    await team.patch("TrainJob", "train", {"spec": {"labels": {"team": "robots"}}})
    await wait_until_labelled(team, "train", {"team": "robots"})

    changed = {"suspend": False, "labels": {"team": "audio"}}
    await team.patch("TrainJob", "train", {"spec": changed})
    await wait_until_labelled(team, "train", {"team": "audio"})
    [pod] = await team.wait_until_running("train", 1)
    assert "team" not in pod["metadata"]["labels"]
    assert summary(await team.get("TrainJob", "train")) == {"Suspended": "False/Resumed"}


async def edit_runtime(team: ClusterTeam, manager: ManagerProcess, job: str, image: str) -> None:
    """Edit the runtime, and wait until the manager has reconciled a running TrainJob since then.

    A TrainJob that begins with the edited runtime shows that the manager has it.
    """
    spec = with_image(a_runtime("torch"), image)["spec"]
    await team.patch("TrainingRuntime", "torch", {"spec": spec})

    async def is_used() -> bool:
        name = f"probe-{next(PROBES)}"
        await team.create_job(name, suspend=True)
        await team.wait_for_condition("Suspended", "Suspended", name=name)
        used = container_of(await team.get("JobSet", name))["image"]
        await team.delete("TrainJob", name)
        return used == image

    await until(is_used, within=END_TO_END_TIMEOUT, what="the edited runtime being used")
    await team.touch(manager, job)


async def test_job_is_suspended_and_resumed_after_its_runtime_is_edited(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Defect D35."""
    await team.create(a_runtime("torch"))
    await team.create_job(**LASTING)
    await team.wait_until_running_is_observed("train", 1, manager)
    await edit_runtime(team, manager, "train", "trainer:2")

    await team.suspend(suspend=True)
    await team.wait_until_children_deleted("train", ["Pod"])
    job = await team.wait_for_condition("Suspended", "Suspended")
    assert summary(job) == {"Suspended": "True/Suspended"}

    # What decides where pods run follows all the same: Kueue depends on it.
    [override] = LASTING["podTemplateOverrides"]
    placed = {**override, "spec": {"nodeSelector": {"kubernetes.io/hostname": "kwok-3"}}}
    changed = {"podTemplateOverrides": [placed], "suspend": False}
    await team.patch("TrainJob", "train", {"spec": changed})
    [pod] = await team.wait_until_running("train", 1)
    assert pod["spec"]["nodeName"] == "kwok-3"
    assert pod["spec"]["containers"][0]["image"] == "trainer:1"
    job = await team.wait_for_condition("Suspended", "Resumed", "False")
    assert summary(job) == {"Suspended": "False/Resumed"}
    assert {each["reason"] for each in await team.all("Event") if is_about_train(each)} == set()


def is_about_train(event: Object) -> bool:
    involved = event["involvedObject"]
    return (involved["kind"], involved["name"]) == ("TrainJob", "train")


async def test_job_is_suspended_and_resumed_with_an_invalid_runtime(
    team: ClusterTeam, manager: ManagerProcess
) -> None:
    """Defects D35 and D37."""
    await team.create(a_runtime("torch"))
    await team.create_job(**LASTING)
    await team.wait_until_running_is_observed("train", 1, manager)
    broken = a_runtime("torch")["spec"]
    [job] = broken["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "other"
    await team.patch("TrainingRuntime", "torch", {"spec": broken})
    await team.create_job("new")
    await team.wait_for_condition("Blocked", "InvalidRuntime", name="new")
    assert summary(await team.get("TrainJob")) == {}

    await team.suspend(suspend=True)
    await team.wait_until_children_deleted("train", ["Pod"])
    await team.wait_for_condition("Suspended", "Suspended")
    await team.suspend(suspend=False)
    await team.wait_until_running("train", 1)
    job = await team.wait_for_condition("Suspended", "Resumed", "False")
    assert summary(job) == {"Suspended": "False/Resumed"}
    assert container_of(await team.get("JobSet"))["image"] == "trainer:1"


async def test_kubectl_shows_the_events_of_a_job_that_waits_for_its_runtime(
    team: ClusterTeam, kubectl: Kubectl
) -> None:
    await team.create_job(trainer={"numNodes": 2})
    await kubectl("wait", "--for=condition=Blocked", "trainjob/train", "--timeout=60s")
    header, row = (await kubectl("get", "trainjob", "train", "-o", "wide")).splitlines()
    assert header.split() == ["NAME", "STATE", "READY", "NODES", "RUNTIME", "AGE", "REASON"]
    name, state, ready, nodes, of, _, reason = row.split()
    assert (name, state, ready, nodes, of) == ("train", "Blocked", "0", "2", "torch")
    assert reason == "RuntimeNotFound"

    why = f"TrainingRuntime torch is not found in namespace {team.namespace}"

    async def event_message() -> str | None:  # events come when they come
        text = await kubectl("describe", "trainjob", "train")
        return text if "TrainJobResourcesCreationFailed" in text else None

    described = await until(
        event_message, within=END_TO_END_TIMEOUT, what="the event in kubectl describe"
    )
    status, events = re.sub(" +", " ", described).split("\nEvents:")
    assert f"Message: {why}\n Reason: RuntimeNotFound\n Status: True\n Type: Blocked" in status
    assert re.search(
        r"Warning TrainJobResourcesCreationFailed \S+(?: \(x\d+ over \S+\))? "
        r"trainer-trainjob-controller "
        rf"TrainJob resources reconciliation failed: {why}\n",
        events,
    )

    await team.create(a_runtime("torch"))
    await kubectl("wait", "--for=condition=Complete", "trainjob/train", "--timeout=120s")
    [row] = (await kubectl("get", "tj", "train", "--no-headers")).splitlines()
    assert row.split()[:5] == ["train", "Complete", "2", "2", "torch"]
    assert summary(await team.get("TrainJob")) == {"Complete": "True/AllJobsCompleted"}
