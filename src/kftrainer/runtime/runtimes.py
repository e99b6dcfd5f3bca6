"""Resolves a TrainJob's runtimeRef; entry point of planning and of TrainJob validation."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from kftrainer.api import names
from kftrainer.api.limits import LimitExceededError
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from kftrainer.api.trainjob import RuntimeRef, TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, forbidden, invalid
from kftrainer.kube.objects.model import InvalidDocumentError
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    PluginFailedError,
    RuntimeNotFoundError,
    UnsupportedRuntimeError,
)
from kftrainer.runtime.framework.extension_points import Observed, Watch
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.info import AnyRuntime, Info
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.trace import NO_TRACE, Trace
from kftrainer.runtime.validation.names import LONGEST_LABEL
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.trainjob import unusable, validate
from kftrainer.runtime.validation.updates import NOT_NEW, change_errors, change_warnings, news

MADE_UP = 5  # characters that the API server appends to generateName


class Runtime(Protocol):
    """Operations on TrainJobs that refer to one kind of runtime."""

    resource: ClassVar[Resource[Any]]

    def key(self, job: TrainJob) -> ObjectKey:
        """Return the key of the runtime that the TrainJob refers to."""
        ...

    def new_objects(
        self, job: TrainJob, existing: ClusterReader, trace: Trace = NO_TRACE
    ) -> Sequence[PlannedObject]:
        """Return the objects to apply, in this order; raises PlanningError."""
        ...

    def runtime_info(self, job: TrainJob, existing: ClusterReader, trace: Trace = NO_TRACE) -> Info:
        """Return the Info that phase 1 receives; raises PlanningError."""
        ...

    def train_job_status(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        """Return the observed status; None if there is nothing to observe yet."""
        ...

    def event_handler_registrars(self) -> Sequence[Watch]:
        """Return the kinds to watch for TrainJobs."""
        ...

    def validate_objects(
        self, old: TrainJob | None, new: TrainJob, existing: ClusterReader
    ) -> ValidationResult:
        """Return errors and warnings for the TrainJob; `old` is None on create."""
        ...


class _FromTemplate:
    """Implementation that both kinds of runtimes share."""

    resource: ClassVar[Resource[Any]]

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    @abstractmethod
    def key(self, job: TrainJob) -> ObjectKey:
        """Return the key of the runtime that the TrainJob refers to."""

    def new_objects(
        self, job: TrainJob, existing: ClusterReader, trace: Trace = NO_TRACE
    ) -> Sequence[PlannedObject]:
        """Return the objects to apply, in this order; raises PlanningError."""
        return self._framework.plan(self.runtime_info(job, existing, trace), job)

    def runtime_info(self, job: TrainJob, existing: ClusterReader, trace: Trace = NO_TRACE) -> Info:
        """Return the Info that phase 1 receives; raises PlanningError."""
        return self._framework.new_info(job, self._require(job, existing), existing, trace)

    def train_job_status(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        """Return the observed status; None if there is nothing to observe yet."""
        return self._framework.observe(job, existing)

    def event_handler_registrars(self) -> Sequence[Watch]:
        """Return the kinds to watch for TrainJobs."""
        return self._framework.watches()

    def validate_objects(
        self, old: TrainJob | None, new: TrainJob, existing: ClusterReader
    ) -> ValidationResult:
        """Return errors and warnings for the TrainJob; `old` is None on create."""
        if old is None:
            return self._findings(None, new, existing)
        findings = self._news(old, new, existing)
        findings.refuse(*change_errors(old, new, existing))
        findings.warn(*change_warnings(old, new, existing))
        return findings

    def _news(self, old: TrainJob, new: TrainJob, existing: ClusterReader) -> ValidationResult:
        """Return the result of an update; errors that existed before become warnings."""
        try:
            found = self._findings(old, new, existing)
        except PluginFailedError as failure:
            if not self._fails(old, existing):
                raise
            return ValidationResult(warnings=[NOT_NEW.format(failure)])
        if not found.errors:
            return found
        try:
            return news(found, self._findings(None, old, existing, hints=False))
        except PluginFailedError:
            return found

    def _fails(self, job: TrainJob, existing: ClusterReader) -> bool:
        """Whether a plugin fails for this TrainJob too; its message may differ each time."""
        try:
            self._findings(None, job, existing, hints=False)
        except PluginFailedError:
            return True
        return False

    def _findings(
        self, old: TrainJob | None, new: TrainJob, existing: ClusterReader, *, hints: bool = True
    ) -> ValidationResult:
        try:
            runtime = self._require(new, existing)
        except RuntimeNotFoundError:
            return ValidationResult([_missing(self.resource, new.spec.runtime_ref)])
        except InvalidRuntimeError as error:
            return ValidationResult([unusable(new, error)])
        return validate(self._framework, runtime, old, new, existing, hints=hints)

    def _require(self, job: TrainJob, existing: ClusterReader) -> AnyRuntime:
        try:
            runtime: AnyRuntime | None = existing.get(self.resource, self.key(job))
        except LimitExceededError as error:
            raise InvalidRuntimeError(
                f"{self.resource.kind} {job.spec.runtime_ref.name}",
                replace(error.error, rule=Rule.TOO_LARGE),
            ) from None
        except InvalidDocumentError as error:  # stored under another schema than ours
            subject = f"{self.resource.kind} {job.spec.runtime_ref.name}"
            errors = (
                forbidden(each.path, each.message, rule=Rule.SCHEMA) for each in error.problems
            )
            raise InvalidRuntimeError(subject, *errors) from None
        if runtime is None:
            raise RuntimeNotFoundError(not_found(job.spec.runtime_ref, job.metadata.namespace))
        return runtime


class NamespacedRuntimes(_FromTemplate):
    """TrainingRuntimes, which are in the namespace of the TrainJob."""

    resource: ClassVar[Resource[Any]] = TRAINING_RUNTIMES

    def key(self, job: TrainJob) -> ObjectKey:
        """Return the key of the TrainingRuntime that the TrainJob refers to."""
        return ObjectKey(job.metadata.namespace or "", job.spec.runtime_ref.name)


class ClusterRuntimes(_FromTemplate):
    """ClusterTrainingRuntimes, which all namespaces share."""

    resource: ClassVar[Resource[Any]] = CLUSTER_TRAINING_RUNTIMES

    def key(self, job: TrainJob) -> ObjectKey:
        """Return the key of the ClusterTrainingRuntime that the TrainJob refers to."""
        return ObjectKey("", job.spec.runtime_ref.name)


class Runtimes:
    """Kinds of runtimes, by the kind and API group of `runtimeRef`."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self._kinds: Mapping[str, Runtime] = {
            TRAINING_RUNTIMES.group_kind: NamespacedRuntimes(framework),
            CLUSTER_TRAINING_RUNTIMES.group_kind: ClusterRuntimes(framework),
        }

    def of(self, job: TrainJob) -> Runtime:
        """Return the kind that the TrainJob refers to; raises UnsupportedRuntimeError."""
        reference = job.spec.runtime_ref
        key = ".".join(filter(None, (reference.kind, reference.api_group)))
        found = self._kinds.get(key)
        if found is None:
            message = f"unsupported runtime: {key}"
            detail = f"{message}: must be {' or '.join(sorted(self._kinds))}"
            rule = Rule.RUNTIME_UNSUPPORTED
            error = invalid("spec.runtimeRef", reference.dump(), detail, rule=rule)
            raise UnsupportedRuntimeError(message, [error])
        return found

    def validate(
        self, old: TrainJob | None, new: TrainJob, existing: ClusterReader
    ) -> ValidationResult:
        """Validate a TrainJob at admission; `old` is None on create.

        Raises PluginFailedError, unless the plugin fails for the stored TrainJob too.
        """
        try:
            return self.of(new).validate_objects(old, _named(new), existing)
        except UnsupportedRuntimeError as error:
            found = ValidationResult([*error.errors])
        # An update cannot change the runtimeRef, so it is not rejected for that.
        return found if old is None else news(found, found)


def _missing(resource: Resource[Any], reference: RuntimeRef) -> FieldError:
    """Return the admission error for a runtime that does not exist."""
    noun = f"{resource.kind[0].lower()}{resource.kind[1:]}"
    detail = (
        f'{resource.group_kind} "{reference.name}" not found: '
        f"specified {noun} must be created before the TrainJob is created"
    )
    return invalid("spec.runtimeRef", reference.dump(), detail, rule=Rule.RUNTIME_MISSING)


def _named(job: TrainJob) -> TrainJob:
    """Return the TrainJob with a placeholder of the length that a generated name will have."""
    metadata = job.metadata
    if metadata.name or not metadata.generate_name:
        return job
    name = f"{metadata.generate_name[: LONGEST_LABEL - MADE_UP]}{'x' * MADE_UP}"
    return job.model_copy(update={"metadata": metadata.model_copy(update={"name": name})})


def not_found(reference: RuntimeRef, namespace: str | None) -> str:
    """Return the error message for a runtime that does not exist."""
    if reference.kind == names.TRAINING_RUNTIME:
        return f"TrainingRuntime {reference.name} is not found in namespace {namespace}"
    return f"ClusterTrainingRuntime {reference.name} is not found"
