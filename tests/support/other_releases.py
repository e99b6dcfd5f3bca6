"""Requests of clients of other releases of Kubeflow Trainer, and what is rejected in them."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from kftrainer.cli.commands import crds
from tests.support.objects import Object, runtime, train_job

# Added to every TrainJob by the webhook of Kueue 0.17 and later.
KUEUE_ENTRY: Object = {
    "manager": "kueue.x-k8s.io/manager",
    "trainingRuntimeSpec": {"template": {"spec": {}}},
}
# Sent by the SDK (kubeflow 0.4.0 and 0.5.0) for the option RuntimePatch.
SDK_PATCH: Object = {
    "manager": "trainer.kubeflow.org/kubeflow-sdk",
    "trainingRuntimeSpec": {
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "spec": {
                                "template": {
                                    "spec": {
                                        "nodeSelector": {"zone": "a"},
                                        "tolerations": [{"key": "gpu", "operator": "Exists"}],
                                    }
                                }
                            }
                        },
                    }
                ]
            }
        }
    },
}
KUEUE_ADMISSION: Object = {
    "manager": "kueue.x-k8s.io/manager",
    "trainingRuntimeSpec": {
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "spec": {
                                "template": {
                                    "metadata": {"labels": {"kueue.x-k8s.io/podset": "node"}},
                                    "spec": {"nodeSelector": {"flavor": "spot"}},
                                }
                            }
                        },
                    }
                ]
            }
        }
    },
}


@dataclass(frozen=True, slots=True)
class Unserved:
    """A field that is not served: a spec with it, its path, and the words that name it."""

    kind: str
    spec: Object
    path: str
    named: str

    def document(self, name: str) -> Object:
        """A valid object, but for this field."""
        if self.kind == "TrainJob":
            return train_job(name, **deepcopy(self.spec))
        return runtime(name, kind=self.kind, **deepcopy(self.spec))

    def __str__(self) -> str:
        return self.path


def _policy(**policy: Any) -> Object:
    return {"mlPolicy": policy}


UNSERVED = (
    *(
        Unserved("TrainingRuntime", _policy(**policy), f"spec.mlPolicy.{path}", named)
        for policy, path, named in (
            ({"jax": {}}, "jax", "jax (Kubeflow Trainer 2.2) is not supported"),
            ({"xgboost": {}}, "xgboost", "xgboost (Kubeflow Trainer 2.2) is not supported"),
            (
                {"flux": {"numProcPerNode": 2}},
                "flux",
                "flux (Kubeflow Trainer 2.2) is not supported: use spec.mlPolicy.mpi",
            ),
            (
                {"torch": {"elasticPolicy": {"minNodes": 1, "maxNodes": 4}}},
                "torch.elasticPolicy",
                "elasticPolicy (Kubeflow Trainer 2.0 and 2.1, where it has no effect) is not "
                "supported: set spec.mlPolicy.numNodes",
            ),
        )
    ),
)


FORBIDDEN = "FieldValueForbidden"


def definitions() -> list[Object]:
    """Our CRDs of namespaced kinds."""
    found = [yaml.load(text, Loader=yaml.CSafeLoader) for text in crds.documents()]
    return [each for each in found if each["spec"]["scope"] == "Namespaced"]


def without_rejections(part: Any) -> Any:
    """The CRD without the rules that reject fields, as if another release had installed it."""
    if isinstance(part, list):
        return [without_rejections(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {key: without_rejections(value) for key, value in part.items()}
    if rules := kept.pop("x-kubernetes-validations", None):
        rules = [rule for rule in rules if rule.get("reason") != FORBIDDEN]
        kept |= {"x-kubernetes-validations": rules} if rules else {}
    return kept
