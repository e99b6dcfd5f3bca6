"""Builds the Info of a TrainJob: the template of its runtime with all patches merged."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.api.schema.not_served import unserved_fields
from kftrainer.api.template_metadata import TemplateMetadata
from kftrainer.api.trainjob import ResourceClaim, TrainJob
from kftrainer.kube.objects.field_errors import FieldError, forbidden, invalid, required
from kftrainer.kube.objects.model import KubeModel
from kftrainer.machinery.memo import Memo
from kftrainer.runtime.cluster_reader import NO_OBJECTS, ClusterReader
from kftrainer.runtime.errors import InvalidRuntimeError, InvalidTrainJobError
from kftrainer.runtime.info import DEFAULT, NO_TRAINER, AnyRuntime, Info, own_job_set
from kftrainer.runtime.object_builders import thaw
from kftrainer.runtime.patches.merge import merge_patches
from kftrainer.runtime.patches.pod_patches import METADATA, jobset_metadata_patches, pod_patches
from kftrainer.runtime.podset import TRAINER_ONLY, Container, NodeLayout, PodSet
from kftrainer.runtime.resources.claims import (
    CLAIMS_IN_RESOURCES,
    CLAIMS_PATH,
    ClaimedDevices,
    claim_errors,
    claims_of,
    missing_claim_errors,
    requested_devices,
    taken_claim_errors,
)
from kftrainer.runtime.resources.devices import without_accelerators
from kftrainer.runtime.resources.pod_requests import merge_resources
from kftrainer.runtime.resources.quantities import (
    CONTAINER_LISTS,
    canonical_resources,
    rewrite_quantities,
)
from kftrainer.runtime.trace import NO_TRACE, Trace
from kftrainer.runtime.validation.names import template_name_errors
from kftrainer.runtime.validation.rules import Rule

STEPS = (names.STEP_TRAINER, names.STEP_DATASET_INITIALIZER, names.STEP_MODEL_INITIALIZER)
JOBS_PATH = "spec.template.spec.replicatedJobs"
RESOURCES_PATH = "spec.trainer.resourcesPerNode"
MOST_DIGITS = 9  # of a number of devices
# Names in the Trace for changes that no plugin makes.
BY_TRAIN_JOB, BY_RUNTIME = "TrainJob", "runtime"


def new_info(
    job: TrainJob,
    runtime: AnyRuntime,
    existing: ClusterReader = NO_OBJECTS,
    trace: Trace = NO_TRACE,
    layout: NodeLayout = TRAINER_ONLY,
) -> Info:
    """Return the Info that phase 1 receives; the framework's `new_info` finds the layout.

    Raises InvalidRuntimeError or InvalidTrainJobError.
    """
    blueprint = _blueprints(layout).of(runtime)
    unserved = [*unserved_errors(job.spec)]
    errors = blueprint.errors_of_new
    # Admission would read the JobSet from the API server: it is looked up only if it matters.
    if (errors or unserved) and own_job_set(job, existing) is not None:
        unserved = [*unserved_errors(job.spec, has_job_set=True)]
        errors = blueprint.errors
    if errors:
        raise InvalidRuntimeError(subject_of(runtime), *errors)
    _reject(job, unserved)
    _reject(job, claim_errors(job))
    _reject(job, _resource_errors(job))  # before patches are merged, which takes longer
    template: dict[str, Any] = orjson.loads(blueprint.template)
    metadata = blueprint.metadata
    labels = dict((metadata and metadata.labels) or {})
    annotations = dict((metadata and metadata.annotations) or {})
    trace.start({"metadata": {"labels": labels, "annotations": annotations}, "spec": template})
    with trace.changes_of(BY_TRAIN_JOB):
        _merge_metadata(job, labels, annotations, trace)
        if pod_patches(job):
            _reject(job, merge_patches(job, template, trace))
    for key in names.BOOKKEEPING:
        annotations.pop(key, None)
    with trace.changes_of(BY_RUNTIME):
        pod_sets = [_pod_set(each, runtime, layout, trace) for each in template["replicatedJobs"]]
    info = Info(runtime, existing, template, pod_sets, labels, annotations, trace, layout)
    with trace.changes_of(BY_TRAIN_JOB):
        _merge_resources(info, job)
        if claims := claims_of(job):
            _add_claims(info, job, claims)
        _reject(job, _unknown_claims(info, job))
        _set_trainer_container(info, job)
    return info


def subject_of(document: AnyRuntime | TrainJob) -> str:
    """Return the kind, namespace and name of an object, for messages."""
    namespace, name = document.metadata.namespace, document.metadata.name
    return f"{document.kind} {namespace}/{name}" if namespace else f"{document.kind} {name}"


def unserved_errors(spec: KubeModel, *, has_job_set: bool = False) -> Iterator[FieldError]:
    """Yield errors for fields of other releases, except those that never had an effect.

    The API server rejects all of them in new objects, but stored objects may have them. If another
    implementation has created the JobSet, fields that only shape the JobSet are no error: their
    effect is in the part of the JobSet that cannot be changed.
    """
    for field in unserved_fields(spec, "spec"):
        if not field.marker.was_inert and not (has_job_set and field.marker.is_in_job_set):
            yield forbidden(field.path, field.marker.message, rule=Rule.SCHEMA)


def runtime_errors(
    runtime: AnyRuntime, layout: NodeLayout = TRAINER_ONLY, *, has_job_set: bool = False
) -> Iterator[FieldError]:
    """Yield the errors that make the runtime unusable for every TrainJob without a JobSet.

    With `has_job_set`, yield those that make it unusable for TrainJobs that have one too.
    """
    spec = runtime.spec
    if spec is None or spec.template is None or not spec.template.spec:
        detail = "the spec of the JobSet to create for each TrainJob"
        yield required("spec.template.spec", detail, rule=Rule.RUNTIME_TEMPLATE)
        return
    yield from unserved_errors(spec, has_job_set=has_job_set)
    if spec.ml_policy and spec.ml_policy.torch and spec.ml_policy.mpi:
        detail = "Only one of the policy can be configured"
        yield invalid("spec.mlPolicy", ["torch", "mpi"], detail, rule=Rule.SCHEMA)
    if (groups := spec.pod_group_policy) and groups.coscheduling and groups.volcano:
        detail = "Only one of coscheduling and volcano can be configured"
        both = ["coscheduling", "volcano"]
        yield invalid("spec.podGroupPolicy", both, detail, rule=Rule.SCHEMA)
    jobs = spec.template.spec.get("replicatedJobs")
    if not isinstance(jobs, list) or not jobs:
        yield required(
            JOBS_PATH, "at least one job that runs the training", rule=Rule.RUNTIME_TEMPLATE
        )
        return
    broken = [error for index, each in enumerate(jobs) for error in _job_errors(each, index)]
    yield from broken
    if not broken:
        yield from _role_errors(layout, jobs)
        yield from template_name_errors(spec.template.spec, "spec.template.spec")


def _job_errors(job: Any, index: int) -> Iterator[FieldError]:
    """Yield errors for missing fields of a replicated job that all other code relies on."""
    path = f"{JOBS_PATH}[{index}]"
    match job:
        case {"name": str(name), "template": {"spec": {"template": {"spec": {**pod}}}}} if name:
            for field in ("containers", "initContainers"):
                yield from _container_errors(pod.get(field), f"{path}.{_POD}.{field}")
            if not pod.get("containers"):
                where = f"{path}.{_POD}.containers"
                yield required(where, "at least one container", rule=Rule.RUNTIME_PODS)
            yield from _count_errors(job, path)
        case {"name": str(name)} if name:
            yield required(f"{path}.{_POD}", "the pods of the job", rule=Rule.RUNTIME_PODS)
        case _:
            yield required(f"{path}.name", "the name of the job", rule=Rule.RUNTIME_NAMES)


_POD = "template.spec.template.spec"


def _container_errors(containers: object, path: str) -> Iterator[FieldError]:
    if containers is not None and not isinstance(containers, list):
        yield invalid(path, containers, "must be a list", rule=Rule.SCHEMA)
        return
    for index, container in enumerate(containers or ()):
        if not isinstance(container, Mapping) or not isinstance(container.get("name"), str):
            where = f"{path}[{index}].name"
            yield required(where, "the name of the container", rule=Rule.SCHEMA)


def _count_errors(job: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    parallelism = job["template"]["spec"].get("parallelism")
    least = 1 if ancestor(job) in STEPS else 0  # a step without pods never completes
    if parallelism is not None and not _is_count(parallelism, least=least):
        where = f"{path}.template.spec.parallelism"
        detail = f"must be a number of pods, at least {least}"
        yield invalid(where, parallelism, detail, rule=Rule.RUNTIME_PARALLELISM)
    replicas = job.get("replicas")
    if replicas is not None and not _is_count(replicas, least=0):
        detail = "must be a number of Jobs, at least 0"
        yield invalid(f"{path}.replicas", replicas, detail, rule=Rule.RUNTIME_COUNT)


def _is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _role_errors(layout: NodeLayout, jobs: list[Mapping[str, Any]]) -> Iterator[FieldError]:
    """Yield errors for duplicate job names, several trainers or a missing trainer container."""
    seen: dict[str, int] = {}
    for index, job in enumerate(jobs):
        if job["name"] in seen:
            where = f"{JOBS_PATH}[{index}].name"
            detail = f"is also the name of job {seen[job['name']]}"
            yield invalid(where, job["name"], detail, rule=Rule.SCHEMA)
        seen[job["name"]] = index
    label = names.LABEL_ANCESTOR_STEP
    trainers = [index for index, job in enumerate(jobs) if ancestor(job) == names.STEP_TRAINER]
    for index in trainers[1:]:
        where = f"{JOBS_PATH}[{index}].template.metadata.labels"
        step = {label: names.STEP_TRAINER}
        detail = f"only one job can have the label {label}: {names.STEP_TRAINER}"
        yield invalid(where, step, detail, rule=Rule.RUNTIME_TRAINER)
    if len(trainers) == 1 and not _has_trainer_container(jobs[trainers[0]], layout):
        where = f"{JOBS_PATH}[{trainers[0]}].{_POD}.containers"
        detail = f"a container named {names.CONTAINER_NODE} that runs the training"
        yield required(where, detail, rule=Rule.RUNTIME_STEP_CONTAINER)


def _has_trainer_container(job: Mapping[str, Any], layout: NodeLayout) -> bool:
    pod = job["template"]["spec"]["template"]["spec"]
    accepted = layout.container_names(job["name"])
    return any(container["name"] in accepted for container in pod["containers"])


def ancestor(job: Mapping[str, Any]) -> str | None:
    """Return the step of a TrainJob that the replicated job is labelled as, or None."""
    match job:
        case {"template": {"metadata": {"labels": {names.LABEL_ANCESTOR_STEP: str(step)}}}}:
            return step
        case _:
            return None


def _pod_set(job: dict[str, Any], runtime: AnyRuntime, layout: NodeLayout, trace: Trace) -> PodSet:
    step = ancestor(job)
    path = f"spec.replicatedJobs[{job['name']}]"
    if step in STEPS and job.get("replicas") != 1:
        job["replicas"] = 1
        trace.note(f"{path}.replicas", f"a job of the step {step}")
    pod_set = PodSet(
        name=job["name"],
        ancestor=step,
        count=1,
        replicas=job.get("replicas", 1),
        job=job,
        path=path,
        trace=trace,
    )
    parallelism = job["template"]["spec"].get("parallelism")
    ml_policy = runtime.spec.ml_policy if runtime.spec else None
    if step == names.STEP_TRAINER and ml_policy and layout.worker is None:
        is_set = ml_policy.num_nodes is not None
        source = "runtime spec.mlPolicy.numNodes" if is_set else DEFAULT
        pod_set.set_count(ml_policy.num_nodes or 1, source)
    else:
        source = DEFAULT if parallelism is None else "runtime spec.template.spec"
        pod_set.set_count(1 if parallelism is None else parallelism, source)
    return pod_set


def _merge_metadata(
    job: TrainJob, labels: dict[str, str], annotations: dict[str, str], trace: Trace
) -> None:
    for field, merged, own in (
        ("labels", labels, job.spec.labels),
        ("annotations", annotations, job.spec.annotations),
    ):
        merged.update(own or {})
        for key in own or {}:
            trace.note(f"metadata.{field}[{key}]", f"spec.{field}[{key}]")
    for patch in jobset_metadata_patches(job):
        changes = (patch.labels, patch.annotations)
        for field, merged, own in zip(METADATA, (labels, annotations), changes, strict=True):
            merged.update(own)
            for key in own:
                trace.note(f"metadata.{field}[{key}]", patch.source)


def _reject(job: TrainJob, errors: Iterable[FieldError]) -> None:
    found = list(errors)
    if found:
        raise InvalidTrainJobError(subject_of(job), *found)


def _resource_errors(job: TrainJob) -> Sequence[FieldError]:
    resources = (job.spec.trainer or NO_TRAINER).resources_per_node
    return canonical_resources(resources, RESOURCES_PATH)[1] if resources else ()


def _merge_resources(info: Info, job: TrainJob) -> None:
    """Merge resourcesPerNode into the resources of the containers that train."""
    resources = (job.spec.trainer or NO_TRAINER).resources_per_node
    if not resources:
        return
    canonical, _ = canonical_resources(resources, RESOURCES_PATH)
    for container, wanted in _resources_by_container(info, canonical):
        merged = merge_resources(container.resources, wanted)
        if merged:
            container.body["resources"] = merged
            _note_resources(container, wanted)


def _note_resources(container: Container, wanted: Mapping[str, Any]) -> None:
    """Record in the Trace which of the container's resources come from the TrainJob."""
    for half, amounts in wanted.items():
        for name in amounts if isinstance(amounts, Mapping) else ():
            where = f"{half}[{name}]"
            container.trace.note(f"{container.path}.resources.{where}", f"{RESOURCES_PATH}.{where}")


def _resources_by_container(
    info: Info, resources: Mapping[str, Any]
) -> Iterator[tuple[Container, Mapping[str, Any]]]:
    if (worker := info.worker) is not None:
        if (container := worker.container(names.CONTAINER_NODE)) is not None:
            yield container, resources
        if not info.layout.launcher_is_node:
            # A launcher that is not a node does not compute.
            without_claims = {key: each for key, each in resources.items() if key != "claims"}
            resources = without_accelerators(without_claims)
    if (container := info.trainer_container) is not None:
        yield container, resources


def _add_claims(info: Info, job: TrainJob, claims: Sequence[ResourceClaim]) -> None:
    """Add the resource claims to the pods of the nodes and to the containers that train."""
    nodes = [*_claiming_containers(info)]
    _reject(
        job,
        (
            error
            for pod_set, _ in nodes
            for error in taken_claim_errors(
                claims, pod_set.spec, pod_set.name, _patched_claims(job, pod_set.name)
            )
        ),
    )
    for pod_set, container in nodes:
        for index, claim in enumerate(claims):
            source = f"{CLAIMS_PATH}[{index}]"
            pod_set.add_resource_claim(claim.dump(), source)
            container.add_resource_claim(claim.name, source)
    if nodes:
        info.claimed = _claimed_devices(job, info.existing)
        if info.claimed.is_known:
            key, count = names.ANNOTATION_CLAIMED_DEVICES, str(info.claimed.count)
            info.annotations[key] = count
            info.trace.note(f"metadata.annotations[{key}]", f"devices of {CLAIMS_PATH}")


def _patched_claims(job: TrainJob, target: str) -> Mapping[str, str]:
    """Return the paths of patches that set resource claims of a job, by the names of the claims."""
    return {
        claim["name"]: f"{patch.spec_path}.resourceClaims"
        for patch in pod_patches(job)
        if target in patch.jobs
        for claim in patch.spec.get("resourceClaims") or ()
    }


def _unknown_claims(info: Info, job: TrainJob) -> Iterator[FieldError]:
    """Yield errors for claims that the TrainJob gives to containers, but not to their pods."""
    claims = (*_claims_in_resources(info, job), *_claims_in_patches(info, job))
    yield from dict.fromkeys(error for each in claims for error in missing_claim_errors(*each))


# Claims that the TrainJob gives to a container, their path, the container and its pod.
_Claims = tuple[Sequence[Mapping[str, Any]], str, Mapping[str, Any], Mapping[str, Any]]


def _claims_in_resources(info: Info, job: TrainJob) -> Iterator[_Claims]:
    claims = ((job.spec.trainer or NO_TRAINER).resources_per_node or {}).get("claims") or ()
    for pod_set, container in _claiming_containers(info) if claims else ():
        yield claims, CLAIMS_IN_RESOURCES, container.body, pod_set.spec


def _claims_in_patches(info: Info, job: TrainJob) -> Iterator[_Claims]:
    for patch in pod_patches(job):
        for field in CONTAINER_LISTS:
            for index, changes in enumerate(patch.spec.get(field) or ()):
                if claims := (changes.get("resources") or {}).get("claims"):
                    path = f"{patch.spec_path}.{field}[{index}].resources.claims"
                    for container, pod in _containers(info, patch.jobs, field, changes["name"]):
                        yield claims, path, container, pod


def _containers(
    info: Info, jobs: Sequence[str], field: str, name: str
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the containers of this list and name in the pods of these jobs, with the pods."""
    for pod_set in info.pod_sets:
        if pod_set.name in jobs:
            for container in pod_set.spec.get(field) or ():
                if container["name"] == name:
                    yield container, pod_set.spec


def _claiming_containers(info: Info) -> Iterator[tuple[PodSet, Container]]:
    """Yield the containers that train, with their pods; not a launcher that is not a node."""
    worker, trainer = info.worker, info.trainer
    if worker is not None and (container := worker.container(names.CONTAINER_NODE)) is not None:
        yield worker, container
    trains = worker is None or info.layout.launcher_is_node
    if trains and trainer is not None and (container := info.trainer_container) is not None:
        yield trainer, container


def _claimed_devices(job: TrainJob, existing: ClusterReader) -> ClaimedDevices:
    """Return the devices of a node, as they were when the JobSet was created.

    The environment in a JobSet is immutable, so a ResourceClaimTemplate that is replaced or deleted
    later has no effect on it. If it is missing, the TrainJob cannot be resumed.
    """
    requested, job_set = requested_devices(job, existing), own_job_set(job, existing)
    if job_set is None:
        return requested
    annotations: Mapping[str, str] = job_set["metadata"].get("annotations") or {}
    recorded = annotations.get(names.ANNOTATION_CLAIMED_DEVICES, "")
    is_number = recorded.isascii() and recorded.isdecimal() and len(recorded) <= MOST_DIGITS
    return ClaimedDevices(
        int(recorded) if is_number else requested.count,
        is_known=is_number or requested.is_known,
        error=None if job.spec.suspend else requested.error,
    )


@dataclass(frozen=True, slots=True)
class _Blueprint:
    """The part of planning that depends only on the runtime."""

    errors: Sequence[FieldError]  # why the runtime cannot be used
    errors_of_new: Sequence[FieldError]  # the same for TrainJobs that have no JobSet yet
    template: bytes = b""  # JSON with canonical quantities, so that decoding it creates a copy
    metadata: TemplateMetadata | None = None  # labels and annotations for JobSets


def _blueprint(layout: NodeLayout, runtime: AnyRuntime) -> _Blueprint:
    errors_of_new = list(runtime_errors(runtime, layout))
    errors = list(runtime_errors(runtime, layout, has_job_set=True)) if errors_of_new else []
    if errors:
        return _Blueprint(errors, errors_of_new)
    spec = runtime.spec
    assert spec is not None and spec.template is not None  # noqa: S101, PT018  checked above
    template = thaw(spec.template.spec)
    for index, job in enumerate(template["replicatedJobs"]):
        pod = job["template"]["spec"]["template"]["spec"]
        errors += rewrite_quantities(pod, f"{JOBS_PATH}[{index}].{_POD}")
    return _Blueprint(
        errors, [*errors_of_new, *errors], orjson.dumps(template), spec.template.metadata
    )


def _blueprint_size(blueprint: _Blueprint) -> int:
    """Return the bytes of the template; a runtime that cannot be used is not kept."""
    return len(blueprint.template) if blueprint.template else MOST_BLUEPRINT_BYTES + 1


# Caches return the same runtime object for thousands of TrainJobs until it changes. Large
# TrainingRuntimes are not cached completely: their objects are new each time.
MOST_BLUEPRINT_BYTES = 256 * 1024
MOST_LAYOUTS = 8


@lru_cache(maxsize=MOST_LAYOUTS)
def _blueprints(layout: NodeLayout) -> Memo[AnyRuntime, _Blueprint]:
    return Memo(
        partial(_blueprint, layout),
        most=100,
        size=_blueprint_size,
        most_size=MOST_BLUEPRINT_BYTES,
    )


def _set_trainer_container(info: Info, job: TrainJob) -> None:
    """Set the image and the arguments, and the command that plugins may replace.

    An empty list means the same as none: Go clients omit it when they write the object back.
    """
    trainer, container = job.spec.trainer or NO_TRAINER, info.trainer_container
    info.command = list(trainer.command) if trainer.command else None
    if container is None:
        return
    if trainer.image:
        container.set("image", trainer.image, "spec.trainer.image")
    if trainer.args:
        container.set("args", list(trainer.args), "spec.trainer.args")
