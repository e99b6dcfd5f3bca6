"""Computes the state of a TrainJob and when it began, from its wire manifest. Pure.

This runs for every event of every TrainJob, so it decodes nothing that it does not need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kftrainer.api import names
from kftrainer.kube.objects.resource import Manifest
from kftrainer.kube.schema.metadata import LONGEST_NAME

State = Literal["Pending", "Running", "Suspended", "Blocked", "Complete", "Failed"]
ENDED: frozenset[State] = frozenset(("Complete", "Failed"))
# The state is the first of these conditions that is True. Blocked precedes Suspended because a
# user has to act on it.
BY_CONDITION: tuple[State, ...] = ("Complete", "Failed", "Blocked", "Suspended")
SIGNS_OF_PODS = ("ready", "succeeded", "failed")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The properties of a TrainJob that metrics need."""

    uid: str
    runtime: str
    state: State
    created: float  # Unix time, like all times here
    since: float  # when it entered the state, as far as its status records that
    has_rows: bool  # whether `jobsStatus` is set, so its JobSet was observed
    has_had_pods: bool  # whether `jobsStatus` records ready, succeeded or failed Jobs
    has_namespaced_runtime: bool = False
    never_began: bool = False  # it failed because its kind of runtime is not supported


def facts_of(manifest: Manifest) -> JobFacts | None:
    """Return the facts of a TrainJob; None if another controller manages it."""
    spec, status = manifest["spec"], manifest.get("status") or {}
    reference = spec["runtimeRef"]
    if spec.get("managedBy", names.MANAGED_BY_US) != names.MANAGED_BY_US:
        return None
    created = _time(manifest["metadata"].get("creationTimestamp"), 0.0)
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    rows = status.get("jobsStatus") or ()
    state, condition = _state(conditions, rows)
    return JobFacts(
        uid=manifest["metadata"].get("uid", ""),
        runtime=reference["name"][:LONGEST_NAME],
        state=state,
        created=created,
        since=_time(condition.get("lastTransitionTime"), created),
        has_rows=bool(rows),
        has_had_pods=any(row.get(sign) for row in rows for sign in SIGNS_OF_PODS),
        has_namespaced_runtime=reference.get("kind") == names.TRAINING_RUNTIME,
        never_began=condition.get("reason") == names.REASON_RUNTIME_NOT_SUPPORTED,
    )


def _state(conditions: Mapping[str, Manifest], rows: Sequence[Manifest]) -> tuple[State, Manifest]:
    """Return the state, and the condition that records when it began."""
    for state in BY_CONDITION:
        condition = conditions.get(state)
        if condition is not None and condition["status"] == "True":
            return state, condition
    resumed = conditions.get(names.CONDITION_SUSPENDED, {})
    return "Running" if _is_running(rows) else "Pending", resumed


def _is_running(rows: Sequence[Manifest]) -> bool:
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


def _time(text: str | None, otherwise: float) -> float:
    """Parse a timestamp; `otherwise` if it is missing or invalid, as clients can write any."""
    if text is None:
        return otherwise
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return otherwise
