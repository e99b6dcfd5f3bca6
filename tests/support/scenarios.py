"""TrainJob scenarios from creation to completion, with their runtimes and pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import a_runtime
from tests.support.objects import train_job
from tests.support.trainjobs import COMPLETES_LATE, END_TO_END_TIMEOUT, ClusterTeam, pods_with

LASTING: Mapping[str, Any] = {"podTemplateOverrides": pods_with(annotations=COMPLETES_LATE)}
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

    async def begin(self, team: ClusterTeam, name: str) -> None:
        """Create the TrainJob."""
        reference = {"kind": self.kind, "name": self.runtime}
        await team.create(train_job(name, **{**self.spec, "runtimeRef": reference}))


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


async def keep_recreating_jobset(team: ClusterTeam) -> None:
    """Make a TrainJob report a kept JobSet twice, after changes of its runtime.

    It follows the runtime because its revision is deleted. A revision of another TrainJob, which is
    deleted, is then deleted by the manager.
    """
    await team.create(a_runtime("torch"))
    await team.create({**a_runtime("torch"), "metadata": {"name": "brief"}})
    await team.create_job("brief", runtime="brief", suspend=True)
    unused = await recorded_revision(team, "brief")
    await team.delete("TrainJob", "brief")
    await team.create_job(**LASTING)
    await team.wait_until_running("train", 1)
    revision = await recorded_revision(team, "train")
    edited = a_runtime("torch")
    edited["spec"]["mlPolicy"]["torch"] = {"numProcPerNode": 3}
    await team.patch("TrainingRuntime", "torch", {"spec": edited["spec"]})

    async def is_lost() -> bool:
        if await team.find("ControllerRevision", revision) is not None:
            await team.delete("ControllerRevision", revision)
        reasons = [each["reason"] for each in await team.all("Event")]
        return "RuntimeRevisionLost" in reasons

    await until(is_lost, within=END_TO_END_TIMEOUT, what="the revision being lost")

    await team.suspend(suspend=True)
    await team.wait_until_children_deleted("train", ["Pod"])
    await team.wait_for_condition("Suspended", "Suspended")
    await team.suspend(suspend=False)
    await team.wait_until_running("train", 1)

    async def has_two_events() -> bool:
        events = [each for each in await team.all("Event") if each["reason"] == "JobSetKept"]
        return sum(each.get("count", 1) for each in events) > 1

    await until(has_two_events, within=END_TO_END_TIMEOUT, what="an Event that happened twice")
    await team.wait_until_deleted("ControllerRevision", unused)
    await exceed_a_deadline(team)


async def exceed_a_deadline(team: ClusterTeam) -> None:
    """Make the manager delete the JobSet of a TrainJob that runs too long."""
    await team.create_job("overdue", activeDeadlineSeconds=5, **LASTING)
    await team.wait_for_condition("Failed", "DeadlineExceeded", name="overdue")
    await team.wait_until_deleted("JobSet", "overdue")


async def recorded_revision(team: ClusterTeam, name: str) -> str:
    """Wait until the TrainJob records a revision; return its name."""

    async def recorded() -> str | None:
        status = (await team.get("TrainJob", name)).get("status", {})
        found: str | None = status.get("runtimeRevision")
        return found

    return await until(recorded, within=END_TO_END_TIMEOUT, what=f"the revision of {name}")
