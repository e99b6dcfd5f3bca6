"""TrainJob scenarios from creation to completion, with their runtimes and pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import a_runtime
from tests.support.objects import train_job
from tests.support.trainjobs import BY_THE_END, FOR_LONG, Ground, pods_with

LASTING: Mapping[str, Any] = {"podTemplateOverrides": pods_with(annotations=FOR_LONG)}
WITH_INITIALIZERS = {"dataset-initializer": 1, "model-initializer": 1, "node": 1}


def on_nodes(number: int) -> Mapping[str, Any]:
    """The spec of a TrainJob with this number of nodes."""
    return {"trainer": {"numNodes": number}}


FETCHING: Mapping[str, Any] = {
    "initializer": {
        "dataset": {"storageUri": "hf://team/dataset"},
        "model": {"storageUri": "hf://team/model"},
    }
}


@dataclass(frozen=True)
class Scenario:
    """A TrainJob, and how many pods each of its jobs has in the end."""

    runtime: str
    pods: Mapping[str, int]
    kind: str = "ClusterTrainingRuntime"
    spec: Mapping[str, Any] = field(default_factory=dict)

    async def begin(self, ground: Ground, name: str) -> None:
        """Create the TrainJob."""
        reference = {"kind": self.kind, "name": self.runtime}
        await ground.create(train_job(name, **{**self.spec, "runtimeRef": reference}))


def disk(name: str) -> Object:
    """A PersistentVolume for the claims of one TrainJob with initializers."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/nowhere"},
        },
    }


async def keep_a_job_set_again(ground: Ground) -> None:
    """Make a TrainJob report a kept JobSet twice, after changes of its runtime.

    It follows the runtime because its revision is deleted. A revision of another TrainJob, which is
    deleted, is then deleted by the manager.
    """
    await ground.create(a_runtime("torch"))
    await ground.create({**a_runtime("torch"), "metadata": {"name": "brief"}})
    await ground.create_job("brief", runtime="brief", suspend=True)
    unused = await recorded_revision(ground, "brief")
    await ground.delete("TrainJob", "brief")
    await ground.create_job(**LASTING)
    await ground.until_running("train", 1)
    revision = await recorded_revision(ground, "train")
    edited = a_runtime("torch")
    edited["spec"]["mlPolicy"]["torch"] = {"numProcPerNode": 3}
    await ground.patch("TrainingRuntime", "torch", {"spec": edited["spec"]})

    async def is_lost() -> bool:
        if await ground.find("ControllerRevision", revision) is not None:
            await ground.delete("ControllerRevision", revision)
        reasons = [each["reason"] for each in await ground.all("Event")]
        return "RuntimeRevisionLost" in reasons

    await until(is_lost, within=BY_THE_END, what="the revision being lost")

    await ground.suspend(suspend=True)
    await ground.until_left("train", ["Pod"])
    await ground.until_says("Suspended", "Suspended")
    await ground.suspend(suspend=False)
    await ground.until_running("train", 1)

    async def has_two_events() -> bool:
        events = [each for each in await ground.all("Event") if each["reason"] == "JobSetKept"]
        return sum(each.get("count", 1) for each in events) > 1

    await until(has_two_events, within=BY_THE_END, what="an Event that happened twice")
    await ground.until_gone("ControllerRevision", unused)
    await exceed_a_deadline(ground)


async def exceed_a_deadline(ground: Ground) -> None:
    """Make the manager delete the JobSet of a TrainJob that runs too long."""
    await ground.create_job("overdue", activeDeadlineSeconds=5, **LASTING)
    await ground.until_says("Failed", "DeadlineExceeded", name="overdue")
    await ground.until_gone("JobSet", "overdue")


async def recorded_revision(ground: Ground, name: str) -> str:
    """Wait until the TrainJob records a revision; return its name."""

    async def recorded() -> str | None:
        status = (await ground.get("TrainJob", name)).get("status", {})
        found: str | None = status.get("runtimeRevision")
        return found

    return await until(recorded, within=BY_THE_END, what=f"the revision of {name}")
