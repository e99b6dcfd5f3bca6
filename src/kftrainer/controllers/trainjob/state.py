"""Computes the state of a TrainJob and its numbers of nodes, which summarize the status. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from kftrainer.api import names
from kftrainer.api.trainjob import JobStatus, NodesStatus
from kftrainer.kube.objects.meta import Condition
from kftrainer.kube.objects.resource import Manifest
from kftrainer.runtime.podset import NodeLayout
from kftrainer.runtime.template import ancestor

State = Literal["Pending", "Running", "Suspended", "Blocked", "Complete", "Failed"]
# The state is the first of these conditions that is True. Blocked precedes Suspended because a
# user has to act on it.
BY_CONDITION: tuple[State, ...] = ("Complete", "Failed", "Blocked", "Suspended")
# Seconds after which the state of a TrainJob without ready nodes is computed again.
CONFIRM_AFTER = 3.0


def state_of(
    conditions: Sequence[Condition],
    rows: Sequence[JobStatus],
    nodes: NodesStatus | None,
    present: State | None,
    present_nodes: NodesStatus | None = None,
) -> State:
    """Return the state of a TrainJob with this status; `present` is its state before.

    A TrainJob is running from the time at which all pods of one of its Jobs are ready. It stays
    running while single pods are replaced. The status of its JobSet may arrive before the number of
    ready pods of the Job, so it also stays running when no node is ready for the first time.
    """
    true = {each.type for each in conditions if each.status == "True"}
    for state in BY_CONDITION:
        if state in true:
            return state
    if is_running([row.dump() for row in rows]):
        return "Running"
    if present != "Running" or nodes is None:
        return "Pending"
    is_degraded = nodes.ready > 0 or _lost_all_nodes(rows, present_nodes)
    return "Running" if is_degraded else "Pending"


def _lost_all_nodes(rows: Sequence[JobStatus], present: NodesStatus | None) -> bool:
    """Whether some of several nodes were ready before, of Jobs that still have pods."""
    were_ready = present is not None and present.ready > 0 and present.desired > 1
    return were_ready and any(row.active for row in rows)


def is_to_be_confirmed(
    state: State | None, rows: Sequence[JobStatus], nodes: NodesStatus | None
) -> bool:
    """Whether a TrainJob without ready nodes is still reported as running."""
    has_ready_nodes = nodes is not None and nodes.ready > 0
    return state == "Running" and not has_ready_nodes and not is_running([r.dump() for r in rows])


def is_running(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all pods of one Job are ready, or all Jobs have succeeded.

    Between the end of an initializer and the start of the next Job, the TrainJob waits for pods
    again, possibly for a long time, for example for GPUs.
    """
    is_done = bool(rows)
    for row in rows:
        if row.get("ready"):
            return True
        is_done = is_done and bool(row.get("succeeded"))
    return is_done


def nodes_of(
    job_set: Manifest, layout: NodeLayout, ready_pods: Mapping[str, int]
) -> NodesStatus | None:
    """Return the numbers of nodes; None if no job of the JobSet trains.

    The status of a JobSet counts the Jobs whose pods are all ready or have succeeded. `ready_pods`
    are the numbers of such pods in the other Jobs, by replicated job.
    """
    status = job_set.get("status") or {}
    rows = {row["name"]: row for row in status.get("replicatedJobsStatus") or ()}
    desired = ready = 0
    for name, replicas, pods in _node_jobs(job_set["spec"], layout):
        row = rows.get(name, {})
        whole = (row.get("ready") or 0) + (row.get("succeeded") or 0)
        desired += replicas * pods
        ready += min(replicas * pods, whole * pods + ready_pods.get(name, 0))
    return NodesStatus.model_construct(ready=ready, desired=desired) if desired else None


def _node_jobs(spec: Mapping[str, Any], layout: NodeLayout) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the replicas and the pods of a replica of each job whose pods are nodes."""
    jobs = spec.get("replicatedJobs") or ()
    worker = layout.worker if any(each["name"] == layout.worker for each in jobs) else None
    for job in jobs:
        is_trainer = ancestor(job) == names.STEP_TRAINER
        if worker is None or layout.launcher_is_node:
            is_node = is_trainer or job["name"] == worker
        else:
            is_node = job["name"] == worker
        if is_node:
            yield job["name"], job.get("replicas", 1), _pods(job["template"]["spec"])


def _pods(job_spec: Mapping[str, Any]) -> int:
    """Return the number of pods that a Job has at the same time."""
    parallelism: int = job_spec.get("parallelism", 1)
    completions: int = job_spec.get("completions") or parallelism
    return min(parallelism, completions)
