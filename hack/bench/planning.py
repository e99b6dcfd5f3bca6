"""`make bench`: how long it takes to plan a TrainJob, against merely copying and encoding the plan.

Planning makes each object once from a template; copying and encoding the result is the least that
any planning costs. Best of several rounds, all in one process.
"""

import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import orjson

from bench.parsing import JOB, TRAIN_JOB, best
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, SECRETS
from kftrainer.api.trainingruntime import ClusterTrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.runtimes import Runtimes

RUNTIMES = Runtimes(load_framework())
MPI_NODES = (10, 100, 1_000, 10_000)


class Cached:
    """What a manager's cache holds: the runtime, already decoded, and perhaps a Secret."""

    def __init__(self, runtime: ClusterTrainingRuntime, *, secret: bool) -> None:
        self._runtime = runtime
        self._secret = {"metadata": {"name": "job-mpi-ssh-auth"}} if secret else None

    def is_complete(self, _resource: Resource[Any]) -> bool:
        """All kinds are watched."""
        return True

    def get(self, resource: Resource[Any], _key: ObjectKey) -> Any:
        """The runtime or the Secret."""
        if resource is CLUSTER_TRAINING_RUNTIMES:
            return self._runtime
        return self._secret if resource is SECRETS else None

    def list(self, _resource: Resource[Any], _namespace: str | None = None) -> Sequence[Any]:
        """There is nothing else."""
        return ()

    def iterate(self, _resource: Resource[Any], _namespace: str | None = None) -> Iterator[Any]:
        """There is nothing else."""
        return iter(())


def runtime(policy: dict[str, Any], jobs: list[dict[str, Any]]) -> ClusterTrainingRuntime:
    """A runtime with this policy and these jobs."""
    return ClusterTrainingRuntime.parse(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "ClusterTrainingRuntime",
            "metadata": {"name": "torch-distributed"},
            "spec": {
                "mlPolicy": {"numNodes": 1, **policy},
                "template": {"spec": {"replicatedJobs": jobs}},
            },
        }
    )


def job(nodes: int) -> TrainJob:
    """A TrainJob as a user writes it, on this number of nodes."""
    document = deepcopy(TRAIN_JOB)
    del document["spec"]["initializer"]
    document["spec"]["trainer"]["numNodes"] = nodes
    return TrainJob.parse(document)


class Measured(NamedTuple):
    """Seconds to plan, and to copy and encode what was planned."""

    planning: float
    copying: float

    @property
    def ratio(self) -> float:
        """How much more planning takes."""
        return self.planning / self.copying


def measure(train_job: TrainJob, existing: Cached) -> Measured:
    """Plan, and copy and encode the same plan."""
    runtimes = RUNTIMES.of(train_job)
    manifests = [each.manifest for each in runtimes.new_objects(train_job, existing)]
    return Measured(
        best(lambda: runtimes.new_objects(train_job, existing)),
        best(lambda: orjson.dumps(deepcopy(manifests))),
    )


def torch() -> Measured:
    """A torch TrainJob on eight nodes."""
    return measure(job(8), Cached(runtime({"torch": {}}, [JOB]), secret=False))


def mpi(nodes: int) -> Measured:
    """An MPI TrainJob whose keys are there already, as they are but for the first time."""
    worker = {**deepcopy(JOB), "template": {"spec": JOB["template"]["spec"]}}  # type: ignore[index]
    launcher = {**deepcopy(JOB), "name": "launcher"}
    mpi_runtime = runtime({"mpi": {"numProcPerNode": 8}}, [worker, launcher])
    return measure(job(nodes), Cached(mpi_runtime, secret=True))


def row(what: str, measured: Measured) -> str:
    """One line of the table."""
    return (
        f"{what:<34} {1 / measured.planning:>8,.0f} plans/s  {measured.planning * 1e6:>9.1f} µs"
        f"  {measured.ratio:>5.2f} of deepcopy and orjson.dumps of the plan"
    )


def main() -> int:
    """Measure and print."""
    print(row("torch, 8 nodes", torch()))
    grown = {nodes: mpi(nodes) for nodes in MPI_NODES}
    for nodes, measured in grown.items():
        print(row(f"MPI, {nodes:,} nodes", measured))
    few, many = grown[1_000], grown[10_000]
    growth = many.planning / few.planning
    print(f"MPI from 1,000 to 10,000 nodes: {growth:.1f} times the time (linear would be 10)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
