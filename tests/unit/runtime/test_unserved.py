"""Objects that other releases have stored, with fields that are not served here."""

import pytest

from kftrainer.api.trainingruntime import TrainingRuntime
from kftrainer.runtime.errors import InvalidRuntimeError
from kftrainer.runtime.validation.training_runtime import runtime_findings
from tests.support.objects import Object
from tests.support.other_releases import UNSERVED, Unserved
from tests.support.plans import NAMESPACE, RUNTIMES, UID, job_on, plan

INERT = "spec.mlPolicy.torch.elasticPolicy"


@pytest.mark.parametrize("case", UNSERVED, ids=str)
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


@pytest.mark.parametrize("case", UNSERVED, ids=str)
def test_trainjob_with_a_jobset_is_planned_on_a_runtime_with_an_unserved_field(
    case: Unserved,
) -> None:
    document = case.document("stored")
    assert [*plan(job_on(document), document, job_set())] == ["JobSet"]


def test_jobset_of_another_trainjob_does_not_make_unserved_fields_valid() -> None:
    [case] = [case for case in UNSERVED if case.path == "spec.mlPolicy.jax"]
    document = case.document("stored")
    with pytest.raises(InvalidRuntimeError):
        plan(job_on(document), document, job_set(uid="of-another"))
