"""Merges overrides and runtime patches into the template of the runtime."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson

from kftrainer.api.limits import QUEUE_BYTES, values_in
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, forbidden, invalid
from kftrainer.kube.objects.quantity import QuantityError
from kftrainer.kube.objects.strategic_merge import (
    StrategicMergeError,
    directives,
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
from kftrainer.runtime.resources.pod_requests import merge_resources
from kftrainer.runtime.resources.quantities import CONTAINER_LISTS, HALVES, rewrite_quantities
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
# Work that does not count for the patch of a queue, so that the TrainJob can be admitted by it.
QUEUE_WORK = 1_000
# Beyond this, the JobSet would be too large to be stored.
MOST_BYTES = 1024 * 1024
DOLLAR = b'"$'  # a text that begins like a directive
DIRECTIVE = "is a directive of strategic merge patches, which cannot be set here"
TOO_MUCH_WORK = "must be fewer or smaller: merging them into all their jobs takes too long"
TOO_MANY_BYTES = (
    f"must be fewer or smaller: together, in all their jobs, they have more than {MOST_BYTES} bytes"
)


class _Budget:
    """The work and the bytes that remain for merges."""

    def __init__(self) -> None:
        self._work, self._bytes = MOST_WORK, MOST_BYTES
        self._queue_work, self._queue_bytes = QUEUE_WORK, QUEUE_BYTES

    def spend(self, work: int, size: int, *, is_of_queue: bool) -> str:
        """Take them from the budget; return an error if it is exhausted."""
        if is_of_queue:
            free_work, free_bytes = min(work, self._queue_work), min(size, self._queue_bytes)
            self._queue_work -= free_work
            self._queue_bytes -= free_bytes
            work, size = work - free_work, size - free_bytes
        self._work -= work
        self._bytes -= size
        if self._work < 0:
            return TOO_MUCH_WORK
        return TOO_MANY_BYTES if self._bytes < 0 else ""


def merge_patches(job: TrainJob, template: dict[str, Any], trace: Trace) -> Iterator[FieldError]:
    """Merge overrides and runtime patches into the template and yield all their errors."""
    unknown = [*both_fields_errors(job), *target_errors(job, template)]
    yield from unknown
    if len(unknown) < MOST_UNKNOWN:  # otherwise they were written for another runtime
        yield from islice(_apply_all(job, template, trace), MOST_UNKNOWN)


def _apply_all(job: TrainJob, template: dict[str, Any], trace: Trace) -> Iterator[FieldError]:
    """Merge all patches into the template; yield an error for each part that is skipped."""
    jobs = _templates_by_name(template)
    budget = _Budget()
    for patch in pod_patches(job):
        pods, errors = _pod_template_patch(patch)
        yield from errors
        job_metadata = _metadata(patch.job_metadata)
        if not (pods or job_metadata):
            continue
        document = orjson.dumps(pods)
        if DOLLAR in document and (found := [*_directive_errors(patch, pods)]):
            yield from found
            continue
        encoded = len(document) + len(orjson.dumps(job_metadata))
        values = values_in(pods) + values_in(job_metadata)
        for target, job_template in _targets(patch, jobs):
            entries = _entries_changed(job_template["spec"]["template"], pods)
            work = WORK_PER_MERGE + values + entries
            if detail := budget.spend(work, encoded, is_of_queue=patch.is_of_queue):
                yield forbidden(patch.field, detail, rule=patch.kind.too_much_rule)
                return
            yield from _merge(patch, pods, target, job_template["spec"], merge_in_place)
            path = f"spec.replicatedJobs[{target}].template"
            trace.note(f"{path}.spec.template", patch.source)
            if job_metadata:
                _merge_metadata(job_template, job_metadata)
                trace.note(f"{path}.metadata", patch.source)


def _directive_errors(patch: PodPatch, pods: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield errors for keys that the merge would interpret, which maps such as labels can have."""
    for part in ("metadata", "spec"):
        for path in directives(pods.get(part), part):
            yield forbidden(patch.path_in(path), DIRECTIVE, rule=Rule.SCHEMA)


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
    template = job_spec["template"]
    try:
        prepared = retain_sources(template, _with_adjusted_resources(template, pods))
        job_spec["template"] = merge(template, prepared)
    except StrategicMergeError as error:
        yield invalid(patch.path_in(error.path), target, str(error), rule=Rule.SCHEMA)


def _with_adjusted_resources(pod: Mapping[str, Any], patch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the patch with requests and limits adjusted to each other.

    The API server rejects a request above its limit, so a patch of only one of them changes the
    other one too where `merge_resources` does so for `resourcesPerNode`.
    """
    spec, old_spec = patch.get("spec") or {}, pod.get("spec") or {}
    changed = {
        field: _adjusted(old_spec.get(field) or (), spec[field])
        for field in CONTAINER_LISTS
        if any(each.get("resources") for each in spec.get(field) or ())
    }
    return {**patch, "spec": {**spec, **changed}} if changed else patch


def _adjusted(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Any]:
    there = {container["name"]: container.get("resources") or {} for container in reversed(old)}
    containers = []
    for container in new:
        base, wanted = there.get(container.get("name")), container.get("resources")
        resources = _adjusted_resources(base, wanted) if base and wanted else wanted
        containers.append({**container, "resources": resources} if wanted else container)
    return containers


def _adjusted_resources(base: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        merged = merge_resources(base, wanted)
    except QuantityError:  # it is reported with its path
        return wanted
    halves = {}
    for half in HALVES:
        removed = (base.get(half) or {}).keys() - merged.get(half, {}).keys()
        halves[half] = {**merged.get(half, {}), **dict.fromkeys(removed)}
    return {**wanted, **{half: amounts for half, amounts in halves.items() if amounts}}


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
