"""TrainJobs from their creation to Complete: what they run on, and what is left of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kftrainer.devcluster.client import Object
from tests.support.objects import train_job
from tests.support.trainjobs import Ground

WITH_INITIALIZERS = {"dataset-initializer": 1, "model-initializer": 1, "node": 1}


def on_nodes(number: int) -> Mapping[str, Any]:
    """What a TrainJob says to have so many nodes."""
    return {"trainer": {"numNodes": number}}


FETCHING: Mapping[str, Any] = {
    "initializer": {
        "dataset": {"storageUri": "hf://team/dataset"},
        "model": {"storageUri": "hf://team/model"},
    }
}


@dataclass(frozen=True)
class Life:
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
    """A disk for the claims of one TrainJob with initializers, as there is nobody to make some."""
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
