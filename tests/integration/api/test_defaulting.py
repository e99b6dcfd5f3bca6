"""Our defaulting and our structural errors equal the API server's."""

from typing import Any

import pytest

from kftrainer.api.schema.offline import stored, with_defaults
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.errors import ApiError
from tests.support.objects import COLLECTIONS, Object, replicated_job, runtime, train_job
from tests.support.runtimes import SHIPPED

CONFIG_MAP_KEY = {"configMapKeyRef": {"key": "k"}}
EVERY_VALUE_FROM = [
    {"name": "A", "value": None},
    {"name": "B", "valueFrom": {"secretKeyRef": {"key": "k"}}},
    {"name": "C", "valueFrom": CONFIG_MAP_KEY},
    {"name": "D", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}},
    {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
]
VOLUMES = [
    {"name": "azure", "azureDisk": {"diskName": "d", "diskURI": "u"}},
    {"name": "iscsi", "iscsi": {"iqn": "i", "lun": 1, "targetPortal": "t", "secretRef": {}}},
    {"name": "rbd", "rbd": {"image": "i", "monitors": ["m"], "pool": None}},
    {"name": "scaleio", "scaleIO": {"gateway": "g", "secretRef": {}, "system": "s"}},
    {"name": "projected", "projected": {"sources": [{"configMap": {}}, {"secret": {}}]}},
    {"name": "config", "configMap": None, "emptyDir": {}},
]
OVERRIDE = {
    "targetJobs": [{"name": "node"}],
    "spec": {
        "volumes": VOLUMES,
        "containers": [{"name": "node", "env": EVERY_VALUE_FROM}],
        "initContainers": [],
        "imagePullSecrets": [{}],
        "nodeSelector": {"a": "b", "c": None},
    },
}
FLAT_OVERRIDE = {"targetJobs": OVERRIDE["targetJobs"], **OVERRIDE["spec"]}

TRAIN_JOBS: dict[str, Object] = {
    "nothing but a runtime": {},
    "a runtime of another kind": {"runtimeRef": {"name": "r", "kind": "TrainingRuntime"}},
    "nulls for what has a default": {
        "runtimeRef": {"name": "r", "kind": None, "apiGroup": None},
        "suspend": None,
        "managedBy": None,
    },
    "nulls for what has none": {"trainer": None, "labels": None, "podTemplateOverrides": None},
    "nulls in maps": {"labels": {"a": "b", "c": None}, "annotations": {"d": None}},
    "an empty trainer": {"trainer": {}},
    "every source of a variable": {"trainer": {"env": EVERY_VALUE_FROM}},
    "initializers": {
        "initializer": {
            "dataset": {"secretRef": {}, "env": EVERY_VALUE_FROM},
            "model": {"secretRef": {"name": None}, "storageUri": None},
        }
    },
    "an override": {"podTemplateOverrides": [OVERRIDE]},
    "two overrides": {"podTemplateOverrides": [OVERRIDE, {"targetJobs": [{"name": "x"}]}]},
    "an override of old": {"podSpecOverrides": [FLAT_OVERRIDE]},
    "said already": {"suspend": True, "managedBy": "kueue.x-k8s.io/multikueue"},
    "resources": {"trainer": {"resourcesPerNode": {"limits": {"cpu": 1, "memory": "1Gi"}}}},
    "unknown fields": {
        "nonesuch": 1,
        "trainer": {"imagee": "x", "env": [{"name": "A", "valeu": "b"}]},
        "runtimeRef": {"name": "r", "nonesuch": {"name": "x"}},
        "podTemplateOverrides": [{**OVERRIDE, "nonesuch": []}],
    },
}

PROBE = {"grpc": {"port": 1}}
POD_DEFAULTS = replicated_job(
    ports=[{"containerPort": 1}, {"containerPort": 2, "protocol": "UDP"}],
    env=EVERY_VALUE_FROM,
    envFrom=[{"secretRef": {}}, {"configMapRef": {"name": None}}],
    livenessProbe=PROBE,
    readinessProbe=PROBE,
    startupProbe=PROBE,
)


def pod_with(**spec: Any) -> Object:
    job = replicated_job()
    job["template"]["spec"]["template"]["spec"] |= spec
    return job


def with_template(**template: Any) -> Object:
    return {"template": {"spec": {"replicatedJobs": [replicated_job()], **template}}}


RUNTIMES: dict[str, Object] = {
    "torch": {},
    "no policy": {"mlPolicy": {}},
    "mpi": {"mlPolicy": {"mpi": {}}},
    "mpi with nulls": {"mlPolicy": {"numNodes": None, "mpi": {"sshAuthMountPath": None}}},
    "mpi that says something": {"mlPolicy": {"mpi": {"numProcPerNode": 4}}},
    "coscheduling": {"podGroupPolicy": {"coscheduling": {}}},
    "volcano": {"podGroupPolicy": {"volcano": {}}},
    "volcano with a topology": {"podGroupPolicy": {"volcano": {"networkTopology": {}}}},
    "volcano with half a topology": {
        "podGroupPolicy": {"volcano": {"networkTopology": {"mode": "soft"}}}
    },
    "pods": {"template": {"spec": {"replicatedJobs": [POD_DEFAULTS]}}},
    "volumes": {"template": {"spec": {"replicatedJobs": [pod_with(volumes=VOLUMES)]}}},
    "init containers": {
        "template": {
            "spec": {
                "replicatedJobs": [
                    pod_with(initContainers=[{"name": "i", "ports": [{"containerPort": 1}]}])
                ]
            }
        }
    },
    "null items": {
        "template": {"spec": {"replicatedJobs": [pod_with(imagePullSecrets=[{"name": None}])]}}
    },
    "a failure policy": with_template(failurePolicy={"maxRestarts": 3}),
    "claims": with_template(
        volumeClaimPolicies=[
            {
                "retentionPolicy": {},
                "templates": [{"metadata": {"name": "c"}, "spec": {"accessModes": []}}],
            }
        ]
    ),
    "jobs with replicas": with_template(
        replicatedJobs=[{**replicated_job(), "replicas": 0, "groupName": None}]
    ),
    "unknown fields": with_template(
        nonesuch={"a": 1}, replicatedJobs=[{**replicated_job(), "nonesuch": 1}]
    ),
}
DOCUMENTS = (
    [pytest.param(train_job(**spec), id=f"TrainJob: {name}") for name, spec in TRAIN_JOBS.items()]
    + [pytest.param(runtime(**spec), id=f"runtime: {name}") for name, spec in RUNTIMES.items()]
    + [pytest.param(each, id=f"shipped: {each['metadata']['name']}") for each in SHIPPED]
)


async def created(api: ApiClient, document: Object, namespace: str) -> Object:
    path = COLLECTIONS[document["kind"]].format(namespace)
    query = {"fieldValidation": "Ignore", "dryRun": "All"}
    return await api.request("POST", path, query=query, body=document)


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_offline_defaults_match_the_server(
    api: ApiClient, namespace: str, document: Object
) -> None:
    found = await created(api, document, namespace)
    assert with_defaults(document)["spec"] == found["spec"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_accepted_documents_have_no_offline_errors(document: Object) -> None:
    assert stored(document).problems == []


WRONG: dict[str, tuple[Object, str]] = {
    "text for a list": (train_job(trainer={"command": "x"}), "spec.trainer.command"),
    "a list for text": (train_job(trainer={"image": ["x"]}), "spec.trainer.image"),
    "text for an object": (train_job(trainer="x"), "spec.trainer"),
    "text for a truth": (train_job(suspend="true"), "spec.suspend"),
    "a truth for text": (train_job(labels={"a": True}), "spec.labels.a"),
    "half a number": (train_job(trainer={"numNodes": 1.5}), "spec.trainer.numNodes"),
    "half a CPU": (
        train_job(trainer={"resourcesPerNode": {"limits": {"cpu": 0.5}}}),
        "spec.trainer.resourcesPerNode.limits.cpu",
    ),
    "a null in a list": (train_job(trainer={"args": [None]}), "spec.trainer.args[0]"),
    "no name of a variable": (train_job(trainer={"env": [{}]}), "spec.trainer.env[0].name"),
    "no reference": ({**train_job(), "spec": {}}, "spec.runtimeRef"),
    "not one of those allowed": (
        runtime(**with_template(failurePolicy={"restartStrategy": "Never"})),
        "spec.template.spec.failurePolicy.restartStrategy",
    ),
    "text for a number": (
        runtime(**with_template(replicatedJobs=[{**replicated_job(), "replicas": "1"}])),
        "spec.template.spec.replicatedJobs[0].replicas",
    ),
}


@pytest.mark.parametrize(("document", "path"), WRONG.values(), ids=WRONG)
async def test_offline_errors_have_the_paths_of_the_server(
    api: ApiClient, namespace: str, document: Object, path: str
) -> None:
    assert [problem.path for problem in stored(document).problems] == [path]
    with pytest.raises(ApiError) as refused:
        await created(api, document, namespace)
    assert path in str(refused.value)
