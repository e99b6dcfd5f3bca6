"""The TrainJob's changes to the pods of the runtime's template."""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.api import names
from kftrainer.api.overrides import PodTemplateOverride
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.field import FieldError, forbidden, invalid
from kftrainer.kube.strategic_merge import StrategicMergeError, retain_sources, strategic_merge
from kftrainer.runtime.manifests import named, thaw
from kftrainer.runtime.quantities import rewrite_quantities
from kftrainer.runtime.tape import SILENCE, Tape

UNKNOWN_JOB = "must not have targetJob that doesn't exist in the runtime job template"
STEP_ENV = "must not have envs for the dataset-initializer, model-initializer, node containers"
STEP_CONTAINERS = (
    names.STEP_DATASET_INITIALIZER,
    names.STEP_MODEL_INITIALIZER,
    names.CONTAINER_NODE,
)
MODERN, LEGACY = "podTemplateOverrides", "podSpecOverrides"
METADATA = ("labels", "annotations")  # nothing else can be said about pods that are yet to come


def overrides(job: TrainJob) -> Iterator[tuple[str, PodTemplateOverride]]:
    """The overrides in their order, and where in the TrainJob they are."""
    field = overrides_field(job)
    for index, override in enumerate(job.spec.overrides()):
        yield f"{field}[{index}]", override


def overrides_field(job: TrainJob) -> str:
    """The field that the overrides are in: it has two names."""
    return f"spec.{LEGACY if job.spec.pod_spec_overrides else MODERN}"


def two_dialects(job: TrainJob) -> Iterator[FieldError]:
    """Overrides under both of their names."""
    if job.spec.pod_template_overrides and job.spec.pod_spec_overrides:
        yield forbidden(f"spec.{LEGACY}", f"is the old name of {MODERN}: only one can be set")


def unknown_targets(job: TrainJob, template: Mapping[str, Any]) -> Iterator[FieldError]:
    """What overrides name that the runtime does not have: jobs, and containers in them."""
    for path, override in overrides(job):
        for index, target in enumerate(override.target_jobs):
            replicated = named(template["replicatedJobs"], target.name)
            if replicated is None:
                yield invalid(f"{path}.targetJobs[{index}].name", target.name, UNKNOWN_JOB)
            else:
                yield from _unknown_containers(path, override, replicated)


def step_env_overrides(job: TrainJob) -> Iterator[FieldError]:
    """Variables of containers that have a place of their own in the TrainJob."""
    for path, override in overrides(job):
        for index, container in enumerate((override.spec or {}).get("containers") or ()):
            if container.get("name") in STEP_CONTAINERS and container.get("env"):
                where = place(path, f"spec.containers[{index}].env")
                yield invalid(where, [each.get("name") for each in container["env"]], STEP_ENV)


def apply_overrides(job: TrainJob, template: dict[str, Any], tape: Tape) -> Iterator[FieldError]:
    """Merge the overrides into the template; what cannot be merged is told and left out."""
    for path, override in overrides(job):
        yield from apply_override(path, override, template, tape)


def apply_override(
    path: str, override: PodTemplateOverride, template: dict[str, Any], tape: Tape = SILENCE
) -> Iterator[FieldError]:
    """Merge one of them. What it changes becomes new: the pods that were there stay as they are."""
    patch = thaw(_patch(override))
    yield from rewrite_quantities(patch.get("spec") or {}, place(path, "spec"))
    for target in dict.fromkeys(target.name for target in override.target_jobs):
        replicated = named(template["replicatedJobs"], target)
        if replicated is None:
            continue
        job_spec = replicated["template"]["spec"]
        try:
            prepared = retain_sources(job_spec["template"], patch)
            job_spec["template"] = strategic_merge(job_spec["template"], prepared)
        except StrategicMergeError as error:
            yield invalid(place(path, error.path), target, str(error))
        tape.note(f"spec.replicatedJobs[{target}].template.spec.template", path)


def _patch(override: PodTemplateOverride) -> dict[str, Any]:
    metadata = override.metadata.dump() if override.metadata else {}
    said = {key: metadata[key] for key in METADATA if metadata.get(key)}
    return _without_empty({"metadata": said, "spec": _without_empty(override.spec or {})})


def _without_empty(spec: Mapping[str, Any]) -> dict[str, Any]:
    """An override adds and changes: a field that is empty says nothing."""
    return {key: value for key, value in spec.items() if value not in (None, "", [], {})}


def _unknown_containers(
    path: str, override: PodTemplateOverride, replicated: Mapping[str, Any]
) -> Iterator[FieldError]:
    pod = replicated["template"]["spec"]["template"]["spec"]
    for field, noun in (("initContainers", "initContainer"), ("containers", "container")):
        for index, container in enumerate((override.spec or {}).get(field) or ()):
            name = container.get("name")
            if named(pod.get(field) or (), name) is None:
                where = place(path, f"spec.{field}[{index}].name")
                detail = f"must not have {noun} that doesn't exist in the runtime job "
                yield invalid(where, name, f"{detail}{replicated['name']}")


def place(path: str, inner: str) -> str:
    """The place in the TrainJob: the old dialect has the pod's fields beside targetJobs."""
    if path.startswith(f"spec.{LEGACY}"):
        inner = inner.removeprefix("spec").removeprefix(".")
    return f"{path}.{inner}" if inner else path
