"""The types that clients of Kubeflow Trainer 2.0 to 2.3 decode, as far as they are strict.

Found with the models of kubeflow-trainer-api 2.0.0, 2.1.0, 2.2.0 and 2.3.0, which the SDK uses.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.objects import Object

# A client of 2.0 or 2.1 decodes an integer or a string in the processes of torch; later clients
# ignore the field. In all others every client decodes an integer, or a client of 2.2 does.
INTEGERS: Mapping[str, tuple[str, ...]] = {
    "TrainJob": (
        "spec.trainer.numNodes",
        "spec.trainer.numProcPerNode",
        "spec.activeDeadlineSeconds",
    ),
    "TrainingRuntime": ("spec.mlPolicy.numNodes", "spec.mlPolicy.mpi.numProcPerNode"),
    "ClusterTrainingRuntime": ("spec.mlPolicy.numNodes", "spec.mlPolicy.mpi.numProcPerNode"),
}
DEVICES = ("nvidia.com/gpu", "google.com/tpu", "huawei.com/Ascend910", "cpu")


def undecodable(document: Object) -> list[str]:
    """What a client of one of these releases cannot decode, or decodes as something else."""
    wrong = [
        f"{path}: {value!r} is not an integer"
        for path in INTEGERS[document["kind"]]
        if not isinstance(value := _at(document, path), int | None) or isinstance(value, bool)
    ]
    if document["kind"] != "TrainJob":
        wrong += _of_runtime(document)
    return wrong


def _of_runtime(runtime: Object) -> Iterator[str]:
    if not isinstance(_at(runtime, "spec.mlPolicy"), dict):
        yield "spec.mlPolicy: is required"
    if not (_at(runtime, "metadata.labels") or {}).get("trainer.kubeflow.org/framework"):
        yield "metadata.labels: the framework is required"
    for job in _at(runtime, "spec.template.spec.replicatedJobs") or ():
        for container in _at(job, "template.spec.template.spec.containers") or ():
            limits = _at(container, "resources.limits") or {}
            for name, amount in limits.items():
                if not isinstance(amount, str):  # shown as 2.0, and not multiplied by nodes
                    yield f"limits of {container['name']}: {name}: {amount!r} is not a string"
            if limits and not any(name in limits for name in DEVICES):
                yield f"limits of {container['name']}: no device and no cpu"


def _at(document: Any, path: str) -> Any:
    for step in path.split("."):
        document = document.get(step) if isinstance(document, dict) else None
    return document
