"""The TrainJob's changes to the pods of the runtime's template."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.api.overrides import PodTemplateOverride
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.field import FieldError, forbidden, invalid
from kftrainer.kube.strategic_merge import StrategicMergeError, retain_sources, strategic_merge
from kftrainer.runtime.manifests import named, thaw
from kftrainer.runtime.quantities import rewrite_quantities
from kftrainer.runtime.rule_names import Rule
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
CONTAINERS = (("initContainers", "initContainer"), ("containers", "container"))
MOST_UNKNOWN = 100  # errors: who reads so many knows that the names are of another runtime
# Bytes of pods and overrides that are gone through, which takes about a second: each override is
# merged into each of its jobs, with all that those before it have added. Everybody else waits.
MOST_WORK = 4 * 1024 * 1024
TOO_MUCH_WORK = (
    f"must be fewer or smaller: to merge them one after the other would be to go through more than "
    f"{MOST_WORK} bytes"
)


def overrides(job: TrainJob) -> Iterator[tuple[str, PodTemplateOverride]]:
    """The overrides in their order, and where in the TrainJob they are."""
    if said := job.spec.overrides():  # there are mostly none, and half of all rules ask
        field = overrides_field(job)
        for index, override in enumerate(said):
            yield f"{field}[{index}]", override


def overrides_field(job: TrainJob) -> str:
    """The field that the overrides are in: it has two names."""
    return f"spec.{LEGACY if job.spec.pod_spec_overrides else MODERN}"


def merge_overrides(job: TrainJob, template: dict[str, Any], tape: Tape) -> Iterator[FieldError]:
    """Merge the overrides into the template, and tell all that is wrong with them."""
    unknown = [*two_dialects(job), *unknown_targets(job, template)]
    yield from unknown
    if len(unknown) < MOST_UNKNOWN:  # else they are not for this template
        yield from apply_overrides(job, template, tape)


def two_dialects(job: TrainJob) -> Iterator[FieldError]:
    """Overrides under both of their names."""
    if job.spec.pod_template_overrides and job.spec.pod_spec_overrides:
        detail = f"is the old name of {MODERN}: only one can be set"
        yield forbidden(f"spec.{LEGACY}", detail, rule=Rule.SCHEMA)


def unknown_targets(job: TrainJob, template: Mapping[str, Any]) -> Iterator[FieldError]:
    """What overrides name that the runtime does not have: jobs, and containers in them."""
    return islice(_unknown_targets(job, template), MOST_UNKNOWN)


def step_env_overrides(job: TrainJob) -> Iterator[FieldError]:
    """Variables of containers that have a place of their own in the TrainJob."""
    for path, override in overrides(job):
        for index, container in enumerate((override.spec or {}).get("containers") or ()):
            if container.get("name") in STEP_CONTAINERS and container.get("env"):
                where = place(path, f"spec.containers[{index}].env")
                env = [each.get("name") for each in container["env"]]
                yield invalid(where, env, STEP_ENV, rule=Rule.OVERRIDE_STEP_ENV)


def apply_overrides(job: TrainJob, template: dict[str, Any], tape: Tape) -> Iterator[FieldError]:
    """Merge the overrides into the template; what cannot be merged is told and left out."""
    work = 0
    for path, override in overrides(job):
        work += _work(override, template)
        if work > MOST_WORK:
            yield forbidden(overrides_field(job), TOO_MUCH_WORK, rule=Rule.OVERRIDE_TOO_MUCH)
            return
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
            yield invalid(place(path, error.path), target, str(error), rule=Rule.SCHEMA)
        tape.note(f"spec.replicatedJobs[{target}].template.spec.template", path)


def _patch(override: PodTemplateOverride) -> dict[str, Any]:
    spec = _without_empty(override.spec or {})
    return _without_empty({"metadata": _metadata(override), "spec": spec})


def _metadata(override: PodTemplateOverride) -> dict[str, Any]:
    """What it says about the pods' metadata."""
    metadata = override.metadata.dump() if override.metadata else {}
    return {key: metadata[key] for key in METADATA if metadata.get(key)}


def _without_empty(spec: Mapping[str, Any]) -> dict[str, Any]:
    """An override adds and changes: a field that is empty says nothing."""
    return {key: value for key, value in spec.items() if value not in (None, "", [], {})}


def _work(override: PodTemplateOverride, template: Mapping[str, Any]) -> int:
    """How many bytes are gone through to merge the override."""
    targets = {target.name for target in override.target_jobs}
    pods = [
        job["template"]["spec"]["template"]
        for job in template["replicatedJobs"]
        if job["name"] in targets
    ]
    patch = len(orjson.dumps(override.spec)) + len(orjson.dumps(_metadata(override)))
    return sum(patch + len(orjson.dumps(pod)) for pod in pods)


def _unknown_targets(job: TrainJob, template: Mapping[str, Any]) -> Iterator[FieldError]:
    jobs = {each["name"]: _Known(each) for each in template["replicatedJobs"]}
    for path, override in overrides(job):
        asked = {field: _first_places(override, field) for field, _ in CONTAINERS}
        for target, index in _first_targets(override).items():
            if target in jobs:
                yield from _unknown_containers(path, asked, jobs[target])
            else:
                where = f"{path}.targetJobs[{index}].name"
                yield invalid(where, target, UNKNOWN_JOB, rule=Rule.OVERRIDE_UNKNOWN_JOB)


class _Known:
    """The names of a job's containers, by their lists: looked up once, however often asked for."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        pod = job["template"]["spec"]["template"]["spec"]
        self.job_name = job["name"]
        self.containers = {
            field: frozenset(each["name"] for each in pod.get(field) or ())
            for field, _ in CONTAINERS
        }


def _first_targets(override: PodTemplateOverride) -> dict[str, int]:
    """The jobs that the override names, each once, and where."""
    targets: dict[str, int] = {}
    for index, target in enumerate(override.target_jobs):
        targets.setdefault(target.name, index)
    return targets


def _first_places(override: PodTemplateOverride, field: str) -> dict[Any, int]:
    """The names of the containers that the override changes, each once, and where."""
    places: dict[Any, int] = {}
    for index, container in enumerate((override.spec or {}).get(field) or ()):
        places.setdefault(container.get("name"), index)
    return places


def _unknown_containers(
    path: str, asked: Mapping[str, Mapping[Any, int]], known: _Known
) -> Iterator[FieldError]:
    for field, noun in CONTAINERS:
        # Mostly all are known, and sets are quick to tell.
        if asked[field].keys() <= known.containers[field]:
            continue
        for name, index in asked[field].items():
            if name not in known.containers[field]:
                where = place(path, f"spec.{field}[{index}].name")
                detail = f"must not have {noun} that doesn't exist in the runtime job "
                rule = Rule.OVERRIDE_UNKNOWN_CONTAINER
                yield invalid(where, name, f"{detail}{known.job_name}", rule=rule)


def place(path: str, inner: str) -> str:
    """The place in the TrainJob: the old dialect has the pod's fields beside targetJobs."""
    if path.startswith(f"spec.{LEGACY}"):
        inner = inner.removeprefix("spec").removeprefix(".")
    return f"{path}.{inner}" if inner else path
