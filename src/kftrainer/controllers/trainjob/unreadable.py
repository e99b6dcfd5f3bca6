"""TrainJobs that do not match our schema or exceed a limit: the part that is reconciled.

No objects are created for such a TrainJob. Its JobSet can be suspended, and its outcome is
reported.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from kftrainer.api import names
from kftrainer.api.limits import STATUS_ROWS, LimitProblem
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.api.trainjob import (
    JobSetReference,
    JobStatus,
    TrainJob,
    TrainJobSpec,
    TrainJobStatus,
)
from kftrainer.kube.objects.meta import Condition
from kftrainer.kube.objects.model import InvalidDocumentError, KubeModel, Problem
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.cache.reduction import IDENTITY
from kftrainer.runtime.errors import PlanningError

READ_FIELDS = ("suspend", "managedBy", "activeDeadlineSeconds")
PLACEHOLDER = {"runtimeRef": {"name": "unreadable"}}
MOST_PROBLEMS = 5  # listed in the message
MOST_CONDITIONS = 8


class UnreadableTrainJobError(PlanningError):
    """The stored TrainJob is not valid under our schema."""

    reason = names.REASON_INVALID_TRAIN_JOB

    def __init__(self, problems: Sequence[Problem]) -> None:
        named = [str(each) for each in problems[:MOST_PROBLEMS]]
        if (more := len(problems) - len(named)) > 0:
            named.append(f"and {more} more")
        super().__init__(
            f"the TrainJob was stored under another version of its CustomResourceDefinition and is "
            f"not valid: {'; '.join(named)}"
        )


class TrainJobTooLargeError(PlanningError):
    """The stored TrainJob exceeds a limit and is not planned."""

    reason = names.REASON_TRAIN_JOB_TOO_LARGE

    def __init__(self, problem: Problem) -> None:
        super().__init__(
            f"the TrainJob exceeds a limit: {problem}. No objects are created for it: delete it "
            "and create a smaller one"
        )


def planning_error(problems: Sequence[Problem]) -> PlanningError:
    """Return the error for a TrainJob that could be read only in part."""
    if exceeded := [each for each in problems if isinstance(each, LimitProblem)]:
        return TrainJobTooLargeError(exceeded[0])
    return UnreadableTrainJobError(problems)


def readable_part(manifest: Manifest) -> tuple[TrainJob, Sequence[Problem]]:
    """Return the TrainJob, or its valid part and the problems of the rest."""
    try:
        return TRAIN_JOBS.decode(manifest), ()
    except InvalidDocumentError as error:
        problems = error.problems
    spec, status = _mapping(manifest.get("spec")), _mapping(manifest.get("status"))
    reduced: dict[str, Any] = {
        **{key: manifest[key] for key in ("apiVersion", "kind")},
        "metadata": _metadata(manifest["metadata"], problems),
        "spec": {**PLACEHOLDER, **_valid_fields(spec)},
    }
    conditions = [*_valid(Condition, status.get("conditions"), MOST_CONDITIONS)]
    rows = [*_valid(JobStatus, status.get("jobsStatus"), STATUS_ROWS)]
    job_set = [*_valid(JobSetReference, [status.get("jobSet")], 1)]
    if conditions or rows or job_set:
        reduced["status"] = {"conditions": conditions, "jobsStatus": rows}
    if job_set:
        [reduced["status"]["jobSet"]] = job_set
    for field in ("runtimeRevision", "state", "nodes"):
        if field in status and _is_valid(TrainJobStatus, {field: status[field]}):
            reduced.setdefault("status", {})[field] = status[field]
    return TRAIN_JOBS.decode(reduced), problems


def _metadata(metadata: Manifest, problems: Sequence[Problem]) -> Manifest:
    """Return the metadata, reduced to IDENTITY and the queue if a limit is exceeded."""
    if not any(isinstance(each, LimitProblem) for each in problems):
        return metadata
    kept = {key: metadata[key] for key in IDENTITY if key in metadata}
    queue = _mapping(metadata.get("labels")).get(names.LABEL_QUEUE)
    return {**kept, "labels": {names.LABEL_QUEUE: queue}} if queue else kept


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _valid_fields(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        field: spec[field]
        for field in ("runtimeRef", *READ_FIELDS)
        if field in spec and _is_valid(TrainJobSpec, {**PLACEHOLDER, field: spec[field]})
    }


def _valid(model: type[KubeModel], items: object, most: int) -> Iterator[dict[str, Any]]:
    for item in items[:most] if isinstance(items, list) else ():
        if isinstance(item, dict) and _is_valid(model, item):
            yield item


def _is_valid(model: type[KubeModel], document: dict[str, Any]) -> bool:
    try:
        model.parse(document)
    except InvalidDocumentError:
        return False
    return True
