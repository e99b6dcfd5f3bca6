"""Objects for tests: small, valid, and changed by keyword."""

from typing import Any

Object = dict[str, Any]

API = "trainer.kubeflow.org/v1alpha1"
COLLECTIONS = {
    "TrainJob": f"/apis/{API}/namespaces/{{}}/trainjobs",
    "TrainingRuntime": f"/apis/{API}/namespaces/{{}}/trainingruntimes",
    "ClusterTrainingRuntime": f"/apis/{API}/clustertrainingruntimes",
}


def train_job(name: str = "job", **spec: Any) -> Object:
    """A TrainJob on the runtime torch-distributed."""
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, **spec},
    }


def replicated_job(name: str = "node", step: str | None = "trainer", **container: Any) -> Object:
    """A job of a runtime's template with one container of the same name."""
    job: Object = {
        "name": name,
        "template": {
            "spec": {
                "template": {
                    "spec": {"containers": [{"name": name, "image": "trainer", **container}]}
                }
            }
        },
    }
    if step is not None:
        job["template"]["metadata"] = {
            "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": step}
        }
    return job


def runtime(
    name: str = "runtime",
    kind: str = "TrainingRuntime",
    jobs: list[Object] | None = None,
    **spec: Any,
) -> Object:
    """A runtime with a template of one job, unless the jobs are given."""
    template = {"spec": {"replicatedJobs": jobs or [replicated_job()]}}
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": template, **spec},
    }
