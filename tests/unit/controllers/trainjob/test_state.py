from collections.abc import Mapping

import pytest

from kftrainer.api.trainjob import JobStatus, NodesStatus
from kftrainer.controllers.trainjob.state import (
    State,
    is_to_be_confirmed,
    nodes_of,
    state_of,
)
from kftrainer.kube.objects.meta import Condition
from kftrainer.runtime.podset import TRAINER_ONLY, NodeLayout
from tests.support.objects import Object

MPI = NodeLayout(worker="node", launcher="launcher")
MPI_LAUNCHER_IS_NODE = NodeLayout(worker="node", launcher="launcher", launcher_is_node=True)
TRAINER = "trainer.kubeflow.org/trainjob-ancestor-step"


def row(name: str = "node", **numbers: int) -> JobStatus:
    none = dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), 0)
    return JobStatus.parse({"name": name, **none, **numbers})


def condition(kind: str, status: str = "True") -> Condition:
    time = "2026-01-01T00:00:00Z"
    fields = {"type": kind, "status": status, "reason": kind, "message": ""}
    return Condition.parse({**fields, "lastTransitionTime": time})


def nodes(ready: int, desired: int = 4) -> NodesStatus:
    return NodesStatus.parse({"ready": ready, "desired": desired})


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        (["Complete"], "Complete"),
        (["Suspended", "Failed"], "Failed"),
        (["Suspended", "Blocked"], "Blocked"),
        (["Suspended"], "Suspended"),
        ([], "Running"),
    ],
)
def test_state_is_the_most_important_true_condition(conditions: list[str], state: State) -> None:
    found = [condition(each) for each in conditions]
    assert state_of(found, [row(ready=1)], None, None) == state


def test_condition_that_is_false_is_no_state() -> None:
    assert state_of([condition("Suspended", "False")], [], None, None) == "Pending"


@pytest.mark.parametrize(
    ("rows", "ready", "present", "state"),
    [
        ([], None, None, "Pending"),
        ([row(active=1)], 0, "Pending", "Pending"),
        ([row(active=1)], 3, "Pending", "Pending"),
        ([row(active=1, ready=1)], 4, "Pending", "Running"),
        ([row("dataset-initializer", ready=1), row()], 0, "Pending", "Running"),
        ([row("dataset-initializer", succeeded=1), row(active=1)], 0, "Running", "Pending"),
        ([row(active=1)], 3, "Running", "Running"),
        ([row(succeeded=1)], 4, "Running", "Running"),
    ],
)
def test_trainjob_runs_once_all_pods_of_a_job_are_ready_and_while_one_is(
    rows: list[JobStatus], ready: int | None, present: State | None, state: State
) -> None:
    found = None if ready is None else nodes(ready)
    assert state_of([], rows, found, present) == state


@pytest.mark.parametrize(
    ("before", "rows", "state"),
    [
        (nodes(4), [row(active=1)], "Running"),
        (nodes(1), [row(active=1)], "Running"),
        (nodes(0), [row(active=1)], "Pending"),  # confirmed
        (nodes(4), [row()], "Pending"),
        (nodes(1, desired=1), [row(active=1)], "Pending"),  # there are no other pods
        (None, [row(active=1)], "Pending"),
    ],
)
def test_trainjob_without_ready_nodes_runs_until_that_is_confirmed(
    before: NodesStatus | None, rows: list[JobStatus], state: State
) -> None:
    """The status of the JobSet may arrive before the number of ready pods of the Job."""
    desired = 4 if before is None else before.desired
    now = nodes(0, desired)
    assert state_of([], rows, now, "Running", before) == state
    assert is_to_be_confirmed(state, rows, now) is (state == "Running")
    assert not is_to_be_confirmed("Running", rows, nodes(1, desired))


def job(name: str, pods: int, *, step: str | None = None, replicas: int = 1) -> Object:
    template: Object = {"spec": {"parallelism": pods, "completions": pods}}
    if step is not None:
        template["metadata"] = {"labels": {TRAINER: step}}
    return {"name": name, "replicas": replicas, "template": template}


def job_set(*jobs: Object, **rows: Mapping[str, int]) -> Object:
    status = [{"name": name, **numbers} for name, numbers in rows.items()]
    return {"spec": {"replicatedJobs": list(jobs)}, "status": {"replicatedJobsStatus": status}}


NODE = job("node", 4, step="trainer")
LAUNCHER, WORKER = job("launcher", 1, step="trainer"), job("node", 3)


@pytest.mark.parametrize(
    ("found", "layout", "ready_pods", "numbers"),
    [
        (job_set(NODE, node={"active": 1}), TRAINER_ONLY, {}, (0, 4)),
        (job_set(NODE, node={"active": 1}), TRAINER_ONLY, {"node": 3}, (3, 4)),
        (job_set(NODE, node={"ready": 1}), TRAINER_ONLY, {}, (4, 4)),
        (job_set(NODE, node={"succeeded": 1}), TRAINER_ONLY, {}, (4, 4)),
        # The JobSet's status is older than the Job's.
        (job_set(NODE, node={"ready": 1}), TRAINER_ONLY, {"node": 3}, (4, 4)),
        (
            job_set(job("node", 2, step="trainer", replicas=2), node={"ready": 1}),
            TRAINER_ONLY,
            {"node": 1},
            (3, 4),
        ),
        (
            job_set(job("data", 1, step="dataset-initializer"), NODE, data={"ready": 1}),
            TRAINER_ONLY,
            {"data": 1},
            (0, 4),
        ),
        (job_set(LAUNCHER, WORKER, node={"ready": 1}, launcher={}), MPI, {}, (3, 3)),
        (
            job_set(LAUNCHER, WORKER, node={"ready": 1}, launcher={}),
            MPI_LAUNCHER_IS_NODE,
            {},
            (3, 4),
        ),
        (
            job_set(LAUNCHER, job("node", 0), node={}, launcher={"ready": 1}),
            MPI_LAUNCHER_IS_NODE,
            {},
            (1, 1),
        ),
        (job_set(LAUNCHER, launcher={"ready": 1}), MPI, {}, (1, 1)),
    ],
)
def test_nodes_are_the_pods_that_train(
    found: Object, layout: NodeLayout, ready_pods: dict[str, int], numbers: tuple[int, int]
) -> None:
    counted = nodes_of(found, layout, ready_pods)
    assert counted is not None
    assert (counted.ready, counted.desired) == numbers


def test_no_node_is_ready_before_the_jobset_has_a_status() -> None:
    found = nodes_of({"spec": {"replicatedJobs": [NODE]}}, TRAINER_ONLY, {})
    assert found == nodes(0, 4)


def test_jobset_without_trainer_has_no_nodes() -> None:
    assert nodes_of(job_set(job("node", 4), node={"ready": 1}), TRAINER_ONLY, {}) is None
