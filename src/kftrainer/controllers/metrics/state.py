"""In which state a TrainJob is, and since when: pure, from its manifest as it is on the wire.

It is asked at every change of every TrainJob, so nothing is decoded that it does not need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kftrainer.api import names
from kftrainer.controllers.trainjob_index import LONGEST_NAME
from kftrainer.kube.objects.resource import Manifest

State = Literal["Pending", "Running", "Suspended", "Blocked", "Complete", "Failed"]
ENDED: frozenset[State] = frozenset(("Complete", "Failed"))
# What a condition says that is True: the first that does. A TrainJob that is suspended and blocked
# is in need of somebody, so that is told.
BY_CONDITION: tuple[State, ...] = ("Complete", "Failed", "Blocked", "Suspended")
SIGNS_OF_PODS = ("ready", "succeeded", "failed")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What metrics need to know of a TrainJob."""

    uid: str
    runtime: str
    state: State
    created: float  # as all times here: seconds since 1970
    since: float  # when it came into the state, as far as its status tells
    has_rows: bool  # somebody has seen its JobSet
    has_had_pods: bool  # somebody has seen that they ran, or that they failed
    has_namespaced_runtime: bool = False
    never_began: bool = False  # it failed because nobody knows its kind of runtime


def facts_of(manifest: Manifest) -> JobFacts | None:
    """The facts of a TrainJob; None of one that somebody else is in charge of."""
    spec, status = manifest["spec"], manifest.get("status") or {}
    reference = spec["runtimeRef"]
    if spec.get("managedBy", names.MANAGED_BY_US) != names.MANAGED_BY_US:
        return None
    created = _time(manifest["metadata"].get("creationTimestamp"), 0.0)
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    rows = status.get("jobsStatus") or ()
    state, telling = _state(conditions, rows)
    return JobFacts(
        uid=manifest["metadata"].get("uid", ""),
        runtime=reference["name"][:LONGEST_NAME],
        state=state,
        created=created,
        since=_time(telling.get("lastTransitionTime"), created),
        has_rows=bool(rows),
        has_had_pods=any(row.get(sign) for row in rows for sign in SIGNS_OF_PODS),
        has_namespaced_runtime=reference.get("kind") == names.TRAINING_RUNTIME,
        never_began=telling.get("reason") == names.REASON_RUNTIME_NOT_SUPPORTED,
    )


def _state(conditions: Mapping[str, Manifest], rows: Sequence[Manifest]) -> tuple[State, Manifest]:
    """The state, and the condition that tells since when."""
    for state in BY_CONDITION:
        telling = conditions.get(state)
        if telling is not None and telling["status"] == "True":
            return state, telling
    resumed = conditions.get(names.CONDITION_SUSPENDED, {})
    return "Running" if _is_running(rows) else "Pending", resumed


def _is_running(rows: Sequence[Manifest]) -> bool:
    """Whether one of its Jobs has all its pods, or all Jobs are done and the end is about to come.

    Between an initializer's end and the start of what comes next it waits for pods again, perhaps
    for long, as for GPUs.
    """
    is_done = bool(rows)
    for row in rows:
        if row.get("ready"):
            return True
        is_done = is_done and bool(row.get("succeeded"))
    return is_done


def _time(text: str | None, otherwise: float) -> float:
    """A time of the wire; conditions can be written by anybody who may write a status."""
    if text is None:
        return otherwise
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return otherwise
