"""Warnings about fields of queued TrainJobs that Kueue does not write back."""

from typing import Any

import pytest

from tests.support.objects import Object, runtime
from tests.support.plans import findings, job_on

QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}
SELECTOR = {"nodeSelector": {"zone": "a"}}
PATCHED = (
    "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0]"
    ".template.spec.template.spec"
)


def patched(pod: Object) -> Object:
    node = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    template = {"spec": {"replicatedJobs": [node]}}
    entry = {"manager": "example.com/m", "trainingRuntimeSpec": {"template": template}}
    return {"runtimePatches": [entry]}


def container(**fields: Any) -> Object:
    return {"containers": [{"name": "node", **fields}]}


def warned(spec: Object, labels: Object) -> list[str]:
    job = job_on(runtime(), **spec)
    job["metadata"]["labels"] = labels
    found = findings(job, runtime())
    assert found.errors == []
    return [each for each in found.warnings if "Kueue" in each]


def warning(paths: str) -> str:
    return (
        f"{paths}: lost when Kueue up to 0.19 admits the TrainJob: set the values in the runtime "
        "or in other fields of spec.runtimePatches"
    )


LOST = {
    "labels": ({"labels": {"team": "a"}}, "spec.labels"),
    "annotations": ({"annotations": {"team": "a"}}, "spec.annotations"),
    "overrides": (
        {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": SELECTOR}]},
        "spec.podTemplateOverrides",
    ),
    "old overrides": (
        {"podSpecOverrides": [{"targetJobs": [{"name": "node"}], **SELECTOR}]},
        "spec.podSpecOverrides",
    ),
    "grace period": (
        patched({"terminationGracePeriodSeconds": 5}),
        f"{PATCHED}.terminationGracePeriodSeconds",
    ),
    "resources": (
        patched(container(resources={"limits": {"cpu": "1"}})),
        f"{PATCHED}.containers[0].resources",
    ),
    "two fields": ({"labels": {"a": "b"}, "annotations": {"a": "b"}}, "spec.labels and 1 more"),
}


@pytest.mark.parametrize(("spec", "paths"), LOST.values(), ids=LOST)
def test_field_of_a_queued_trainjob_that_kueue_drops_causes_a_warning(
    spec: Object, paths: str
) -> None:
    assert warned(spec, QUEUE) == [warning(paths)]


@pytest.mark.parametrize("spec", [{}, patched(SELECTOR), patched(container(env=[]))])
def test_field_of_a_queued_trainjob_that_kueue_keeps_causes_no_warning(spec: Object) -> None:
    assert warned(spec, QUEUE) == []


def test_trainjob_that_is_not_queued_gets_no_warning() -> None:
    assert warned({"labels": {"team": "a"}}, {"team": "a"}) == []
