from typing import Any

import pytest

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES, AnyResource
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    RuntimeNotFoundError,
    UnsupportedRuntimeError,
)
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.planned_object import PlannedObject, apply_order
from kftrainer.runtime.runtimes import Runtimes, referenced_runtime, referenced_runtime_in
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import NAMESPACE, RUNTIMES, findings, job_on, plan

NAMESPACED = runtime(mlPolicy={})
CLUSTER = runtime(kind="ClusterTrainingRuntime", mlPolicy={})


def at(namespace: str, document: Object) -> Object:
    return {**document, "metadata": {**document["metadata"], "namespace": namespace}}


def test_training_runtime_is_read_from_the_namespace_of_the_trainjob() -> None:
    job = TrainJob.parse(job_on(NAMESPACED))
    runtimes = RUNTIMES.of(job)
    assert runtimes.new_objects(job, GivenObjects([at(NAMESPACE, NAMESPACED), CLUSTER]))
    with pytest.raises(RuntimeNotFoundError, match="TrainingRuntime runtime is not found in names"):
        runtimes.new_objects(job, GivenObjects([at("other", NAMESPACED), CLUSTER]))


def test_cluster_training_runtime_is_read_by_name() -> None:
    assert plan(job_on(CLUSTER), CLUSTER)["JobSet"]
    job = TrainJob.parse(job_on(CLUSTER))
    with pytest.raises(
        RuntimeNotFoundError, match=r"^ClusterTrainingRuntime runtime is not found$"
    ):
        RUNTIMES.of(job).new_objects(job, GivenObjects([at(NAMESPACE, NAMESPACED)]))


@pytest.mark.parametrize(
    "reference",
    [
        {"kind": "Runtime", "apiGroup": "trainer.kubeflow.org"},
        {"kind": "TrainingRuntime", "apiGroup": "example.com"},
    ],
)
def test_unsupported_runtime_kind_is_rejected(reference: Object) -> None:
    """D1."""
    job = job_on(CLUSTER)
    job["spec"]["runtimeRef"] |= reference
    key = f"{reference['kind']}.{reference['apiGroup']}"
    with pytest.raises(UnsupportedRuntimeError, match=rf"^unsupported runtime: {key}$"):
        RUNTIMES.of(TrainJob.parse(job))


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ({"kind": "TrainingRuntime"}, (TRAINING_RUNTIMES, ObjectKey(NAMESPACE, "torch"))),
        ({}, (CLUSTER_TRAINING_RUNTIMES, ObjectKey("", "torch"))),
        ({"kind": "Runtime"}, None),
        ({"apiGroup": "example.com"}, None),
    ],
)
def test_runtime_ref_resolves_to_kind_and_key(
    reference: Object, found: tuple[AnyResource, ObjectKey] | None
) -> None:
    job = job_on(CLUSTER)
    job["spec"]["runtimeRef"] = {"name": "torch", **reference}
    assert referenced_runtime(TrainJob.parse(job)) == found
    assert referenced_runtime_in(job) == found


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"runtimeRef": "torch"},
        {"runtimeRef": {"kind": "TrainingRuntime"}},
        {"runtimeRef": {"name": "x" * 254}},
        {"runtimeRef": {"name": "torch", "kind": ["TrainingRuntime"]}},
        {"runtimeRef": {"name": "torch", "apiGroup": None}},
    ],
)
def test_stored_runtime_ref_that_violates_the_schema_resolves_to_none(spec: Any) -> None:
    assert referenced_runtime_in({"metadata": {"namespace": NAMESPACE}, "spec": spec}) is None


def test_invalid_runtime_is_reported_at_admission() -> None:
    broken = runtime(template={"spec": {}})
    found = findings(job_on(broken), broken)
    assert [error.path for error in found.errors] == ["spec.runtimeRef"]
    assert "spec.template.spec: Required value" in found.errors[0].detail


def test_objects_are_applied_in_a_fixed_order() -> None:
    """D16."""

    def planned(kind: str) -> PlannedObject:
        resource = type("R", (), {"kind": kind})()
        return PlannedObject(resource, {"kind": kind})

    kinds = ["JobSet", "Service", "PodGroup", "ConfigMap", "Secret"]
    ordered = sorted(map(planned, kinds), key=apply_order)
    assert [each.resource.kind for each in ordered] == [
        "Secret",
        "ConfigMap",
        "Service",
        "PodGroup",
        "JobSet",
    ]


@pytest.mark.parametrize(
    ("plugin", "spec"),
    [
        ("Torch", {"mlPolicy": {"torch": {}}}),
        ("MPI", {"mlPolicy": {"mpi": {"runLauncherAsNode": True}}}),
        ("CoScheduling", {"podGroupPolicy": {"coscheduling": {}}}),
        ("Volcano", {"podGroupPolicy": {"volcano": {}}}),
    ],
)
def test_policy_of_a_disabled_plugin_is_rejected(plugin: str, spec: Object) -> None:
    document = at(NAMESPACE, runtime(**{"mlPolicy": {}, **spec}))
    job = TrainJob.parse(job_on(document))
    runtimes = Runtimes(load_framework(disabled=[plugin]))
    with pytest.raises(InvalidRuntimeError, match=f"needs the plugin {plugin}, which is disabled"):
        runtimes.of(job).new_objects(job, GivenObjects([document]))
    assert RUNTIMES.of(job).new_objects(job, GivenObjects([document]))


def test_runtime_beyond_a_limit_is_reported_to_its_trainjobs() -> None:
    jobs = [replicated_job(f"job-{n}", None) for n in range(101)]
    large = runtime(mlPolicy={}, jobs=jobs)
    too_many = "spec.template.spec.replicatedJobs: Too many: 101: must have at most 100 items"
    with pytest.raises(InvalidRuntimeError) as raised:
        plan(job_on(large), large)
    assert str(raised.value) == f"TrainingRuntime runtime: {too_many}"
    [error] = findings(job_on(large), large).errors
    assert error.path == "spec.runtimeRef"
    assert error.detail == f"TrainingRuntime runtime: {too_many}"
