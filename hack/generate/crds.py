"""The CustomResourceDefinitions of the operator."""

from typing import Any

from pydantic import BaseModel

from generate import schema
from kftrainer.api.names import GROUP, VERSION
from kftrainer.api.trainingruntime import ClusterTrainingRuntime, TrainingRuntime
from kftrainer.api.trainjob import TrainJob

TRUE_CONDITION = '.status.conditions[?(@.status=="True")]'
AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
TRAINJOB_COLUMNS: list[dict[str, Any]] = [
    {"name": "State", "type": "string", "jsonPath": ".status.state"},
    {"name": "Ready", "type": "integer", "jsonPath": ".status.nodes.ready"},
    {"name": "Nodes", "type": "integer", "jsonPath": ".status.nodes.desired"},
    {"name": "Runtime", "type": "string", "jsonPath": ".spec.runtimeRef.name"},
    AGE,
    {"name": "Reason", "type": "string", "jsonPath": f"{TRUE_CONDITION}.reason", "priority": 1},
]
RUNTIME_COLUMNS: list[dict[str, Any]] = [
    {
        "name": "Framework",
        "type": "string",
        "jsonPath": r".metadata.labels.trainer\.kubeflow\.org/framework",
    },
    {"name": "Nodes", "type": "integer", "jsonPath": ".spec.mlPolicy.numNodes"},
    AGE,
]


def crd(
    model: type[BaseModel],
    library: schema.Library,
    *,
    short_name: str,
    columns: list[dict[str, Any]],
    namespaced: bool = True,
    status: bool = False,
) -> dict[str, Any]:
    """Return a CustomResourceDefinition."""
    kind = model.__name__
    singular, plural = kind.lower(), f"{kind.lower()}s"
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema.of_root(model, library)},
        "additionalPrinterColumns": columns,
    }
    if status:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": singular,
                "shortNames": [short_name],
                "categories": ["kubeflow"],
            },
            "versions": [version],
        },
    }


def all_crds(library: schema.Library) -> list[dict[str, Any]]:
    """Return all CustomResourceDefinitions of the operator."""
    return [
        crd(TrainJob, library, short_name="tj", columns=TRAINJOB_COLUMNS, status=True),
        crd(TrainingRuntime, library, short_name="tr", columns=RUNTIME_COLUMNS),
        crd(
            ClusterTrainingRuntime,
            library,
            short_name="ctr",
            columns=RUNTIME_COLUMNS,
            namespaced=False,
        ),
    ]
