from datetime import UTC, datetime
from typing import Any

import pytest

from kftrainer.controllers.metrics.state import JobFacts, facts_of
from tests.support.objects import Object, train_job

CREATED, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def seconds(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def condition(kind: str, status: str = "True", **fields: str) -> Object:
    return {"type": kind, "status": status, "reason": kind, "lastTransitionTime": LATER, **fields}


def row(name: str = "node", **counts: int) -> Object:
    zeros = dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), 0)
    return {"name": name, **zeros, **counts}


def facts(*conditions: Object, rows: tuple[Object, ...] = (), **spec: Any) -> JobFacts:
    job = train_job(**spec)
    job["metadata"] |= {"creationTimestamp": CREATED, "uid": "7"}
    if conditions or rows:
        job["status"] = {"conditions": list(conditions), "jobsStatus": list(rows)}
    found = facts_of(job)
    assert found is not None
    return found


def test_new_trainjob_is_pending_since_its_creation() -> None:
    assert facts() == JobFacts(
        uid="7",
        runtime="torch-distributed",
        state="Pending",
        created=seconds(CREATED),
        since=seconds(CREATED),
        has_rows=False,
        has_had_pods=False,
    )


@pytest.mark.parametrize("state", ["Complete", "Failed", "Blocked", "Suspended"])
def test_condition_determines_the_state_and_its_start(state: str) -> None:
    found = facts(condition(state), rows=(row(ready=1),))
    assert (found.state, found.since, found.never_began) == (state, seconds(LATER), False)


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        (["Suspended", "Blocked"], "Blocked"),
        (["Suspended", "Complete"], "Complete"),
        (["Blocked", "Failed"], "Failed"),
        (["SomebodyElses"], "Pending"),
    ],
    ids=str,
)
def test_first_condition_by_precedence_is_the_state(conditions: list[str], state: str) -> None:
    assert facts(*map(condition, conditions)).state == state


def test_resumed_trainjob_is_pending_since_its_resumption() -> None:
    found = facts(condition("Suspended", "False"))
    assert (found.state, found.since) == ("Pending", seconds(LATER))


def test_unsupported_runtime_fails_before_the_start() -> None:
    found = facts(condition("Failed", reason="TrainingRuntimeNotSupported"))
    assert (found.state, found.never_began) == ("Failed", True)


@pytest.mark.parametrize(
    ("rows", "state", "has_had_pods"),
    [
        ([row()], "Pending", False),
        ([row(active=1)], "Pending", False),
        ([row(suspended=1)], "Pending", False),
        ([row(active=1, ready=1)], "Running", True),
        ([row(failed=1)], "Pending", True),
        ([row(succeeded=1)], "Running", True),
        ([row("fetch", ready=1), row()], "Running", True),
        ([row("fetch", succeeded=1), row(active=1)], "Pending", True),
        ([row(active=1), row("fetch", succeeded=1)], "Pending", True),
        ([row("fetch", succeeded=1), row(ready=1)], "Running", True),
        ([row("fetch", succeeded=1), row(succeeded=1)], "Running", True),
    ],
    ids=str,
)
def test_trainjob_is_running_while_all_pods_of_a_job_are_ready(
    rows: list[Object], state: str, has_had_pods: bool
) -> None:
    found = facts(rows=tuple(rows))
    assert (found.state, found.has_had_pods, found.has_rows) == (state, has_had_pods, True)


@pytest.mark.parametrize(
    ("kind", "is_namespaced"), [("TrainingRuntime", True), ("ClusterTrainingRuntime", False)]
)
def test_kind_of_the_runtime_is_recorded(kind: str, is_namespaced: bool) -> None:
    found = facts(runtimeRef={"name": "mine", "kind": kind})
    assert (found.runtime, found.has_namespaced_runtime) == ("mine", is_namespaced)


def test_trainjob_of_another_manager_has_no_facts() -> None:
    assert facts_of(train_job(managedBy="kueue.x-k8s.io/multikueue")) is None
    ours = train_job(managedBy="trainer.kubeflow.org/trainjob-controller")
    assert facts_of(ours) is not None


@pytest.mark.parametrize("time", ["", "soon", "2026-13-01T00:00:00Z"])
def test_invalid_time_counts_as_the_creation(time: str) -> None:
    assert facts(condition("Blocked", lastTransitionTime=time)).since == seconds(CREATED)
