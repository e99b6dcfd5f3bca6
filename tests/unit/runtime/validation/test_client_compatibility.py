"""Strings in numProcPerNode, which clients of release 2.2 and later cannot decode."""

import pytest

from kftrainer.api.configuration import Admission
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.runtimes import Runtimes
from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import RUNTIMES, in_namespace, job_on

TORCH = runtime()
MPI = runtime(
    "mpi", jobs=[replicated_job("node", None), replicated_job("launcher")], mlPolicy={"mpi": {}}
)
STRICT = Runtimes(load_framework(admission=Admission.parse({"stringNumProcPerNode": "Reject"})))
WORDS = ("auto", "cpu", "gpu")


def job(processes: object = None, document: Object = TORCH, **spec: object) -> TrainJob:
    trainer = {"numNodes": 1} if processes is None else {"numProcPerNode": processes}
    return TrainJob.parse(job_on(document, trainer=trainer, **spec))


def found(
    new: TrainJob, old: TrainJob | None = None, *, runtimes: Runtimes = RUNTIMES
) -> ValidationResult:
    return runtimes.validate(old, new, GivenObjects(map(in_namespace, (TORCH, MPI))))


@pytest.mark.parametrize("word", WORDS)
def test_string_is_accepted_with_a_warning(word: str) -> None:
    findings = found(job(word))
    assert findings.errors == []
    [warning] = findings.warnings
    assert warning.startswith(f'spec.trainer.numProcPerNode: "{word}" is a string, ')
    assert len(warning) <= 256  # the API server may cut what is longer


@pytest.mark.parametrize("value", [None, 1, 8])
@pytest.mark.parametrize("runtimes", [RUNTIMES, STRICT], ids=["Warn", "Reject"])
def test_integer_and_absent_value_are_accepted_silently(value: object, runtimes: Runtimes) -> None:
    assert found(job(value), runtimes=runtimes) == ValidationResult()


@pytest.mark.parametrize("word", WORDS)
def test_string_is_rejected_where_the_configuration_demands_it(word: str) -> None:
    [error] = found(job(word), runtimes=STRICT).errors
    assert (error.path, error.value, error.rule) == (
        "spec.trainer.numProcPerNode",
        word,
        "processes-not-integer",
    )


def test_update_that_keeps_the_string_is_accepted_silently() -> None:
    assert found(job("auto", suspend=True), job("auto")) == ValidationResult()


def test_update_of_a_stored_string_is_not_rejected() -> None:
    findings = found(job("auto", suspend=True), job("auto"), runtimes=STRICT)
    assert findings.errors == []
    [warning] = findings.warnings
    assert warning.startswith("the stored object already has this error: spec.trainer.num")


def test_update_to_a_string_is_rejected_where_the_configuration_demands_it() -> None:
    rules = {error.rule for error in found(job("auto"), job(2), runtimes=STRICT).errors}
    assert "processes-not-integer" in rules


def test_string_that_is_rejected_for_another_reason_has_no_warning() -> None:
    findings = found(job("auto", MPI))
    assert [error.rule for error in findings.errors] == ["mpi-processes"]
    assert findings.warnings == []
