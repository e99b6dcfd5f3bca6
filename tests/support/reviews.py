"""AdmissionReviews as an API server sends them."""

from typing import Any

Review = dict[str, Any]

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def train_job(name: str = "job", **spec: Any) -> dict[str, Any]:
    """A TrainJob in a review, with all fields that the API server adds."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": "b4a8a3f2-2a5e-4b06-9a52-a2a7d8a0a1ce",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            "labels": {"team": "research"},
            "managedFields": [
                {
                    "apiVersion": "trainer.kubeflow.org/v1alpha1",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {".": {}, "f:runtimeRef": {}, "f:trainer": {}}},
                    "manager": "kubectl-client-side-apply",
                    "operation": "Update",
                    "time": "2026-01-01T00:00:00Z",
                }
            ],
        },
        "spec": {
            "managedBy": "trainer.kubeflow.org/trainjob-controller",
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": "torch-distributed",
            },
            "suspend": False,
            "trainer": {
                "image": "registry.example/train:1",
                "command": ["torchrun", "train.py"],
                "env": [{"name": "LOG_LEVEL", "value": "info"}],
                "numNodes": 2,
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": "4"}},
            },
            **spec,
        },
    }


def review(
    obj: dict[str, Any] | None = None,
    old: dict[str, Any] | None = None,
    *,
    operation: str = "CREATE",
    **request: Any,
) -> Review:
    """A review of an object, by default of the creation of a TrainJob."""
    obj = train_job() if obj is None and operation in ("CREATE", "UPDATE") else obj
    about = obj or old or {}
    group, _, version = about.get("apiVersion", "").partition("/")
    kind = {"group": group, "version": version, "kind": about.get("kind", "")}
    resource = {
        "group": group,
        "version": version,
        "resource": f"{about.get('kind', '').lower()}s",
    }
    metadata = about.get("metadata", {})
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": UID,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": metadata.get("name", ""),
            "namespace": metadata.get("namespace", ""),
            "operation": operation,
            "userInfo": {
                "username": "kubernetes-admin",
                "groups": ["system:masters", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/credential-id": ["X509SHA256=5c1a"]},
            },
            "object": obj,
            "oldObject": old,
            "dryRun": False,
            "options": {
                "kind": f"{operation.capitalize()}Options",
                "apiVersion": "meta.k8s.io/v1",
                "fieldManager": "kubectl-client-side-apply",
                "fieldValidation": "Strict",
            },
            **request,
        },
    }
