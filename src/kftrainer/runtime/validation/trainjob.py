"""Validates a TrainJob against its runtime: with the plugins, and by planning it."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, invalid
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.runtime.cluster_reader import ClusterReader, DerivedReader
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    InvalidTrainJobError,
    PlanningError,
    PluginFailedError,
)
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.info import AnyRuntime, Info, is_controlled_by
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins.user_env import reserved_env_errors
from kftrainer.runtime.template import new_info
from kftrainer.runtime.validation.ineffective_overrides import ineffective_overrides
from kftrainer.runtime.validation.jobset_names import jobset_rejections
from kftrainer.runtime.validation.partial_trainjob import without_faults
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.template_metadata import template_metadata_errors
from kftrainer.runtime.validation.warnings import (
    deprecation,
    string_processes,
    unused_trainer_fields,
)

T = TypeVar("T")

MOST_OF_A_RUNTIME = 10  # errors of the runtime that are reported
MOST_REJECTIONS = 200  # rejections by JobSet that are reported


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
    if said := deprecation(runtime):
        findings.warn(f"Referenced {said}")
    findings.refuse(*template_metadata_errors(new))
    undecodable = string_processes(old, new, framework.admission)
    findings.refuse(*undecodable.errors)
    try:
        info = _info(new, runtime, existing, findings)
        findings.add(framework.validate(info, old, new))
        if not findings.errors:
            findings.add(_plan_findings(framework, info, new, hints=hints))
    except InvalidTrainJobError as error:
        findings.refuse(*error.errors)
    except InvalidRuntimeError as error:
        findings.refuse(unusable(new, error))
    except PluginFailedError:
        raise
    except PlanningError as error:  # caused by other objects in the cluster, which may change
        findings.warn(f"there is no plan for this TrainJob yet: {error}")
    if not findings.errors:
        findings.warn(*undecodable.warnings)
    return findings


def _info(
    job: TrainJob, runtime: AnyRuntime, existing: ClusterReader, findings: ValidationResult
) -> Info:
    """Return the Info for plugins, without invalid parts, which are added to `findings`."""
    try:
        return new_info(job, runtime, existing)
    except InvalidTrainJobError as error:
        sound = without_faults(job, error.errors)
        if sound is None:
            raise
        findings.refuse(*error.errors)
    return _info(sound, runtime, existing, findings)


def unusable(job: TrainJob, error: InvalidRuntimeError) -> FieldError:
    """Return the error for a TrainJob whose runtime is invalid, with the first errors of that."""
    told = [*map(str, error.errors[:MOST_OF_A_RUNTIME])]
    if (more := len(error.errors) - len(told)) > 0:
        told.append(f"and {more} more")
    detail = f"{error.subject}: {'; '.join(told)}"
    is_off = any(each.rule == Rule.PLUGIN_OFF for each in error.errors)  # due to configuration
    rule = Rule.PLUGIN_OFF if is_off else Rule.RUNTIME_UNUSABLE
    return invalid("spec.runtimeRef", job.spec.runtime_ref.dump(), detail, rule=rule)


def _plan_findings(
    framework: Framework, info: Info, job: TrainJob, *, hints: bool
) -> ValidationResult:
    """Return the errors and warnings that only a complete plan finds, as for a new TrainJob."""
    info.existing = WithoutOwnObjects(info.existing, job)
    planned = framework.plan(info, job)
    findings = ValidationResult()
    findings.refuse(*reserved_env_errors(info, job, info.reserved_env))
    if hints:
        findings.warn(*ineffective_overrides(info.runtime, job))
        findings.warn(*unused_trainer_fields(info, job))
    findings.refuse(*_jobset_errors(planned, info.runtime, job))
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

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Yield the objects of the kind that the TrainJob does not control."""
        found = super().iterate(resource, namespace)
        return (each for each in found if not self._is_own(each))

    def _is_own(self, found: object) -> bool:
        return isinstance(found, dict) and is_controlled_by(found, self._job)
