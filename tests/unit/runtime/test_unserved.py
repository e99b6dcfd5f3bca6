"""Objects that other releases have stored, with fields that are not served here."""

from copy import deepcopy

import pytest

from kftrainer.api.trainingruntime import TrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import InvalidRuntimeError, InvalidTrainJobError
from kftrainer.runtime.validation.training_runtime import runtime_findings
from tests.support.objects import Object, runtime
from tests.support.other_releases import KUEUE_ENTRY, UNSERVED, Unserved
from tests.support.plans import (
    NAMESPACE,
    RUNTIMES,
    UID,
    in_namespace,
    job_on,
    jobs_of,
    plan,
    pod_of,
)

RUNTIME = runtime()
DEADLINE = "spec.activeDeadlineSeconds"
INERT = "spec.mlPolicy.torch.elasticPolicy"
OF_JOBS = [case for case in UNSERVED if case.kind == "TrainJob"]
OF_RUNTIMES = [case for case in UNSERVED if case.kind != "TrainJob"]


@pytest.mark.parametrize("case", OF_JOBS, ids=str)
def test_stored_train_job_with_an_unserved_field_has_no_plan(case: Unserved) -> None:
    with pytest.raises(InvalidTrainJobError) as raised:
        plan(job_on(RUNTIME, **case.spec), RUNTIME)
    assert f"{case.path}: Forbidden: {case.named}" in str(raised.value)


@pytest.mark.parametrize("case", OF_JOBS, ids=str)
def test_update_of_a_stored_train_job_is_admitted_with_a_warning(case: Unserved) -> None:
    old = TrainJob.parse(job_on(RUNTIME, suspend=True, **case.spec))
    new = TrainJob.parse(job_on(RUNTIME, suspend=False, **case.spec))
    found = RUNTIMES.validate(old, new, GivenObjects([in_namespace(RUNTIME)]))
    assert found.errors == []
    assert any(f"{case.path}: Forbidden: {case.named}" in each for each in found.warnings)


def test_patch_without_content_has_no_effect_on_the_plan() -> None:
    job = job_on(RUNTIME, runtimePatches=[KUEUE_ENTRY])
    assert plan(job, RUNTIME) == plan(job_on(RUNTIME), RUNTIME)


@pytest.mark.parametrize("case", OF_RUNTIMES, ids=str)
def test_stored_runtime_is_unusable_unless_the_field_never_had_an_effect(case: Unserved) -> None:
    document = case.document("stored")
    message = f"{case.path}: Forbidden: {case.named}"
    if case.path != INERT:
        with pytest.raises(InvalidRuntimeError) as raised:
            plan(job_on(document), document)
        assert message in str(raised.value)
        return
    assert [*plan(job_on(document), document)] == ["JobSet"]
    findings = runtime_findings(RUNTIMES.framework, TrainingRuntime.parse(document))
    assert findings.errors == []
    [warning] = findings.warnings
    assert warning.startswith(f"{INERT}: has no effect: {case.named}")


def job_set(uid: str = UID) -> Object:
    owner = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "name": "demo",
        "uid": uid,
        "controller": True,
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": "demo",
            "namespace": NAMESPACE,
            "uid": "of-the-jobset",
            "ownerReferences": [owner],
        },
        "spec": {"suspend": True, "replicatedJobs": []},
    }


@pytest.mark.parametrize("case", OF_RUNTIMES, ids=str)
def test_trainjob_with_a_jobset_is_planned_on_a_runtime_with_an_unserved_field(
    case: Unserved,
) -> None:
    document = case.document("stored")
    assert [*plan(job_on(document), document, job_set())] == ["JobSet"]


@pytest.mark.parametrize("case", OF_JOBS, ids=str)
def test_trainjob_with_a_jobset_is_planned_unless_the_field_is_not_in_the_jobset(
    case: Unserved,
) -> None:
    job = job_on(RUNTIME, **case.spec)
    if case.path != DEADLINE:
        assert [*plan(job, RUNTIME, job_set())] == ["JobSet"]
        return
    with pytest.raises(InvalidTrainJobError) as raised:
        plan(job, RUNTIME, job_set())
    assert f"{case.path}: Forbidden: {case.named}" in str(raised.value)


def test_jobset_of_another_trainjob_does_not_make_unserved_fields_valid() -> None:
    [case] = [case for case in OF_RUNTIMES if case.path == "spec.mlPolicy.jax"]
    document = case.document("stored")
    with pytest.raises(InvalidRuntimeError):
        plan(job_on(document), document, job_set(uid="of-another"))


PATCHES: list[Object] = [
    {
        "manager": "one",
        "trainingRuntimeSpec": {
            "template": {
                "metadata": {"labels": {"l": "1", "m": "1"}, "annotations": {"a": "1"}},
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {
                                "spec": {
                                    "template": {
                                        "metadata": {"labels": {"pl": "1"}},
                                        "spec": {
                                            "nodeSelector": {"a": "1", "b": "1"},
                                            "tolerations": [{"key": "one"}],
                                            "schedulingGates": [{"name": "g1"}],
                                            "hostNetwork": True,
                                        },
                                    }
                                }
                            },
                        },
                        {"name": "other", "template": {"spec": {"template": {"spec": {}}}}},
                        {"name": "node"},
                    ]
                },
            }
        },
    },
    {
        "manager": "two",
        "trainingRuntimeSpec": {
            "template": {
                "metadata": {"labels": {"l": "2"}},
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {
                                "spec": {"template": {"spec": {"nodeSelector": {"a": "2"}}}}
                            },
                        }
                    ]
                },
            }
        },
    },
]


def test_mutable_part_of_stored_patches_stays_in_the_jobset() -> None:
    job = job_on(RUNTIME, runtimePatches=PATCHES)
    planned = plan(job, RUNTIME, job_set())["JobSet"]
    pod = pod_of(planned)
    assert pod["nodeSelector"] == {"a": "2", "b": "1"}
    assert pod["tolerations"] == [{"key": "one"}]
    assert pod["schedulingGates"] == [{"name": "g1"}]
    assert "hostNetwork" not in pod
    assert planned["metadata"]["labels"].items() >= {"l": "2", "m": "1"}.items()
    assert planned["metadata"]["annotations"]["a"] == "1"
    template = jobs_of(planned)["node"]["template"]["spec"]["template"]
    assert template["metadata"]["labels"]["pl"] == "1"


def test_override_has_precedence_over_a_stored_patch() -> None:
    flavor = {"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"a": "queue"}}}
    job = job_on(RUNTIME, runtimePatches=PATCHES, podTemplateOverrides=[flavor])
    assert pod_of(plan(job, RUNTIME, job_set())["JobSet"])["nodeSelector"] == {
        "a": "queue",
        "b": "1",
    }


def test_stored_patch_that_cannot_be_merged_is_reported_by_its_path() -> None:
    patches = deepcopy(PATCHES)
    [job, *_] = patches[1]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"] = {"schedulingGates": [{"key": "no name"}]}
    with pytest.raises(InvalidTrainJobError, match=r"spec\.runtimePatches\[1\]"):
        plan(job_on(RUNTIME, runtimePatches=patches), RUNTIME, job_set())
