"""Planning in tests: documents in, objects by kind out."""

from typing import Any

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.kube.objects.resource import Manifest
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.info import Info
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.runtimes import Runtimes
from tests.support.objects import Object

NAMESPACE = "team"
UID = "11111111-2222-3333-4444-555555555555"
RUNTIMES = Runtimes(load_framework())


def job_on(runtime: Object, name: str = "demo", **spec: Any) -> Object:
    """A TrainJob on this runtime, as the API server would store it."""
    reference = {key: runtime[key] for key in ("kind",)} | {"name": runtime["metadata"]["name"]}
    reference["apiGroup"] = "trainer.kubeflow.org"
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": UID},
        "spec": {"runtimeRef": reference, **spec},
    }


def in_namespace(document: Object) -> Object:
    """The document in the namespace of the tests' TrainJobs, if it belongs into one."""
    if document["kind"] == "ClusterTrainingRuntime":
        return document
    return {**document, "metadata": {"namespace": NAMESPACE, **document["metadata"]}}


def planned(job: Object, runtime: Object, *others: Object) -> list[PlannedObject]:
    """The plan, with the other objects being there already."""
    parsed = TrainJob.parse(job)
    existing = GivenObjects([in_namespace(runtime), *others])
    return list(RUNTIMES.of(parsed).new_objects(parsed, existing))


def plan(job: Object, runtime: Object, *others: Object) -> dict[str, Manifest]:
    """The objects of the plan by their kinds, in the order of applying."""
    return {each.manifest["kind"]: each.manifest for each in planned(job, runtime, *others)}


def jobs_of(jobset: Manifest) -> dict[str, Any]:
    """The replicated jobs of a JobSet by name."""
    return {each["name"]: each for each in jobset["spec"]["replicatedJobs"]}


def pod_of(jobset: Manifest, job: str = "node") -> Any:
    """The spec of a replicated job's pods."""
    return jobs_of(jobset)[job]["template"]["spec"]["template"]["spec"]


def container_of(jobset: Manifest, job: str = "node", container: str = "node") -> Any:
    """A container of a replicated job's pods."""
    return next(each for each in pod_of(jobset, job)["containers"] if each["name"] == container)


def findings(
    job: Object, runtime: Object, *others: Object, old: Object | None = None
) -> ValidationResult:
    """What admission finds."""
    new = TrainJob.parse(job)
    before = None if old is None else TrainJob.parse(old)
    existing = GivenObjects([in_namespace(runtime), *others])
    return RUNTIMES.of(new).validate_objects(before, new, existing)


def info_of(job: Object, runtime: Object, *others: Object) -> Info:
    """What plugins start from."""
    kind = runtime["kind"]
    resource = TRAINING_RUNTIMES if kind == "TrainingRuntime" else CLUSTER_TRAINING_RUNTIMES
    return RUNTIMES.framework.new_info(
        TrainJob.parse(job), resource.decode(runtime), GivenObjects(others)
    )
