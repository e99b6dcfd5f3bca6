"""Merges overrides and runtime patches into the template of the runtime."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import orjson

from kftrainer.api.limits import values_in
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, forbidden, invalid
from kftrainer.kube.objects.strategic_merge import (
    StrategicMergeError,
    merge_in_place,
    retain_sources,
    strategic_merge,
)
from kftrainer.runtime.object_builders import thaw
from kftrainer.runtime.patches.pod_patches import METADATA, PodPatch, pod_patches
from kftrainer.runtime.patches.targets import (
    CONTAINERS,
    MOST_UNKNOWN,
    both_fields_errors,
    target_errors,
)
from kftrainer.runtime.resources.quantities import rewrite_quantities
from kftrainer.runtime.trace import Trace
from kftrainer.runtime.validation.rules import Rule

MERGED_LISTS = frozenset(
    {
        "initContainers",
        "containers",
        "volumes",
        "schedulingGates",
        "imagePullSecrets",
        "resourceClaims",
    }
)
# Estimated time to merge every patch into every one of its jobs, roughly in microseconds. The
# merge blocks the event loop.
MOST_WORK = 6_000
WORK_PER_MERGE = 10
# Beyond this, the JobSet would be too large to be stored.
MOST_BYTES = 1024 * 1024
TOO_MUCH_WORK = "must be fewer or smaller: merging them into all their jobs takes too long"
TOO_MANY_BYTES = (
    f"must be fewer or smaller: together, in all their jobs, they have more than {MOST_BYTES} bytes"
)


def merge_patches(job: TrainJob, template: dict[str, Any], trace: Trace) -> Iterator[FieldError]:
    """Merge overrides and runtime patches into the template and yield all their errors."""
    unknown = [*both_fields_errors(job), *target_errors(job, template)]
    yield from unknown
    if len(unknown) < MOST_UNKNOWN:  # otherwise they were written for another runtime
        yield from islice(_apply_all(job, template, trace), MOST_UNKNOWN)


def _apply_all(job: TrainJob, template: dict[str, Any], trace: Trace) -> Iterator[FieldError]:
    """Merge all patches into the template; yield an error for each part that is skipped."""
    jobs = _templates_by_name(template)
    work = size = 0
    for patch in pod_patches(job):
        pods, errors = _pod_template_patch(patch)
        yield from errors
        job_metadata = _metadata(patch.job_metadata)
        if not (pods or job_metadata):
            continue
        encoded = len(orjson.dumps(pods)) + len(orjson.dumps(job_metadata))
        values = values_in(pods) + values_in(job_metadata)
        for target, job_template in _targets(patch, jobs):
            size += encoded
            entries = _entries_changed(job_template["spec"]["template"], pods)
            work += WORK_PER_MERGE + values + entries
            if work > MOST_WORK or size > MOST_BYTES:
                detail = TOO_MUCH_WORK if work > MOST_WORK else TOO_MANY_BYTES
                yield forbidden(patch.field, detail, rule=patch.kind.too_much_rule)
                return
            yield from _merge(patch, pods, target, job_template["spec"], merge_in_place)
            path = f"spec.replicatedJobs[{target}].template"
            trace.note(f"{path}.spec.template", patch.source)
            if job_metadata:
                _merge_metadata(job_template, job_metadata)
                trace.note(f"{path}.metadata", patch.source)


def merge_into_copies(patch: PodPatch, template: dict[str, Any]) -> Iterator[FieldError]:
    """Merge one patch; changed pod templates are replaced by copies, not modified."""
    pods, errors = _pod_template_patch(patch)
    yield from errors
    for target, job_template in _targets(patch, _templates_by_name(template)):
        yield from _merge(patch, pods, target, job_template["spec"], strategic_merge)


def _merge(
    patch: PodPatch,
    pods: Mapping[str, Any],
    target: str,
    job_spec: dict[str, Any],
    merge: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]],
) -> Iterator[FieldError]:
    try:
        prepared = retain_sources(job_spec["template"], pods)
        job_spec["template"] = merge(job_spec["template"], prepared)
    except StrategicMergeError as error:
        yield invalid(patch.path_in(error.path), target, str(error), rule=Rule.SCHEMA)


def _merge_metadata(job_template: dict[str, Any], changes: Mapping[str, Any]) -> None:
    metadata = job_template.get("metadata") or {}
    merged = {field: {**(metadata.get(field) or {}), **changes[field]} for field in changes}
    job_template["metadata"] = {**metadata, **merged}


def _pod_template_patch(patch: PodPatch) -> tuple[dict[str, Any], list[FieldError]]:
    """Return a strategic merge patch with canonical quantities, and errors for invalid ones."""
    spec = _without_empty(patch.spec)
    pods = thaw(_without_empty({"metadata": _metadata(patch.metadata), "spec": spec}))
    return pods, [*rewrite_quantities(pods.get("spec") or {}, patch.spec_path)]


def _metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels and annotations, the only metadata that is merged."""
    return {key: metadata[key] for key in METADATA if metadata.get(key)}


def _without_empty(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec without empty fields: a patch can add and change, but not remove."""
    return {key: value for key, value in spec.items() if value not in (None, "", [], {})}


def _templates_by_name(template: Mapping[str, Any]) -> Mapping[str, dict[str, Any]]:
    """Return the Job template of each replicated job."""
    return {job["name"]: job["template"] for job in reversed(template["replicatedJobs"])}


def _targets(
    patch: PodPatch, jobs: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the jobs of the template that the patch changes, each once."""
    for target in dict.fromkeys(patch.jobs):
        if target in jobs:
            yield target, jobs[target]


def _entries_changed(pod: Mapping[str, Any], patch: Mapping[str, Any]) -> int:
    """Return the number of items in the lists of the pod that the patch is merged into."""
    spec, changes = pod.get("spec") or {}, patch.get("spec") or {}
    entries = sum(_length(spec.get(field)) for field in changes if field in MERGED_LISTS)
    for field, _ in CONTAINERS:
        if field in changes:
            changed = {each.get("name") for each in changes[field]}
            for container in spec.get(field) or ():
                if container["name"] in changed:
                    entries += _length(container.get("env")) + _length(
                        container.get("volumeMounts")
                    )
    return entries


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0
