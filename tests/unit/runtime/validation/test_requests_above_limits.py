"""Requests above limits cause a warning that names their source, but no rejection."""

from typing import Any

import pytest

from tests.support.objects import Object, replicated_job, runtime
from tests.support.plans import findings, job_on

LAUNCHING = {"mpi": {"runLauncherAsNode": True}}


def document(resources: Object, policy: Object | None = None) -> Object:
    jobs = [replicated_job(resources=resources)]
    if policy:
        jobs = [replicated_job("launcher"), replicated_job("node", None, resources=resources)]
    return runtime(jobs=jobs, mlPolicy=policy or {})


def warned(on: Object, **resources: Any) -> list[str]:
    found = findings(job_on(on, trainer={"resourcesPerNode": resources}), on)
    assert found.errors == []
    return found.warnings


@pytest.mark.parametrize(
    ("of_runtime", "of_job", "source"),
    [
        ({}, {"limits": {"memory": "4Gi"}, "requests": {"memory": "8Gi"}}, "trainer"),
        ({}, {"limits": {"memory": "8192Mi"}, "requests": {"memory": "8Gi"}}, None),
        ({}, {"requests": {"memory": "8Gi"}}, None),
        ({"limits": {"memory": "4Gi"}}, {"requests": {"memory": "8Gi"}}, None),  # it takes it along
        ({"limits": {"memory": "4Gi"}, "requests": {"memory": "8Gi"}}, {}, "runtime"),
        (
            {"limits": {"memory": "4Gi"}, "requests": {"memory": "8Gi"}},
            {"limits": {"cpu": 1}},
            "runtime",
        ),
    ],
)
def test_request_above_its_limit_causes_a_warning(
    of_runtime: Object, of_job: Object, source: str | None
) -> None:
    paths = {"trainer": "spec.trainer.resourcesPerNode", "runtime": "spec.runtimeRef"}
    expected = (
        "the container node requests 8Gi of memory, above its limit of 4Gi: "
        "the API server will reject such pods"
    )
    expected_messages = [f"{paths[source]}: {expected}"] if source else []
    assert warned(document(of_runtime), **of_job) == expected_messages


def test_mpi_workers_are_checked_for_requests_above_limits() -> None:
    on = document({"limits": {"cpu": "1"}, "requests": {"cpu": "1500m"}}, LAUNCHING)
    (warning,) = warned(on)
    assert "the container node requests 1500m of cpu, above its limit of 1" in warning
