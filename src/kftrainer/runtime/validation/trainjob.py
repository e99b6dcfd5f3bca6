"""Validates a TrainJob against its runtime: with the plugins, and by planning it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import (
    ErrorType,
    FieldError,
    ValidationResult,
    forbidden,
    invalid,
)
from kftrainer.kube.objects.resource import ObjectKey, Resource, is_controlled_by
from kftrainer.kube.schema.metadata import metadata_errors
from kftrainer.runtime.cluster_reader import ClusterReader, DerivedReader
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    InvalidTrainJobError,
    PlanningError,
    PluginFailedError,
)
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.info import NO_TRAINER, AnyRuntime, Info
from kftrainer.runtime.patches.pod_patches import (
    LEGACY,
    MODERN,
    PATCHES_PATH,
    jobset_metadata_patches,
    pod_patches,
)
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins.user_env import reserved_env_errors
from kftrainer.runtime.resources.claims import CLAIMS_IN_RESOURCES, CLAIMS_PATH
from kftrainer.runtime.resources.quantities import HALVES
from kftrainer.runtime.template import RESOURCES_PATH
from kftrainer.runtime.validation.ineffective_overrides import ineffective_overrides
from kftrainer.runtime.validation.jobset_names import jobset_rejections
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.runtime_warnings import deprecation
from kftrainer.runtime.validation.trainjob_warnings import (
    fields_lost_in_queue,
    string_processes,
    unused_trainer_fields,
)

T = TypeVar("T")

MOST_RUNTIME_ERRORS = 10  # errors of the runtime that are reported
MOST_REJECTIONS = 200  # rejections by JobSet that are reported
NOT_PLANNED_YET = "the TrainJob cannot be planned yet: {}"
MOST_METADATA_ERRORS = 100
OVERRIDES = (f"spec.{MODERN}", f"spec.{LEGACY}")
LABELS, ANNOTATIONS = "labels", "annotations"

Texts = Mapping[str, str] | None


def validate(
    framework: Framework,
    runtime: AnyRuntime,
    old: TrainJob | None,
    new: TrainJob,
    existing: ClusterReader,
    *,
    hints: bool = True,
) -> ValidationResult:
    """Return the errors and warnings of the TrainJob; raises PluginFailedError.

    Without `hints`, expensive warnings are left out.
    """
    findings = ValidationResult()
    if warning := deprecation(runtime):
        findings.add_warnings(f"Referenced {warning}")
    findings.add_errors(*islice(_metadata_errors(new), MOST_METADATA_ERRORS))
    undecodable = string_processes(old, new, framework.admission)
    findings.add_errors(*undecodable.errors)
    try:
        info = _info(framework, new, runtime, existing, findings)
        findings.add(framework.validate(info, old, new))
        if not findings.errors:
            findings.add(_plan_findings(framework, info, new, hints=hints))
    except InvalidTrainJobError as error:
        findings.add_errors(*error.errors)
    except InvalidRuntimeError as error:
        findings.add_errors(unusable(new, error))
    except PluginFailedError:
        raise
    except PlanningError as error:  # caused by other objects in the cluster, which may change
        findings.add_warnings(NOT_PLANNED_YET.format(error))
    if not findings.errors:
        findings.add_warnings(*undecodable.warnings)
        findings.add_warnings(*fields_lost_in_queue(new))
    return findings


def _info(
    framework: Framework,
    job: TrainJob,
    runtime: AnyRuntime,
    existing: ClusterReader,
    findings: ValidationResult,
) -> Info:
    """Return the Info for plugins, without invalid parts, which are added to `findings`."""
    try:
        return framework.new_info(job, runtime, existing)
    except InvalidTrainJobError as error:
        rest = _without_invalid_parts(job, error.errors)
        if rest is None:
            raise
        findings.add_errors(*error.errors)
    return _info(framework, rest, runtime, existing, findings)


def _without_invalid_parts(job: TrainJob, errors: Sequence[FieldError]) -> TrainJob | None:
    """Return the TrainJob without the patches, resource quantities or claims that have errors.

    Returns None if the errors concern none of them.
    """
    paths = {error.path for error in errors}
    changes: dict[str, Any] = {}
    if any(path.startswith(OVERRIDES) for path in paths) and job.spec.overrides():
        changes |= {"pod_template_overrides": None, "pod_spec_overrides": None}
    if any(path.startswith(PATCHES_PATH) for path in paths) and job.spec.runtime_patches:
        changes["runtime_patches"] = None
    trainer = job.spec.trainer or NO_TRAINER
    resources = trainer.resources_per_node or {}
    valid = _without_paths(resources, paths)
    fields: dict[str, Any] = {} if valid == resources else {"resources_per_node": valid}
    if any(path.startswith((CLAIMS_PATH, CLAIMS_IN_RESOURCES)) for path in paths):
        fields["resource_claims_per_node"] = None
    if fields:
        changes["trainer"] = trainer.model_copy(update=fields)
    if not changes:
        return None
    return job.model_copy(update={"spec": job.spec.model_copy(update=changes)})


def _without_paths(resources: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """Return the resources without the quantities at these paths."""
    return {
        half: {
            name: amount
            for name, amount in amounts.items()
            if f"{RESOURCES_PATH}.{half}[{name}]" not in paths
        }
        if half in HALVES and isinstance(amounts, Mapping)
        else amounts
        for half, amounts in resources.items()
    }


def _metadata_errors(job: TrainJob) -> Iterator[FieldError]:
    """Yield errors for keys and values that the API server would reject in the JobSet or pods."""
    yield from _metadata_errors_at("spec", job.spec.labels, job.spec.annotations)
    for of_job_set in jobset_metadata_patches(job):
        yield from _metadata_errors_at(of_job_set.path, of_job_set.labels, of_job_set.annotations)
    for patch in pod_patches(job):
        for where, metadata in (
            (patch.job_metadata_path, patch.job_metadata),
            (patch.metadata_path, patch.metadata),
        ):
            yield from _metadata_errors_at(where, metadata.get(LABELS), metadata.get(ANNOTATIONS))


def _metadata_errors_at(path: str, labels: Texts, annotations: Texts) -> Iterator[FieldError]:
    if not (labels or annotations):
        return
    for key in annotations or ():
        if key in names.BOOKKEEPING:
            where, rule = f"{path}.{ANNOTATIONS}[{key}]", Rule.METADATA_FOR_OBJECTS
            yield forbidden(where, "is set by the controller", rule=rule)
    metadata = {"name": "any", LABELS: labels, ANNOTATIONS: annotations}
    for error in metadata_errors(metadata, namespaced=True):
        where, rule = f"{path}{error.path.removeprefix('metadata')}", Rule.METADATA_FOR_OBJECTS
        # The API server reports an invalid key as the value of its map.
        is_key = error.path.endswith((LABELS, ANNOTATIONS)) and error.type is ErrorType.INVALID
        where = f"{where}[{error.value}]" if is_key else where
        yield replace(error, path=where, rule=rule)


def unusable(job: TrainJob, error: InvalidRuntimeError) -> FieldError:
    """Return the error for a TrainJob whose runtime is invalid, with the runtime's first errors."""
    messages = [*map(str, error.errors[:MOST_RUNTIME_ERRORS])]
    if (more := len(error.errors) - len(messages)) > 0:
        messages.append(f"and {more} more")
    detail = f"{error.subject}: {'; '.join(messages)}"
    is_off = any(each.rule == Rule.PLUGIN_OFF for each in error.errors)  # due to configuration
    rule = Rule.PLUGIN_OFF if is_off else Rule.RUNTIME_UNUSABLE
    return invalid("spec.runtimeRef", job.spec.runtime_ref.dump(), detail, rule=rule)


def _plan_findings(
    framework: Framework, info: Info, job: TrainJob, *, hints: bool
) -> ValidationResult:
    """Return the errors and warnings that only a complete plan finds, as for a new TrainJob."""
    info.existing = WithoutOwnObjects(info.existing, job)
    findings = ValidationResult()
    if (missing := info.claimed.error) is not None:  # the rest of the plan is validated
        findings.add_warnings(NOT_PLANNED_YET.format(missing))
        info.claimed = replace(info.claimed, error=None)
    planned = framework.plan(info, job)
    findings.add_errors(*reserved_env_errors(info, job, info.reserved_env))
    if hints:
        findings.add_warnings(*ineffective_overrides(info.runtime, job))
        findings.add_warnings(*unused_trainer_fields(info, job))
    findings.add_errors(*_jobset_errors(planned, info.runtime, job))
    return findings


def _jobset_errors(
    planned: Sequence[PlannedObject], runtime: AnyRuntime, job: TrainJob
) -> Iterator[FieldError]:
    """Yield errors for names in the planned JobSet that JobSet would reject."""
    specs = [each.manifest["spec"] for each in planned if each.resource is JOB_SETS]
    found = (each for spec in specs for each in jobset_rejections(spec))
    reference, rule = job.spec.runtime_ref.dump(), Rule.JOBSET_REFUSES
    for rejection in islice(found, MOST_REJECTIONS):
        source = f"spec.template.{rejection.path} of {runtime.kind} {runtime.metadata.name}"
        detail = f"JobSet would reject the JobSet: {rejection}; the field is {source}"
        yield invalid("spec.runtimeRef", reference, detail, rule=rule)


class WithoutOwnObjects(DerivedReader):
    """ClusterReader without the objects of a TrainJob, to plan it as if it were new."""

    def __init__(self, reader: ClusterReader, job: TrainJob) -> None:
        super().__init__(reader)
        self._job = job

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object with this key, unless the TrainJob controls it."""
        found = super().get(resource, key)
        return None if self._is_own(found) else found

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """Return the objects of the kind that the TrainJob does not control."""
        return [*self.iterate(resource, namespace)]

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Yield the objects that `list` returns, decoded one by one."""
        found = super().iterate(resource, namespace)
        return (each for each in found if not self._is_own(each))

    def _is_own(self, found: object) -> bool:
        return isinstance(found, dict) and is_controlled_by(
            found["metadata"], self._job.metadata.uid
        )
