"""Indexes of the TrainJob cache, which find keys without decoding TrainJobs.

Index values are computed from wire manifests, including TrainJobs that our model rejects: those
were stored under an older schema and still use their runtimes.
"""

from collections.abc import Iterable
from typing import Any

from kftrainer.api.resources import CONTROLLER_REVISIONS
from kftrainer.kube.objects.nested import mapping_or_empty
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.controller.events import ObservedObject
from kftrainer.runtime.info import is_final
from kftrainer.runtime.revisions import recorded_revision_in
from kftrainer.runtime.runtimes import referenced_runtime_in

INDEX_RUNTIME = "runtime"  # all TrainJobs, by their runtimes
INDEX_UNFINISHED = "unfinished"  # unfinished TrainJobs: by runtime, revision and namespace, and all
INDEX_REVISION = "revision"  # all TrainJobs, by the ControllerRevisions that they record
ALL = "*"


def index_value(resource: Resource[Any], key: ObjectKey) -> str:
    """Return the index value of TrainJobs that refer to this runtime or record this revision."""
    return f"{resource.group_kind} {key}"


def in_namespace(namespace: str) -> str:
    """Return the index value of the unfinished TrainJobs of a namespace."""
    return f"{ALL} {namespace}"


def runtimes_of_job(seen: ObservedObject[Any]) -> Iterable[str]:
    """Index TrainJobs by their runtimes."""
    return (runtime_of_manifest(seen.manifest),)


def unfinished_job(seen: ObservedObject[Any]) -> Iterable[str]:
    """Index the TrainJobs that have not finished."""
    manifest = seen.manifest
    if is_finished_manifest(manifest):
        return ()
    namespace = manifest["metadata"].get("namespace") or ""
    recorded = recorded_revision_in(manifest)
    revision = () if recorded is None else (index_value(CONTROLLER_REVISIONS, recorded),)
    return runtime_of_manifest(manifest), ALL, in_namespace(namespace), *revision


def is_finished_manifest(manifest: Manifest) -> bool:
    """Whether the training has ended, as `is_finished` decides from the decoded object."""
    conditions = mapping_or_empty(manifest.get("status")).get("conditions")
    return any(
        is_final(condition.get("type"), condition.get("status"), condition.get("reason"))
        for condition in map(mapping_or_empty, conditions if isinstance(conditions, list) else ())
    )


def runtime_of_manifest(manifest: Manifest) -> str:
    """Return the index value of the runtime that a TrainJob refers to; empty if there is none."""
    found = referenced_runtime_in(manifest)
    return "" if found is None else index_value(*found)


def revision_of_job(seen: ObservedObject[Any]) -> Iterable[str]:
    """Index TrainJobs by the revisions that their status records."""
    recorded = recorded_revision_in(seen.manifest)
    return () if recorded is None else (str(recorded),)


TRAIN_JOB_INDEXES = {
    INDEX_RUNTIME: runtimes_of_job,
    INDEX_UNFINISHED: unfinished_job,
    INDEX_REVISION: revision_of_job,
}
