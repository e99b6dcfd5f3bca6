"""Objects that other releases have stored, with fields that are not served here."""

import pytest

from kftrainer.api.trainingruntime import TrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import InvalidRuntimeError, InvalidTrainJobError
from kftrainer.runtime.validation.runtime import runtime_findings
from tests.support.objects import runtime
from tests.support.other_releases import KUEUE_ENTRY, UNSERVED, Unserved
from tests.support.plans import RUNTIMES, in_namespace, job_on, plan

RUNTIME = runtime()
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
    said = f"{case.path}: Forbidden: {case.named}"
    if case.path != INERT:
        with pytest.raises(InvalidRuntimeError) as raised:
            plan(job_on(document), document)
        assert said in str(raised.value)
        return
    assert [*plan(job_on(document), document)] == ["JobSet"]
    findings = runtime_findings(TrainingRuntime.parse(document))
    assert findings.errors == []
    [warning] = findings.warnings
    assert warning.startswith(f"{INERT}: has no effect: {case.named}")
