"""What is wrong with a TrainJob on its runtime: what plugins find, and whether there is a plan."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, invalid
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    InvalidTrainJobError,
    PlanningError,
    PluginFailedError,
)
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.info import AnyRuntime, Info, is_controlled_by
from kftrainer.runtime.jobset_rules import Refusal, refusals
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins.user_env import reserved_env_errors
from kftrainer.runtime.template import new_info
from kftrainer.runtime.validation.ineffective_overrides import idle_overrides
from kftrainer.runtime.validation.partial_trainjob import without_faults
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.template_metadata import template_metadata_errors
from kftrainer.runtime.validation.warnings import (
    deprecation,
    string_processes,
    unused_trainer_fields,
)

T = TypeVar("T")

MOST_OF_A_RUNTIME = 10  # errors that are told
MOST_REFUSALS = 200  # of JobSet that are reported


def validate(
    framework: Framework,
    runtime: AnyRuntime,
    old: TrainJob | None,
    new: TrainJob,
    existing: ClusterReader,
    *,
    hints: bool = True,
) -> ValidationResult:
    """All that is wrong with the TrainJob; raises PluginFailedError.

    Without `hints`, warnings that take long to find are left out.
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
    except PlanningError as error:  # of something else in the cluster, which may change
        findings.warn(f"there is no plan for this TrainJob yet: {error}")
    if not findings.errors:
        findings.warn(*undecodable.warnings)
    return findings


def _info(
    job: TrainJob, runtime: AnyRuntime, existing: ClusterReader, findings: ValidationResult
) -> Info:
    """What plugins look at: without what is wrong by itself, so that they tell the rest."""
    try:
        return new_info(job, runtime, existing)
    except InvalidTrainJobError as error:
        sound = without_faults(job, error.errors)
        if sound is None:
            raise
        findings.refuse(*error.errors)
    return _info(sound, runtime, existing, findings)


def unusable(job: TrainJob, error: InvalidRuntimeError) -> FieldError:
    """What is wrong with the runtime, or the most of it, told to who refers to it."""
    told = [*map(str, error.errors[:MOST_OF_A_RUNTIME])]
    if (more := len(error.errors) - len(told)) > 0:
        told.append(f"and {more} more")
    detail = f"{error.subject}: {'; '.join(told)}"
    is_off = any(each.rule == Rule.PLUGIN_OFF for each in error.errors)  # the manager's fault
    rule = Rule.PLUGIN_OFF if is_off else Rule.RUNTIME_UNUSABLE
    return invalid("spec.runtimeRef", job.spec.runtime_ref.dump(), detail, rule=rule)


def _plan_findings(
    framework: Framework, info: Info, job: TrainJob, *, hints: bool
) -> ValidationResult:
    """What comes out only when everything is planned, as if for a new TrainJob."""
    info.existing = Unmade(info.existing, job)
    planned = framework.plan(info, job)
    findings = ValidationResult()
    findings.refuse(*reserved_env_errors(info, job, info.reserved_env))
    if hints:
        findings.warn(*idle_overrides(info.runtime, job))
        findings.warn(*unused_trainer_fields(info, job))
    findings.add(_jobset_findings(planned, info.runtime, job))
    return findings


def _jobset_findings(
    planned: Sequence[PlannedObject], runtime: AnyRuntime, job: TrainJob
) -> ValidationResult:
    """Return what JobSet will reject in the JobSet of the plan, and where it comes from.

    What a feature gate of JobSet allows is a warning: whether it is enabled is not known here.
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
    """What JobSet refuses in every JobSet of the runtime."""
    template = runtime.spec.template if runtime.spec else None
    return frozenset(refusals((template and template.spec) or {}, name=None))


class Unmade:
    """What exists, but for what has been made for the TrainJob: it is planned as at the start."""

    def __init__(self, existing: ClusterReader, job: TrainJob) -> None:
        self._existing = existing
        self._job = job

    def knows(self, resource: Resource[Any]) -> bool:
        """As what exists says."""
        return self._existing.knows(resource)

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """The object of this key, unless it is the TrainJob's."""
        found = self._existing.get(resource, key)
        return None if self._is_made(found) else found

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """The objects of the kind, without the TrainJob's."""
        return [*self.iterate(resource, namespace)]

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """The same, each decoded when it is asked for."""
        found = self._existing.iterate(resource, namespace)
        return (each for each in found if not self._is_made(each))

    def _is_made(self, found: object) -> bool:
        return isinstance(found, dict) and is_controlled_by(found, self._job)
