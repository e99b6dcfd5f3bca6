"""Every rule of the CRDs, broken once: what the API server answers, where, and in which words."""

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.errors import ApiError
from tests.support.objects import (
    COLLECTIONS,
    Object,
    replicated_job,
    runtime,
    train_job,
)

RUNTIME_KINDS = ("TrainingRuntime", "ClusterTrainingRuntime")
NODE = [{"name": "node"}]


async def refused(api: ApiClient, document: Object, namespace: str) -> str:
    """The API server's error when it rejects the creation of the object."""
    with pytest.raises(ApiError) as raised:
        await create(api, document, namespace)
    assert raised.value.status == 422
    assert raised.value.reason == "Invalid"
    return str(raised.value)


async def create(api: ApiClient, document: Object, namespace: str) -> Object:
    path = COLLECTIONS[document["kind"]].format(namespace)
    return await api.request("POST", path, query={"fieldValidation": "Strict"}, body=document)


def is_reported_at(path: str, answer: str) -> bool:
    """Whether this very field is named, and not one whose path ends alike."""
    return re.search(rf"(?<![\w.\]]){re.escape(path)}: ", answer) is not None


def override(**fields: Any) -> list[Object]:
    return [{"targetJobs": NODE, **fields}]


TRAIN_JOBS: dict[str, tuple[Object, str, str]] = {
    "name with a leading digit": (
        train_job("1st"),
        "metadata.name",
        "metadata.name must match RFC 1035 DNS label format",
    ),
    "name with a dot": (
        train_job("a.b"),
        "metadata.name",
        "metadata.name must match RFC 1035 DNS label format",
    ),
    "name that is too long": (
        train_job("x" * 64),
        "metadata.name",
        "metadata.name must be no more than 63 characters",
    ),
    "no spec": (
        {key: value for key, value in train_job().items() if key != "spec"},
        "spec",
        "Required value",
    ),
    "no runtimeRef": ({**train_job(), "spec": {}}, "spec.runtimeRef", "Required value"),
    "runtimeRef without a name": (
        train_job(runtimeRef={}),
        "spec.runtimeRef.name",
        "Required value",
    ),
    "empty runtime name": (
        train_job(runtimeRef={"name": ""}),
        "spec.runtimeRef.name",
        "should be at least 1 chars long",
    ),
    "endless runtime name": (
        train_job(runtimeRef={"name": "x" * 254}),
        "spec.runtimeRef.name",
        "Too long: may not be more than 253 bytes",
    ),
    "endless runtime group": (
        train_job(runtimeRef={"name": "x", "apiGroup": "x" * 254}),
        "spec.runtimeRef.apiGroup",
        "Too long: may not be more than 253 bytes",
    ),
    "endless runtime kind": (
        train_job(runtimeRef={"name": "x", "kind": "x" * 254}),
        "spec.runtimeRef.kind",
        "Too long: may not be more than 253 bytes",
    ),
    "unknown manager": (
        train_job(managedBy="me"),
        "spec.managedBy",
        "ManagedBy must be trainer.kubeflow.org/trainjob-controller or "
        "kueue.x-k8s.io/multikueue if set",
    ),
    "no nodes": (
        train_job(trainer={"numNodes": 0}),
        "spec.trainer.numNodes",
        "should be greater than or equal to 1",
    ),
    "no processes": (
        train_job(trainer={"numProcPerNode": 0}),
        "spec.trainer.numProcPerNode",
        "NumProcPerNode must be equal to auto, cpu, gpu, or int value",
    ),
    "a word that is no number of processes": (
        train_job(trainer={"numProcPerNode": "many"}),
        "spec.trainer.numProcPerNode",
        "NumProcPerNode must be equal to auto, cpu, gpu, or int value",
    ),
    "processes that are neither": (
        train_job(trainer={"numProcPerNode": True}),
        "spec.trainer.numProcPerNode",
        "must be of type integer,string",
    ),
    "endless image": (
        train_job(trainer={"image": "x" * 501}),
        "spec.trainer.image",
        "Too long: may not be more than 500 bytes",
    ),
    "a variable twice": (
        train_job(trainer={"env": [{"name": "A"}, {"name": "A"}]}),
        "spec.trainer.env[1]",
        "Duplicate value",
    ),
    "a variable without a name": (
        train_job(trainer={"env": [{"value": "x"}]}),
        "spec.trainer.env[0].name",
        "Required value",
    ),
    "a quantity that is none": (
        train_job(trainer={"resourcesPerNode": {"limits": {"cpu": "lots"}}}),
        "spec.trainer.resourcesPerNode.limits.cpu",
        "should match",
    ),
    "endless address of a dataset": (
        train_job(initializer={"dataset": {"storageUri": "s3://" + "x" * 2048}}),
        "spec.initializer.dataset.storageUri",
        "Too long: may not be more than 2048 bytes",
    ),
    "endless address of a model": (
        train_job(initializer={"model": {"storageUri": "s3://" + "x" * 2048}}),
        "spec.initializer.model.storageUri",
        "Too long: may not be more than 2048 bytes",
    ),
    "both dialects of overrides": (
        train_job(podTemplateOverrides=override(), podSpecOverrides=override()),
        "spec",
        "podSpecOverrides is the old name of podTemplateOverrides: only one can be set",
    ),
    "an override for a job without a name": (
        train_job(podTemplateOverrides=[{"targetJobs": [{"name": ""}]}]),
        "spec.podTemplateOverrides[0].targetJobs[0].name",
        "should be at least 1 chars long",
    ),
    "a volume without a name": (
        train_job(podTemplateOverrides=override(spec={"volumes": [{"emptyDir": {}}]})),
        "spec.podTemplateOverrides[0].spec.volumes[0].name",
        "Required value",
    ),
    "an override of 2.0 for a job without a name": (
        train_job(podSpecOverrides=[{"targetJobs": [{"name": ""}]}]),
        "spec.podSpecOverrides[0].targetJobs[0].name",
        "should be at least 1 chars long",
    ),
}
for _field in ("containers", "initContainers"):
    for _nameless, _expected in (
        ({"name": ""}, "should be at least 1 chars"),
        ({}, "Required value"),
    ):
        TRAIN_JOBS[f"an override of {_field} with {_nameless}"] = (
            train_job(podTemplateOverrides=override(spec={_field: [_nameless]})),
            f"spec.podTemplateOverrides[0].spec.{_field}[0].name",
            _expected,
        )
        TRAIN_JOBS[f"an override of 2.0 of {_field} with {_nameless}"] = (
            train_job(podSpecOverrides=override(**{_field: [_nameless]})),
            f"spec.podSpecOverrides[0].{_field}[0].name",
            _expected,
        )
for _field, _value in (("name", "mine"), ("namespace", "other"), ("finalizers", ["x.y/z"])):
    TRAIN_JOBS[f"an override of the pods' {_field}"] = (
        train_job(podTemplateOverrides=override(metadata={_field: _value})),
        "spec.podTemplateOverrides[0].metadata",
        "only labels and annotations have an effect here",
    )
for _dialect in ("podTemplateOverrides", "podSpecOverrides"):
    TRAIN_JOBS[f"{_dialect} for no job"] = (
        train_job(**{_dialect: [{"targetJobs": []}]}),
        f"spec.{_dialect}[0].targetJobs",
        "should have at least 1 items",
    )
    TRAIN_JOBS[f"{_dialect}, very many"] = (
        train_job(**{_dialect: override() * 101}),
        f"spec.{_dialect}",
        "must have at most 100 items",
    )
    TRAIN_JOBS[f"{_dialect} for very many jobs"] = (
        train_job(**{_dialect: [{"targetJobs": NODE * 101}]}),
        f"spec.{_dialect}[0].targetJobs",
        "must have at most 100 items",
    )
    TRAIN_JOBS[f"{_dialect} for nobody"] = (
        train_job(**{_dialect: [{}]}),
        f"spec.{_dialect}[0].targetJobs",
        "Required value",
    )
    TRAIN_JOBS[f"{_dialect} for a job that is not named"] = (
        train_job(**{_dialect: [{"targetJobs": [{}]}]}),
        f"spec.{_dialect}[0].targetJobs[0].name",
        "Required value",
    )


@pytest.mark.parametrize(("document", "path", "message"), TRAIN_JOBS.values(), ids=TRAIN_JOBS)
async def test_invalid_train_job_is_rejected(
    api: ApiClient, namespace: str, document: Object, path: str, message: str
) -> None:
    answer = await refused(api, document, namespace)
    assert is_reported_at(path, answer)
    assert message in answer


def template(**fields: Any) -> Object:
    return {"spec": {"replicatedJobs": [replicated_job()], **fields}}


def ordered_and_dependent() -> Object:
    second = {**replicated_job("second"), "dependsOn": [{"name": "node", "status": "Ready"}]}
    return {
        "spec": {
            "replicatedJobs": [replicated_job(), second],
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
        }
    }


RUNTIMES: dict[str, tuple[Object, str, str]] = {
    "two policies": (
        {"mlPolicy": {"torch": {}, "mpi": {}}},
        "spec.mlPolicy",
        "Only one of the policy can be configured",
    ),
    "no nodes": (
        {"mlPolicy": {"numNodes": 0}},
        "spec.mlPolicy.numNodes",
        "should be greater than or equal to 1",
    ),
    "no torch processes": (
        {"mlPolicy": {"torch": {"numProcPerNode": 0}}},
        "spec.mlPolicy.torch.numProcPerNode",
        "NumProcPerNode must be equal to auto, cpu, gpu, or int value",
    ),
    "a word that is no number of processes": (
        {"mlPolicy": {"torch": {"numProcPerNode": "4"}}},
        "spec.mlPolicy.torch.numProcPerNode",
        "NumProcPerNode must be equal to auto, cpu, gpu, or int value",
    ),
    "no MPI processes": (
        {"mlPolicy": {"mpi": {"numProcPerNode": 0}}},
        "spec.mlPolicy.mpi.numProcPerNode",
        "should be greater than or equal to 1",
    ),
    "an MPI that is not there": (
        {"mlPolicy": {"mpi": {"mpiImplementation": "LAM"}}},
        "spec.mlPolicy.mpi.mpiImplementation",
        'supported values: "OpenMPI", "Intel", "MPICH", ""',
    ),
    "an endless path": (
        {"mlPolicy": {"mpi": {"sshAuthMountPath": "/" * 4097}}},
        "spec.mlPolicy.mpi.sshAuthMountPath",
        "Too long: may not be more than 4096 bytes",
    ),
    "two gang schedulers": (
        {"podGroupPolicy": {"coscheduling": {}, "volcano": {}}},
        "spec.podGroupPolicy",
        "Only one of coscheduling and volcano can be configured",
    ),
    "a path that is none": (
        {"mlPolicy": {"mpi": {"sshAuthMountPath": ""}}},
        "spec.mlPolicy.mpi.sshAuthMountPath",
        "should be at least 1 chars long",
    ),
    "too many nodes for an integer": (
        {"mlPolicy": {"numNodes": 2**31}},
        "spec.mlPolicy.numNodes",
        "should be less than or equal to 2147483647",
    ),
    "a wait that is over before it begins": (
        {"podGroupPolicy": {"coscheduling": {"scheduleTimeoutSeconds": -1}}},
        "spec.podGroupPolicy.coscheduling.scheduleTimeoutSeconds",
        "should be greater than or equal to 0",
    ),
    "a tier below the ground": (
        {"podGroupPolicy": {"volcano": {"networkTopology": {"highestTierAllowed": -1}}}},
        "spec.podGroupPolicy.volcano.networkTopology.highestTierAllowed",
        "should be greater than or equal to 0",
    ),
    "an unknown topology mode": (
        {"podGroupPolicy": {"volcano": {"networkTopology": {"mode": "firm"}}}},
        "spec.podGroupPolicy.volcano.networkTopology.mode",
        'supported values: "hard", "soft"',
    ),
    "an empty template": (
        {"template": {}},
        "spec.template",
        "should have at least 1 properties",
    ),
    "a name for the JobSet": (
        {"template": {"metadata": {"name": "mine"}, **template()}},
        "spec.template.metadata",
        "only labels and annotations have an effect here",
    ),
    "order and dependencies at once": (
        {"template": ordered_and_dependent()},
        "spec.template.spec",
        "StartupPolicy and DependsOn APIs are mutually exclusive",
    ),
    "a job without a template": (
        {"template": {"spec": {"replicatedJobs": [{"name": "node"}]}}},
        "spec.template.spec.replicatedJobs[0].template",
        "Required value",
    ),
    "two jobs of one name": (
        {"template": {"spec": {"replicatedJobs": [replicated_job(), replicated_job()]}}},
        "spec.template.spec.replicatedJobs[1]",
        "Duplicate value",
    ),
    "an unknown restart strategy": (
        {"template": template(failurePolicy={"restartStrategy": "Pray"})},
        "spec.template.spec.failurePolicy.restartStrategy",
        "supported values",
    ),
}


@pytest.mark.parametrize("kind", RUNTIME_KINDS)
@pytest.mark.parametrize(("spec", "path", "message"), RUNTIMES.values(), ids=RUNTIMES)
async def test_invalid_runtime_is_rejected(
    api: ApiClient, namespace: str, kind: str, spec: Object, path: str, message: str
) -> None:
    answer = await refused(api, runtime(kind=kind, **spec), namespace)
    assert is_reported_at(path, answer)
    assert message in answer


@pytest.mark.parametrize("kind", RUNTIME_KINDS)
async def test_runtime_with_an_empty_spec_is_rejected(
    api: ApiClient, namespace: str, kind: str
) -> None:
    answer = await refused(api, {**runtime(kind=kind), "spec": {}}, namespace)
    assert "spec: Invalid value" in answer
    assert "should have at least 1 properties" in answer


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (train_job(trainer={"numNode": 2}), "spec.trainer.numNode"),
        (train_job(trainer={"env": [{"name": "A", "valeu": "x"}]}), "spec.trainer.env[0].valeu"),
        (runtime(mlPolicy={"torc": {}}), "spec.mlPolicy.torc"),
        (
            runtime(jobs=[replicated_job(imag="x")]),
            "spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0].imag",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_field_that_is_not_there_is_named(
    api: ApiClient, namespace: str, document: Object, field: str
) -> None:
    with pytest.raises(ApiError, match="strict decoding error") as raised:
        await create(api, document, namespace)
    assert raised.value.status == 400
    assert f'unknown field "{field}"' in str(raised.value)


def refer_elsewhere(job: Object) -> None:
    job["spec"]["runtimeRef"]["name"] = "another"


def delegate(job: Object) -> None:
    job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        (refer_elsewhere, "spec.runtimeRef", "runtimeRef is immutable"),
        (delegate, "spec.managedBy", "ManagedBy value is immutable"),
    ],
)
async def test_immutable_fields_are_rejected_on_update(
    api: ApiClient, namespace: str, change: Callable[[Object], None], path: str, message: str
) -> None:
    job = await create(api, train_job(), namespace)
    change(job)
    with pytest.raises(ApiError) as raised:
        await api.request("PUT", f"{COLLECTIONS['TrainJob'].format(namespace)}/job", body=job)
    assert raised.value.status == 422
    assert f"{path}: Invalid value" in str(raised.value)
    assert message in str(raised.value)


async def test_trainer_initializer_and_suspend_can_be_changed(
    api: ApiClient, namespace: str
) -> None:
    job = await create(api, train_job(trainer={"numNodes": 1}, initializer={}), namespace)
    job["spec"] |= {
        "trainer": {"numNodes": 2, "image": "other"},
        "initializer": {"model": {"storageUri": "hf://a/b"}},
        "suspend": True,
    }
    path = f"{COLLECTIONS['TrainJob'].format(namespace)}/job"
    assert (await api.request("PUT", path, body=job))["spec"]["trainer"]["numNodes"] == 2


async def test_the_template_of_a_runtime_can_be_changed(api: ApiClient, namespace: str) -> None:
    before = runtime(template=template(network={"enableDNSHostnames": True}))
    stored = await create(api, before, namespace)
    after = deepcopy(stored)
    after["spec"]["template"]["spec"]["network"] = {"publishNotReadyAddresses": True}
    path = f"{COLLECTIONS['TrainingRuntime'].format(namespace)}/runtime"
    changed = await api.request("PUT", path, body=after)
    assert changed["spec"]["template"]["spec"]["network"] == {"publishNotReadyAddresses": True}


CONDITION = {
    "type": "Complete",
    "status": "True",
    "reason": "AllJobsCompleted",
    "message": "",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}
COUNTS = {"name": "node", "ready": 0, "succeeded": 1, "failed": 0, "active": 0, "suspended": 0}


def without(row: Object, field: str) -> Object:
    return {key: value for key, value in row.items() if key != field}


STATUSES: dict[str, tuple[Object, str, str]] = {
    "says nothing": ({}, "status", "should have at least 1 properties"),
    "too many conditions": (
        {"conditions": [{**CONDITION, "type": f"C{n}"} for n in range(9)]},
        "status.conditions",
        "must have at most 8 items",
    ),
    "a condition twice": (
        {"conditions": [CONDITION, CONDITION]},
        "status.conditions[1]",
        "Duplicate value",
    ),
    "a condition with a free reason": (
        {"conditions": [{**CONDITION, "reason": "it is done"}]},
        "status.conditions[0].reason",
        "should match",
    ),
    "a condition of a strange type": (
        {"conditions": [{**CONDITION, "type": "not done"}]},
        "status.conditions[0].type",
        "should match",
    ),
    "a condition that is maybe": (
        {"conditions": [{**CONDITION, "status": "Maybe"}]},
        "status.conditions[0].status",
        'supported values: "True", "False", "Unknown"',
    ),
    "a row without a name": (
        {"jobsStatus": [{**COUNTS, "name": ""}]},
        "status.jobsStatus[0].name",
        "should be at least 1 chars long",
    ),
}
for _name in CONDITION:
    STATUSES[f"a condition without {_name}"] = (
        {"conditions": [without(CONDITION, _name)]},
        f"status.conditions[0].{_name}",
        "Required value",
    )
for _name, _value, _expected in (
    ("message", "x" * 32769, "Too long: may not be more than 32768 bytes"),
    ("reason", "x" * 1025, "Too long: may not be more than 1024 bytes"),
    ("reason", "", "should be at least 1 chars long"),
    ("type", "x" * 317, "Too long: may not be more than 316 bytes"),
    ("observedGeneration", -1, "should be greater than or equal to 0"),
    ("lastTransitionTime", "yesterday", "must be of type date-time"),
):
    STATUSES[f"a condition whose {_name} is {str(_value)[:9]!r}"] = (
        {"conditions": [{**CONDITION, _name: _value}]},
        f"status.conditions[0].{_name}",
        _expected,
    )
for _name in COUNTS:
    STATUSES[f"a row without {_name}"] = (
        {"jobsStatus": [without(COUNTS, _name)]},
        f"status.jobsStatus[0].{_name}",
        "Required value",
    )
for _name in without(COUNTS, "name"):
    STATUSES[f"{_name} below nothing"] = (
        {"jobsStatus": [{**COUNTS, _name: -1}]},
        f"status.jobsStatus[0].{_name}",
        "should be greater than or equal to 0",
    )


@pytest.mark.parametrize(("status", "path", "message"), STATUSES.values(), ids=STATUSES)
async def test_invalid_status_is_rejected(
    api: ApiClient, namespace: str, status: Object, path: str, message: str
) -> None:
    job = await create(api, train_job(), namespace)
    with pytest.raises(ApiError) as raised:
        await api.request(
            "PUT",
            f"{COLLECTIONS['TrainJob'].format(namespace)}/job/status",
            body={**job, "status": status},
        )
    assert raised.value.status == 422
    assert is_reported_at(path, str(raised.value))
    assert message in str(raised.value)


async def test_status_is_written_through_its_subresource_only(
    api: ApiClient, namespace: str
) -> None:
    path = f"{COLLECTIONS['TrainJob'].format(namespace)}/job"
    status = {"conditions": [CONDITION], "jobsStatus": [COUNTS]}
    created = await create(api, {**train_job(), "status": status}, namespace)
    assert "status" not in created
    written = await api.request("PUT", f"{path}/status", body={**created, "status": status})
    assert written["status"] == status
