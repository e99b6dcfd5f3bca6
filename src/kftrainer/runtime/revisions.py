"""Finds the spec that a TrainJob is planned from: its runtime, or the revision that it records.

A TrainJob that has begun records the name of a ControllerRevision with the content of its runtime.
The runtime itself is used while its content has the recorded name, so revisions are read only after
the runtime has changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from kftrainer.api.resources import CONTROLLER_REVISIONS
from kftrainer.api.runtime_revisions import (
    RuntimeRevision,
    content_of,
    has_content_of,
    revision_name,
)
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.nested import mapping_or_empty
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.lru import Lru
from kftrainer.machinery.memo import Memo
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import PlanningError, RevisionLostError
from kftrainer.runtime.info import AnyRuntime, key_of_job, own_job_set

MOST_NAMES: Final = 1_000
MOST_DECODED: Final = 200
LARGE: Final = 16 * 1024  # bytes of JSON; the decoded objects are not kept
LOST_MESSAGE = (
    "ControllerRevision {revision}, which holds the runtime's spec that this TrainJob began with, "
    "does not exist or has other content, and {runtime} was changed or deleted since. Without it "
    "no JobSet can be created for this TrainJob: delete the TrainJob and create it again, or "
    "restore the runtime's earlier spec"
)


@dataclass(frozen=True, slots=True)
class Source:
    """The runtime that a TrainJob is planned from."""

    runtime: AnyRuntime
    is_live: bool = True  # the runtime as it is in the cluster; otherwise from a revision
    is_lost: bool = False  # the recorded revision is missing, so the changed runtime is used


def recorded_revision(job: TrainJob) -> ObjectKey | None:
    """Return the ControllerRevision that the TrainJob's status records, or None."""
    name = None if job.status is None else job.status.runtime_revision
    return key_of_job(job, name) if name else None


def recorded_revision_in(manifest: Manifest) -> ObjectKey | None:
    """Return the ControllerRevision that a TrainJob's manifest records, or None."""
    name = mapping_or_empty(manifest.get("status")).get("runtimeRevision")
    if not isinstance(name, str) or not name:
        return None
    return ObjectKey(manifest["metadata"].get("namespace") or "", name)


def planning_source(
    job: TrainJob,
    resource: Resource[Any],
    live_runtime: Callable[[], AnyRuntime],
    existing: ClusterReader,
) -> Source:
    """Return what to plan the TrainJob from; raises PlanningError.

    If the recorded revision is missing and the runtime has changed, an existing JobSet follows the
    live runtime as far as it is mutable; without one, RevisionLostError is raised. The runtime is
    used for objects from files too, as they usually do not include the revision.
    """
    recorded = recorded_revision(job)
    if recorded is None:
        return Source(live_runtime())
    live, error = _try(live_runtime)
    if live is not None and has_content_of(recorded.name, name_of(live)):
        return Source(live)
    revision = existing.get(CONTROLLER_REVISIONS, recorded)
    if revision is not None and _is_of(revision, job, resource):
        return Source(runtime_in(revision, resource), is_live=False)
    if not existing.is_complete(CONTROLLER_REVISIONS):
        return Source(live_runtime())
    if live is None or own_job_set(job, existing) is None:
        subject = f"{resource.kind} {job.spec.runtime_ref.name}"
        raise RevisionLostError(LOST_MESSAGE.format(revision=recorded, runtime=subject)) from error
    return Source(live, is_lost=True)


def _try(
    live_runtime: Callable[[], AnyRuntime],
) -> tuple[AnyRuntime | None, PlanningError | None]:
    try:
        return live_runtime(), None
    except PlanningError as error:
        return None, error


def _is_of(revision: RuntimeRevision, job: TrainJob, resource: Resource[Any]) -> bool:
    """Whether the revision was verified and is one of the TrainJob's runtime."""
    content = revision.content
    wanted = (resource.kind, job.spec.runtime_ref.name)
    return content is not None and (content["kind"], content["metadata"]["name"]) == wanted


def name_of(runtime: AnyRuntime) -> str:
    """Return the name of the ControllerRevision with the content of this runtime."""
    return _names.of(runtime)[0]


def _name_and_size(runtime: AnyRuntime) -> tuple[str, int]:
    content = content_of(runtime)
    size = len(orjson.dumps(content))
    # Large TrainingRuntimes are not cached completely: their objects are new each time.
    return revision_name(content), size if size <= LARGE else MOST_NAMES * LARGE + 1


# Caches return the same runtime object until it changes, so the name is computed once.
_names: Memo[AnyRuntime, tuple[str, int]] = Memo(
    _name_and_size, most=MOST_NAMES, size=lambda found: found[1], most_size=MOST_NAMES * LARGE
)


# One object for all TrainJobs of a content, in whichever namespace: what is derived from a runtime
# is kept by the identity of the object.
_decoded: Lru[tuple[str, str], AnyRuntime] = Lru(MOST_DECODED)


def runtime_in(revision: RuntimeRevision, resource: Resource[Any]) -> AnyRuntime:
    """Return the runtime with the content of a verified revision.

    Raises InvalidDocumentError if it was stored under another schema than ours.
    """
    content = revision.content
    assert content is not None  # noqa: S101  verified by the caller
    namespace = revision.metadata.namespace or "" if resource.namespaced else ""
    which = namespace, revision.metadata.name
    if (found := _decoded.get(which)) is not None:
        return found
    metadata = {**content["metadata"], **({"namespace": namespace} if namespace else {})}
    runtime: AnyRuntime = resource.decode({**content, "metadata": metadata})
    if revision.size <= LARGE:
        _decoded.put(which, runtime)
    return runtime
