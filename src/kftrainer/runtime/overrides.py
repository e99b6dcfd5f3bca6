"""Merges the TrainJob's pod overrides, and stored runtimePatches, into the runtime's template."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.api.limits import values_in
from kftrainer.api.overrides import PodTemplateOverride
from kftrainer.api.runtime_patches import RuntimePatch
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, forbidden, invalid
from kftrainer.kube.objects.strategic_merge import (
    StrategicMergeError,
    merge_in_place,
    retain_sources,
    strategic_merge,
)
from kftrainer.runtime.object_builders import thaw
from kftrainer.runtime.resources.quantities import rewrite_quantities
from kftrainer.runtime.trace import Trace
from kftrainer.runtime.validation.rules import Rule

UNKNOWN_JOB = "must not have targetJob that doesn't exist in the runtime job template"
STEP_ENV = "must not have envs for the dataset-initializer, model-initializer, node containers"
STEP_CONTAINERS = (
    names.STEP_DATASET_INITIALIZER,
    names.STEP_MODEL_INITIALIZER,
    names.CONTAINER_NODE,
)
MODERN, LEGACY = "podTemplateOverrides", "podSpecOverrides"
METADATA = ("labels", "annotations")  # the only metadata that a pod template can set
CONTAINERS = (("initContainers", "initContainer"), ("containers", "container"))
MERGED_LISTS = frozenset(
    {"initContainers", "containers", "volumes", "schedulingGates", "imagePullSecrets"}
)
MOST_UNKNOWN = 100  # errors that are reported; more indicate a wrong runtime
# Estimated time to merge every override into every one of its jobs, roughly in microseconds. The
# merge blocks the event loop.
MOST_WORK = 6_000
WORK_PER_MERGE = 10
# Beyond this, the JobSet would be too large to be stored.
MOST_BYTES = 1024 * 1024
TOO_MUCH_WORK = "must be fewer or smaller: merging them into all their jobs takes too long"
TOO_MANY_BYTES = (
    f"must be fewer or smaller: together, in all their jobs, they have more than {MOST_BYTES} bytes"
)
# What JobSet lets change in the pod templates of a suspended JobSet, besides METADATA.
MUTABLE_POD_FIELDS = ("nodeSelector", "tolerations", "schedulingGates")


def overrides(job: TrainJob) -> Iterator[tuple[str, PodTemplateOverride]]:
    """Yield the overrides in order, each with its path in the TrainJob."""
    if listed := job.spec.overrides():  # usually empty, and called by half of all rules
        field = overrides_field(job)
        for index, override in enumerate(listed):
            yield f"{field}[{index}]", override


def overrides_field(job: TrainJob) -> str:
    """Return the path of the overrides, which can have the current or the old field name."""
    return f"spec.{LEGACY if job.spec.pod_spec_overrides else MODERN}"


def merge_overrides(job: TrainJob, template: dict[str, Any], trace: Trace) -> Iterator[FieldError]:
    """Merge the overrides into the template and yield all their errors."""
    unknown = [*both_fields_errors(job), *unknown_targets(job, template)]
    yield from unknown
    if len(unknown) < MOST_UNKNOWN:  # otherwise they were written for another runtime
        yield from islice(apply_overrides(job, template, trace), MOST_UNKNOWN)


def both_fields_errors(job: TrainJob) -> Iterator[FieldError]:
    """Yield an error if overrides are set under both field names."""
    if job.spec.pod_template_overrides and job.spec.pod_spec_overrides:
        detail = f"is the old name of {MODERN}: only one can be set"
        yield forbidden(f"spec.{LEGACY}", detail, rule=Rule.SCHEMA)


def unknown_targets(job: TrainJob, template: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield errors for jobs and containers in overrides that the runtime does not have."""
    return islice(_unknown_targets(job, template), MOST_UNKNOWN)


def step_env_overrides(job: TrainJob) -> Iterator[FieldError]:
    """Yield errors for variables of step containers, which the TrainJob sets in other fields."""
    for path, override in overrides(job):
        for index, container in enumerate((override.spec or {}).get("containers") or ()):
            if container.get("name") in STEP_CONTAINERS and container.get("env"):
                where = path_in(path, f"spec.containers[{index}].env")
                env = [each.get("name") for each in container["env"]]
                yield invalid(where, env, STEP_ENV, rule=Rule.OVERRIDE_STEP_ENV)


def apply_overrides(job: TrainJob, template: dict[str, Any], trace: Trace) -> Iterator[FieldError]:
    """Merge the overrides into the template; yield an error for each part that is skipped."""
    jobs = _jobs_by_name(template)
    work = size = 0
    for path, override in overrides(job):
        patch, errors = _patch_of(path, override)
        yield from errors
        encoded, values = len(orjson.dumps(patch)), values_in(patch)
        for target, job_spec in _targets(override, jobs):
            size += encoded
            entries = _entries_changed(job_spec["template"], patch)
            work += WORK_PER_MERGE + values + entries
            if work > MOST_WORK or size > MOST_BYTES:
                detail = TOO_MUCH_WORK if work > MOST_WORK else TOO_MANY_BYTES
                yield forbidden(overrides_field(job), detail, rule=Rule.OVERRIDE_TOO_MUCH)
                return
            yield from _merge(path, patch, target, job_spec, merge_in_place)
            trace.note(f"spec.replicatedJobs[{target}].template.spec.template", path)


def apply_override(
    path: str, override: PodTemplateOverride, template: dict[str, Any]
) -> Iterator[FieldError]:
    """Merge one override; changed pod templates are replaced by copies, not modified."""
    patch, errors = _patch_of(path, override)
    yield from errors
    for target, job_spec in _targets(override, _jobs_by_name(template)):
        yield from _merge(path, patch, target, job_spec, strategic_merge)


def _merge(
    path: str,
    patch: Mapping[str, Any],
    target: str,
    job_spec: dict[str, Any],
    merge: Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]],
) -> Iterator[FieldError]:
    try:
        prepared = retain_sources(job_spec["template"], patch)
        job_spec["template"] = merge(job_spec["template"], prepared)
    except StrategicMergeError as error:
        yield invalid(path_in(path, error.path), target, str(error), rule=Rule.SCHEMA)


def _patch_of(path: str, override: PodTemplateOverride) -> tuple[dict[str, Any], list[FieldError]]:
    """Return the override as a patch with canonical quantities, and errors for invalid ones."""
    patch = thaw(_patch(override))
    return patch, [*rewrite_quantities(patch.get("spec") or {}, path_in(path, "spec"))]


def _jobs_by_name(template: Mapping[str, Any]) -> Mapping[str, dict[str, Any]]:
    return {job["name"]: job["template"]["spec"] for job in reversed(template["replicatedJobs"])}


def _targets(
    override: PodTemplateOverride, jobs: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the jobs of the template that the override targets, each once."""
    for target in dict.fromkeys(target.name for target in override.target_jobs):
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


def _patch(override: PodTemplateOverride) -> dict[str, Any]:
    spec = _without_empty(override.spec or {})
    return _without_empty({"metadata": _metadata(override), "spec": spec})


def _metadata(override: PodTemplateOverride) -> dict[str, Any]:
    """Return the pod labels and annotations of the override."""
    metadata = override.metadata.dump() if override.metadata else {}
    return {key: metadata[key] for key in METADATA if metadata.get(key)}


def _without_empty(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec without empty fields: an override can add and change, but not remove."""
    return {key: value for key, value in spec.items() if value not in (None, "", [], {})}


def _unknown_targets(job: TrainJob, template: Mapping[str, Any]) -> Iterator[FieldError]:
    jobs = {each["name"]: _Known(each) for each in template["replicatedJobs"]}
    for path, override in overrides(job):
        named = {field: _first_indices(override, field) for field, _ in CONTAINERS}
        for target, index in _first_targets(override).items():
            if target in jobs:
                yield from _unknown_containers(path, named, jobs[target])
            else:
                where = f"{path}.targetJobs[{index}].name"
                yield invalid(where, target, UNKNOWN_JOB, rule=Rule.OVERRIDE_UNKNOWN_JOB)


class _Known:
    """The names of a job's containers by list, computed once."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        pod = job["template"]["spec"]["template"]["spec"]
        self.job_name = job["name"]
        self.containers = {
            field: frozenset(each["name"] for each in pod.get(field) or ())
            for field, _ in CONTAINERS
        }


def _first_targets(override: PodTemplateOverride) -> dict[str, int]:
    """Return the jobs that the override names, with the index of the first mention."""
    targets: dict[str, int] = {}
    for index, target in enumerate(override.target_jobs):
        targets.setdefault(target.name, index)
    return targets


def _first_indices(override: PodTemplateOverride, field: str) -> dict[Any, int]:
    """Return the containers that the override changes, with the index of the first mention."""
    indices: dict[Any, int] = {}
    for index, container in enumerate((override.spec or {}).get(field) or ()):
        indices.setdefault(container.get("name"), index)
    return indices


def _unknown_containers(
    path: str, named: Mapping[str, Mapping[Any, int]], known: _Known
) -> Iterator[FieldError]:
    for field, noun in CONTAINERS:
        # Usually all names are known, which a set comparison finds quickly.
        if named[field].keys() <= known.containers[field]:
            continue
        for name, index in named[field].items():
            if name not in known.containers[field]:
                where = path_in(path, f"spec.{field}[{index}].name")
                detail = f"must not have {noun} that doesn't exist in the runtime job "
                rule = Rule.OVERRIDE_UNKNOWN_CONTAINER
                yield invalid(where, name, f"{detail}{known.job_name}", rule=rule)


def path_in(path: str, inner: str) -> str:
    """Return the path in the TrainJob; the old field has the pod spec beside targetJobs."""
    if path.startswith(f"spec.{LEGACY}"):
        inner = inner.removeprefix("spec").removeprefix(".")
    return f"{path}.{inner}" if inner else path


def merge_stored_patches(
    job: TrainJob,
    template: Mapping[str, Any],
    labels: dict[str, str],
    annotations: dict[str, str],
) -> Iterator[FieldError]:
    """Merge the mutable part of stored `runtimePatches`; yield an error for each invalid one.

    The API server rejects new patches. A TrainJob of another implementation may still have some,
    and its JobSet was created with them. The immutable part of that JobSet is kept; the fields that
    JobSet lets change would be removed if the plan did not contain them.
    """
    jobs = {each["name"]: each["template"]["spec"] for each in template["replicatedJobs"]}
    for index, patch in enumerate(job.spec.runtime_patches or ()):
        template_patch = patch.training_runtime_spec and patch.training_runtime_spec.template
        if template_patch and (metadata := template_patch.metadata):
            labels.update(metadata.labels or {})
            annotations.update(metadata.annotations or {})
        for name, pods in _pod_templates(patch):
            if name not in jobs:
                continue
            try:
                jobs[name]["template"] = merge_in_place(jobs[name]["template"], pods)
            except StrategicMergeError as error:
                where = f"spec.runtimePatches[{index}]"
                yield invalid(where, name, str(error), rule=Rule.SCHEMA)


def _pod_templates(patch: RuntimePatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of the patched jobs with the mutable part of their pod templates."""
    template = patch.training_runtime_spec and patch.training_runtime_spec.template
    jobs = template.spec.replicated_jobs if template and template.spec else None
    for job in jobs or ():
        match job:
            case {"name": str(name), "template": {"spec": {"template": Mapping() as pods}}}:
                yield name, _mutable_part(pods)
            case _:
                continue


def _mutable_part(pods: Mapping[str, Any]) -> dict[str, Any]:
    return {
        part: {field: thaw(found[field]) for field in fields if found.get(field)}
        for part, fields in (("metadata", METADATA), ("spec", MUTABLE_POD_FIELDS))
        if isinstance(found := pods.get(part), Mapping)
    }
