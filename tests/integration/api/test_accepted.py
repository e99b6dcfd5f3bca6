"""What must be accepted: the runtimes that are shipped, and the TrainJobs that clients write."""

from typing import Any

import pytest

from kftrainer.api.trainingruntime import ClusterTrainingRuntime, TrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.devcluster.client import ApiClient
from tests.support.objects import (
    COLLECTIONS,
    Object,
    replicated_job,
    runtime,
    train_job,
)
from tests.support.runtimes import SHIPPED

MODELS = {
    "TrainJob": TrainJob,
    "TrainingRuntime": TrainingRuntime,
    "ClusterTrainingRuntime": ClusterTrainingRuntime,
}
PUBLISHED_BY_THE_SERVER = (
    "creationTimestamp",
    "generation",
    "managedFields",
    "namespace",
    "resourceVersion",
    "uid",
)


async def stored(api: ApiClient, document: Object, namespace: str) -> Object:
    """The object as it is stored; it must round-trip through our types."""
    path = COLLECTIONS[document["kind"]].format(namespace)
    query = {"fieldValidation": "Strict", "dryRun": "All"}
    found = await api.request("POST", path, query=query, body=document)
    assert MODELS[document["kind"]].parse(found).dump() == found
    return found


def written(found: Object) -> Object:
    """The object without what only the API server writes."""
    metadata = {
        key: value for key, value in found["metadata"].items() if key not in PUBLISHED_BY_THE_SERVER
    }
    return {**found, "metadata": metadata}


@pytest.mark.parametrize("document", SHIPPED, ids=lambda each: each["metadata"]["name"])
async def test_shipped_runtimes(api: ApiClient, namespace: str, document: Object) -> None:
    found = await stored(api, document, namespace)
    for job in found["spec"]["template"]["spec"]["replicatedJobs"]:
        assert job["replicas"] == 1
        assert job["groupName"] == "default"
    in_a_namespace = {**document, "kind": "TrainingRuntime"}
    assert (await stored(api, in_a_namespace, namespace))["spec"] == found["spec"]


def spec_defaults(**more: Any) -> Object:
    return {
        "runtimeRef": {
            "name": "torch-distributed",
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
        },
        "suspend": False,
        "managedBy": "trainer.kubeflow.org/trainjob-controller",
        **more,
    }


BASH = ["bash", "-c", "torchrun train.py"]
MPIRUN = ["mpirun", "--hostfile", "/etc/mpi/hostfile", "bash", "-c", "python train.py"]
ALL_FIELDS = {
    "image": "pytorch",
    "command": BASH,
    "args": ["--epochs=3"],
    "numNodes": 2,
    "numProcPerNode": 4,
    "env": [{"name": "A", "value": "1"}],
    "resourcesPerNode": {"limits": {"cpu": "4", "nvidia.com/gpu": 2}, "requests": {"cpu": 4}},
}
EVERY_ENV = [
    {"name": "A", "value": "1"},
    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
]
HF = {
    "storageUri": "hf://owner/data",
    "env": [{"name": "ACCESS_TOKEN", "value": "x"}],
    "secretRef": {"name": "hf"},
}
KUEUE = {
    "targetJobs": [{"name": "node"}],
    "metadata": {
        "labels": {"kueue.x-k8s.io/podset": "node"},
        "annotations": {"kueue.x-k8s.io/workload": "w"},
    },
    "spec": {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}],
    },
}
EVERY_OVERRIDE = {
    "targetJobs": [{"name": "node"}, {"name": "launcher"}],
    "spec": {
        "serviceAccountName": "trainer",
        "affinity": {"nodeAffinity": {}},
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "initContainers": [{"name": "init", "env": EVERY_ENV[:1]}],
        "containers": [
            {
                "name": "node",
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "data", "mountPath": "/more", "subPath": "more"},
                ],
            }
        ],
        "imagePullSecrets": [{"name": "registry"}],
    },
}
FLAT_OVERRIDE = {
    "targetJobs": [{"name": "node"}],
    **KUEUE["spec"],
    "containers": [{"name": "node", "env": EVERY_ENV[:1]}],
}

JOBS: dict[str, Object] = {
    "the SDK with nothing configured": {},
    "the SDK with a torch function": {"trainer": {"command": BASH, "numNodes": 2}},
    "the SDK with an MPI function": {"trainer": {"command": MPIRUN, "numNodes": 2}},
    "a container": {"trainer": ALL_FIELDS},
    "torchtune": {"trainer": {"command": ["tune", "run"], "args": ["dtype=bf16"]}},
    "processes by word": {"trainer": {"numProcPerNode": "auto"}},
    "every kind of variable": {"trainer": {"env": EVERY_ENV}},
    "initializers": {"initializer": {"dataset": HF, "model": {"storageUri": "s3://b/m"}}},
    "initializers as the SDK writes them": {
        "initializer": {"dataset": {"storageUri": "hf://a/b", "env": []}}
    },
    "a plain path, as release 2.1 took it": {
        "initializer": {"dataset": {"storageUri": "/mnt/data"}}
    },
    "labels for the JobSet": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
    "suspended for Kueue": {"suspend": True, "podTemplateOverrides": [KUEUE]},
    "Kueue 0.14": {"suspend": True, "podSpecOverrides": [FLAT_OVERRIDE]},
    "every override": {"podTemplateOverrides": [EVERY_OVERRIDE]},
    "empty words that say nothing": {
        "podTemplateOverrides": [],
        "podSpecOverrides": [FLAT_OVERRIDE],
    },
    "MultiKueue": {"managedBy": "kueue.x-k8s.io/multikueue"},
}


@pytest.mark.parametrize("spec", JOBS.values(), ids=JOBS)
async def test_train_jobs(api: ApiClient, namespace: str, spec: Object) -> None:
    found = await stored(api, train_job(**spec), namespace)
    expected = {**train_job(), "spec": spec_defaults(**spec)}
    assert written(found) == expected


async def test_quantities_as_the_sdk_sends_them(api: ApiClient, namespace: str) -> None:
    resources = {"limits": {"cpu": 4.0, "memory": "8Gi"}, "requests": {"cpu": 4.0}}
    job = train_job(trainer={"resourcesPerNode": resources})
    found = await stored(api, job, namespace)
    assert found["spec"]["trainer"]["resourcesPerNode"]["limits"] == {"cpu": 4, "memory": "8Gi"}


async def test_a_runtime_in_the_same_namespace(api: ApiClient, namespace: str) -> None:
    reference = {"name": "mine", "kind": "TrainingRuntime"}
    found = await stored(api, train_job(runtimeRef=reference), namespace)
    assert found["spec"]["runtimeRef"] == {**reference, "apiGroup": "trainer.kubeflow.org"}


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ({"torch": {}}, {"torch": {}}),
        ({"torch": {"numProcPerNode": 2}}, {"torch": {"numProcPerNode": 2}}),
        (
            {"mpi": {}},
            {
                "mpi": {
                    "numProcPerNode": 1,
                    "mpiImplementation": "OpenMPI",
                    "sshAuthMountPath": "/root/.ssh",
                    "runLauncherAsNode": False,
                }
            },
        ),
        ({}, {}),
    ],
    ids=["torch", "torch with a number", "mpi", "plain"],
)
async def test_defaults_of_policies(
    api: ApiClient, namespace: str, policy: Object, wanted: Object
) -> None:
    found = await stored(api, runtime(mlPolicy=policy), namespace)
    assert found["spec"]["mlPolicy"] == wanted


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ({"coscheduling": {}}, {"coscheduling": {"scheduleTimeoutSeconds": 60}}),
        ({"volcano": {}}, {"volcano": {}}),
        (
            {"volcano": {"networkTopology": {}}},
            {"volcano": {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}},
        ),
    ],
    ids=["coscheduling", "volcano", "volcano with topology"],
)
async def test_defaults_of_pod_groups(
    api: ApiClient, namespace: str, policy: Object, wanted: Object
) -> None:
    found = await stored(api, runtime(podGroupPolicy=policy), namespace)
    assert found["spec"]["podGroupPolicy"] == wanted


async def test_defaults_inside_pods_are_those_of_kubernetes(api: ApiClient, namespace: str) -> None:
    job = replicated_job(ports=[{"containerPort": 29500}])
    found = await stored(api, runtime(jobs=[job]), namespace)
    [stored_job] = found["spec"]["template"]["spec"]["replicatedJobs"]
    [container] = stored_job["template"]["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"containerPort": 29500, "protocol": "TCP"}]
