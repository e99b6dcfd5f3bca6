"""More processes than devices cause a warning, but no rejection."""

from typing import Any

import pytest

from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import findings, job_on

GPU = "nvidia.com/gpu"


def torch(gpus: int | None, **policy: Any) -> Object:
    resources = {"limits": {GPU: gpus}} if gpus else {}
    node = replicated_job(resources=resources)
    return runtime(jobs=[node], mlPolicy={"torch": policy})


def mpi(gpus: int | None, processes: int = 1) -> Object:
    resources = {"limits": {GPU: gpus}} if gpus else {}
    jobs = [replicated_job("node", None, resources=resources), replicated_job("launcher")]
    return runtime(jobs=jobs, mlPolicy={"mpi": {"numProcPerNode": processes}})


def warned(document: Object, **trainer: Any) -> list[str]:
    found = findings(job_on(document, trainer=trainer), document)
    assert found.errors == []
    return [each for each in found.warnings if "is a string" not in each]


def warning_message(source: str, processes: int, devices: str) -> str:
    return (
        f"{source}: {processes} processes on each node share {devices}: "
        f"run {devices.split(maxsplit=1)[0]}, or request more in spec.trainer.resourcesPerNode"
    )


JOB = "spec.trainer.numProcPerNode"


@pytest.mark.parametrize("on", [torch, mpi])
@pytest.mark.parametrize(
    ("gpus", "processes", "warnings"),
    [
        (4, 8, [warning_message(JOB, 8, "4 accelerators")]),
        (1, 2, [warning_message(JOB, 2, "1 accelerator")]),
        (4, 4, []),
        (4, 1, []),
        (None, 8, []),  # processes on CPUs are as many as one likes
    ],
)
def test_more_processes_than_devices_cause_a_warning(
    on: Any, gpus: int | None, processes: int, warnings: list[str]
) -> None:
    assert warned(on(gpus), numProcPerNode=processes) == warnings


@pytest.mark.parametrize("word", ["auto", "gpu", "cpu"])
def test_auto_processes_cause_no_warning(word: str) -> None:
    assert warned(torch(1), numProcPerNode=word) == []


def test_devices_requested_by_the_trainjob_count() -> None:
    resources = {"limits": {GPU: 8}}
    assert warned(torch(4), numProcPerNode=8, resourcesPerNode=resources) == []
    assert len(warned(torch(None), numProcPerNode=9, resourcesPerNode=resources)) == 1


def test_warning_names_the_field_of_the_runtime() -> None:
    source = "runtime spec.mlPolicy.{}.numProcPerNode"
    assert warned(torch(2, numProcPerNode=4)) == [
        warning_message(source.format("torch"), 4, "2 accelerators")
    ]
    assert warned(mpi(2, processes=4)) == [
        warning_message(source.format("mpi"), 4, "2 accelerators")
    ]
    assert warned(mpi(2)) == []  # then there is one for each


def test_processes_without_a_framework_have_no_effect() -> None:
    plain = runtime(mlPolicy={})
    for processes in (2, "auto"):
        assert warned(plain, numProcPerNode=processes) == [
            "spec.trainer.numProcPerNode has no effect: "
            "the runtime has neither a torch nor an mpi policy"
        ]
    assert warned(plain, numNodes=2) == []
