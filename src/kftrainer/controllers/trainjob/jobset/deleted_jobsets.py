"""The last state of deleted JobSets, and the outcome of a training whose JobSet is gone."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import JobStatus, TrainJob
from kftrainer.controllers.watches import controlling_train_job
from kftrainer.kube.objects.meta import Condition, new_condition
from kftrainer.kube.objects.nested import nested_field
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.runtime.cluster_reader import NO_OBJECTS, ClusterReader, GivenObjects
from kftrainer.runtime.framework.extension_points import Observed
from kftrainer.runtime.info import recorded_job_set

CAPACITY: Final = 20_000
MOST_BYTES: Final = 16 * 2**20
STATUS_FIELDS: Final = ("conditions", "replicatedJobsStatus")
COMPLETE_MESSAGE: Final = "all jobs succeeded; the JobSet has been deleted since"
UNKNOWN_MESSAGE: Final = (
    "JobSet {} was deleted while no manager was watching, and the outcome of the training is not "
    "known. It is not started again. To train again, delete the TrainJob and create it again"
)


class DeletedJobSets:
    """Last states of JobSets whose deletion was watched, by the UID of their TrainJob.

    Bounded in number and size: the oldest are dropped and then count as unwatched deletions.
    """

    def __init__(self, capacity: int = CAPACITY, most_bytes: int = MOST_BYTES) -> None:
        self._capacity = capacity
        self._most_bytes = most_bytes
        self._last: dict[str, bytes] = {}  # JSON, which takes less memory than the objects
        self._bytes = 0

    def observe(self, change: ObjectEvent[Any]) -> None:
        """Handle an event of the JobSet informer."""
        if change.new is not None:
            is_new = self._last and change.old is None
            if is_new and (controller := controlling_train_job(change.new.metadata)) is not None:
                self._forget(controller["uid"])
        elif change.old is not None and not change.final_state_unknown:
            manifest = change.old.manifest
            if (controller := controlling_train_job(manifest["metadata"])) is not None:
                self._remember(controller, manifest)

    def of(self, job: TrainJob) -> ClusterReader:
        """Return the last state of the TrainJob's JobSet, for status plugins to read."""
        last = self._last.get(job.metadata.uid or "")
        return NO_OBJECTS if last is None else GivenObjects([orjson.loads(last)])

    def _remember(self, controller: Manifest, manifest: Manifest) -> None:
        uid = controller["uid"]
        self._forget(uid)
        last = bytes(memoryview(orjson.dumps(_last_state(controller, manifest))))
        self._last[uid] = last
        self._bytes += len(last)
        while len(self._last) > self._capacity or self._bytes > self._most_bytes:
            self._forget(next(iter(self._last)))

    def _forget(self, uid: str) -> None:
        self._bytes -= len(self._last.pop(uid, b""))


def _last_state(controller: Manifest, manifest: Manifest) -> Manifest:
    metadata = {key: manifest["metadata"][key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": JOB_SETS.api_version,
        "kind": JOB_SETS.kind,
        "metadata": {**metadata, "ownerReferences": [controller]},
        "spec": {"suspend": (manifest.get("spec") or {}).get("suspend", False)},
        "status": {
            field: value
            for field, value in (manifest.get("status") or {}).items()
            if field in STATUS_FIELDS
        },
    }


def outcome_without_job_set(
    job: TrainJob, last: Observed | None, replicas: Mapping[str, int], now: datetime
) -> Observed | None:
    """Return the outcome of a TrainJob without a JobSet; None if the JobSet is to be created.

    `last` is the JobSet's last state if its deletion was watched. A JobSet that was deleted before
    it finished is created again, as in Kubeflow Trainer. If the deletion was not watched, the
    TrainJob's status decides, and a training that may have ended is never started again. The
    TrainJob had a JobSet if its status has `jobsStatus` or records a UID. `replicas` are those of
    the runtime's jobs, by name.
    """
    if last is not None:
        return last if last.conditions else None
    rows = (job.status.jobs_status if job.status is not None else None) or ()
    if not rows and not _may_have_run(job):
        return None
    if rows and job.spec.suspend and _was_suspended(rows):
        return None
    has_succeeded = bool(rows) and all(_has_succeeded(row, replicas) for row in rows)
    return Observed([_outcome(job, now, has_succeeded=has_succeeded)], rows)


def replicas_in(runtime: Manifest | None) -> Mapping[str, int]:
    """Return the replicas of the runtime's jobs by name; empty if there is no runtime."""
    found = nested_field(runtime, "spec", "template", "spec", "replicatedJobs")
    jobs = found if isinstance(found, list) else ()
    return {each["name"]: each.get("replicas", 1) for each in jobs if "name" in each}


def _was_suspended(rows: Sequence[JobStatus]) -> bool:
    """Whether the JobSet was suspended when the status was last written."""
    is_quiet = not any(row.active or row.ready or row.failed for row in rows)
    return is_quiet and any(row.suspended for row in rows)


def _may_have_run(job: TrainJob) -> bool:
    """Whether a JobSet was created that may have run although it reported no status."""
    conditions = (job.status.conditions if job.status is not None else None) or ()
    is_suspended = job.spec.suspend or any(
        each.type == names.CONDITION_SUSPENDED and each.status == "True" for each in conditions
    )
    return recorded_job_set(job) is not None and not is_suspended


def _has_succeeded(row: JobStatus, replicas: Mapping[str, int]) -> bool:
    is_over = not (row.active or row.failed or row.suspended)
    return is_over and row.name in replicas and row.succeeded >= replicas[row.name]


def _outcome(job: TrainJob, now: datetime, *, has_succeeded: bool) -> Condition:
    kind, reason, message = (
        (names.CONDITION_COMPLETE, names.REASON_ALL_JOBS_COMPLETED, COMPLETE_MESSAGE)
        if has_succeeded
        else (
            names.CONDITION_FAILED,
            names.REASON_OUTCOME_UNKNOWN,
            UNKNOWN_MESSAGE.format(job.metadata.name),
        )
    )
    return new_condition(kind, reason, message, now)
