"""Computes the state of a TrainJob and when it began, from its wire manifest. Pure.

This runs for every event of every TrainJob, so it decodes nothing that it does not need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from kftrainer.api import names
from kftrainer.controllers.trainjob.state import BY_CONDITION, State, is_running
from kftrainer.kube.objects.resource import Manifest
from kftrainer.kube.schema.metadata import LONGEST_NAME

ENDED: frozenset[State] = frozenset(("Complete", "Failed"))
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
    state, condition = _state(conditions, status.get("state"), rows)
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


def _state(
    conditions: Mapping[str, Manifest], stored: object, rows: Sequence[Manifest]
) -> tuple[State, Manifest]:
    """Return the state, and the condition that records when it began.

    Earlier releases did not store the state.
    """
    for state in BY_CONDITION:
        condition = conditions.get(state)
        if condition is not None and condition["status"] == "True":
            return state, condition
    resumed = conditions.get(names.CONDITION_SUSPENDED, {})
    runs = is_running(rows) if stored is None else stored == "Running"
    return "Running" if runs else "Pending", resumed


def _time(text: str | None, otherwise: float) -> float:
    """Parse a timestamp; `otherwise` if it is missing or invalid, as clients can write any."""
    if text is None:
        return otherwise
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return otherwise
