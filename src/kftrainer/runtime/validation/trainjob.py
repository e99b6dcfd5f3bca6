"""Validates a TrainJob against its runtime: with the plugins, and by planning it."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, invalid
from kftrainer.kube.objects.resource import ObjectKey, Resource, is_controlled_by
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    InvalidTrainJobError,
    PlanningError,
    PluginFailedError,
)
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.info import AnyRuntime, Info
from kftrainer.runtime.jobset_rules import Refusal, refusals
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins.user_env import reserved_env_errors
from kftrainer.runtime.template import new_info
from kftrainer.runtime.validation.ineffective_overrides import ineffective_overrides
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
MOST_REFUSALS = 200  # rejections by JobSet that are reported


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
    info.existing = Unmade(info.existing, job)
    planned = framework.plan(info, job)
    findings = ValidationResult()
    findings.refuse(*reserved_env_errors(info, job, info.reserved_env))
    if hints:
        findings.warn(*ineffective_overrides(info.runtime, job))
        findings.warn(*unused_trainer_fields(info, job))
    findings.add(_jobset_findings(planned, info.runtime, job))
    return findings


def _jobset_findings(
    planned: Sequence[PlannedObject], runtime: AnyRuntime, job: TrainJob
) -> ValidationResult:
    """Return what JobSet would reject in the planned JobSet, with the field that causes it.

    A field that needs a feature gate of JobSet causes a warning: the gate's state is not known.
    """
    findings = ValidationResult()
    made = [each.manifest["spec"] for each in planned if each.resource is JOB_SETS]
    found = (each for spec in made for each in refusals(spec, name=job.metadata.name))
    refused = [*islice(found, MOST_REFUSALS)]
    always = _always_refused(runtime) if refused else frozenset()
    errors, warnings = list[FieldError](), list[str]()
    reference = job.spec.runtime_ref.dump()
    for refusal in refused:
        source = f"spec.template.{refusal.path} of {runtime.kind} {runtime.metadata.name}"
        mixed = "" if refusal in always else ", with what this TrainJob says"
        detail = f"JobSet will refuse what comes of this: {refusal}; it comes from {source}{mixed}"
        if refusal.gated:
            warnings.append(detail)
        else:
            error = invalid("spec.runtimeRef", reference, detail, rule=Rule.JOBSET_REFUSES)
            errors.append(error)
    findings.refuse(*errors)
    findings.warn(*warnings)
    return findings


def _always_refused(runtime: AnyRuntime) -> frozenset[Refusal]:
    """Return what JobSet rejects in every JobSet of the runtime."""
    template = runtime.spec.template if runtime.spec else None
    return frozenset(refusals((template and template.spec) or {}, name=None))


class Unmade:
    """ClusterReader without the objects of a TrainJob, to plan it as if it were new."""

    def __init__(self, existing: ClusterReader, job: TrainJob) -> None:
        self._existing = existing
        self._job = job

    def knows(self, resource: Resource[Any]) -> bool:
        """Whether an object of this kind that is not found can be assumed not to exist."""
        return self._existing.knows(resource)

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object with this key, unless the TrainJob controls it."""
        found = self._existing.get(resource, key)
        return None if self._is_made(found) else found

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """Return the objects of the kind, without those of the TrainJob."""
        return [*self.iterate(resource, namespace)]

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Yield the objects that `list` returns, decoded one by one."""
        found = self._existing.iterate(resource, namespace)
        return (each for each in found if not self._is_made(each))

    def _is_made(self, found: object) -> bool:
        return isinstance(found, dict) and is_controlled_by(
            found["metadata"], self._job.metadata.uid
        )
