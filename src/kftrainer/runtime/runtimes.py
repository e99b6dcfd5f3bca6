"""Resolves a TrainJob's runtimeRef; entry point of planning and of TrainJob validation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kftrainer.api import names
from kftrainer.api.limits import LimitExceededError
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from kftrainer.api.trainjob import RuntimeRef, TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, forbidden, invalid
from kftrainer.kube.objects.model import InvalidDocumentError
from kftrainer.kube.objects.nested import mapping_or_empty
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.kube.schema.metadata import LONGEST_NAME
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    PluginFailedError,
    RevisionLostError,
    RuntimeNotFoundError,
    UnsupportedRuntimeError,
)
from kftrainer.runtime.framework.extension_points import Observed
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.podset import NodeLayout
from kftrainer.runtime.revisions import Source, planning_source, recorded_revision
from kftrainer.runtime.trace import NO_TRACE, Trace
from kftrainer.runtime.validation.names import LONGEST_LABEL
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.trainjob import unusable, validate
from kftrainer.runtime.validation.updates import (
    STORED_ERROR,
    change_errors,
    change_warnings,
    with_stored_errors_as_warnings,
)

GENERATED_SUFFIX = 5  # characters that the API server appends to generateName

RuntimeKey = tuple[Resource[Any], ObjectKey]  # a runtime: its kind, and its namespace and name
_KINDS: Mapping[tuple[str, str], Resource[Any]] = {
    (each.kind, each.group): each for each in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
}


def referenced_runtime(job: TrainJob) -> RuntimeKey | None:
    """Return the runtime that the TrainJob refers to; None if its kind is not supported."""
    reference = job.spec.runtime_ref
    return _resolve(reference.kind, reference.api_group, reference.name, job.metadata.namespace)


def referenced_runtime_in(manifest: Manifest) -> RuntimeKey | None:
    """Return the runtime that a TrainJob refers to whose manifest may violate our schema.

    None also if the reference cannot be the name of an object.
    """
    reference = mapping_or_empty(mapping_or_empty(manifest.get("spec")).get("runtimeRef"))
    name = reference.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        return None
    kind = reference.get("kind", names.CLUSTER_TRAINING_RUNTIME)
    group = reference.get("apiGroup", names.GROUP)
    if not isinstance(kind, str) or not isinstance(group, str):
        return None
    return _resolve(kind, group, name, manifest["metadata"].get("namespace"))


def _resolve(kind: str, group: str, name: str, namespace: str | None) -> RuntimeKey | None:
    resource = _KINDS.get((kind, group))
    if resource is None:
        return None
    return resource, ObjectKey(namespace or "" if resource.namespaced else "", name)


class Runtime:
    """Operations on TrainJobs that refer to one kind of runtime."""

    def __init__(self, resource: Resource[Any], framework: Framework) -> None:
        self.resource = resource
        self._framework = framework

    def key(self, job: TrainJob) -> ObjectKey:
        """Return the key of the runtime that the TrainJob refers to."""
        namespace = job.metadata.namespace or "" if self.resource.namespaced else ""
        return ObjectKey(namespace, job.spec.runtime_ref.name)

    def new_objects(
        self,
        job: TrainJob,
        existing: ClusterReader,
        trace: Trace = NO_TRACE,
        source: Source | None = None,
    ) -> Sequence[PlannedObject]:
        """Return the objects to apply, in this order; raises PlanningError.

        `source` is the result of that method if the caller has it already.
        """
        runtime = (source or self.source(job, existing)).runtime
        return self._framework.plan(self._framework.new_info(job, runtime, existing, trace), job)

    def layout(self, job: TrainJob, existing: ClusterReader) -> NodeLayout:
        """Return which jobs train; raises PlanningError."""
        return self._framework.layout(self.source(job, existing).runtime)

    def train_job_status(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        """Return the observed status; None if there is nothing to observe yet."""
        return self._framework.observe(job, existing)

    def validate_objects(
        self, old: TrainJob | None, new: TrainJob, existing: ClusterReader
    ) -> ValidationResult:
        """Return errors and warnings for the TrainJob; `old` is None on create."""
        if old is None:
            return self._validate(None, new, existing)
        result = self._validate_update(old, new, existing)
        result.add_errors(*change_errors(old, new, existing))
        result.add_warnings(*change_warnings(old, new, existing))
        return result

    def _validate_update(
        self, old: TrainJob, new: TrainJob, existing: ClusterReader
    ) -> ValidationResult:
        """Validate the new TrainJob; errors that the old one has too become warnings."""
        try:
            result = self._validate(old, new, existing)
        except PluginFailedError as failure:
            if not self._plugin_fails(old, existing):
                raise
            return ValidationResult(warnings=[STORED_ERROR.format(failure)])
        if not result.errors:
            return result
        try:
            before = self._validate(None, old, existing, hints=False)
        except PluginFailedError:
            return result
        return with_stored_errors_as_warnings(result, before)

    def _plugin_fails(self, job: TrainJob, existing: ClusterReader) -> bool:
        """Whether a plugin fails for this TrainJob too; its message may differ each time."""
        try:
            self._validate(None, job, existing, hints=False)
        except PluginFailedError:
            return True
        return False

    def _validate(
        self, old: TrainJob | None, new: TrainJob, existing: ClusterReader, *, hints: bool = True
    ) -> ValidationResult:
        try:
            runtime = self.source(new, existing).runtime
        except RuntimeNotFoundError:
            return ValidationResult([_missing(self.resource, new.spec.runtime_ref)])
        except RevisionLostError as error:
            reference = new.spec.runtime_ref.dump()
            rule = Rule.RUNTIME_MISSING
            return ValidationResult([invalid("spec.runtimeRef", reference, str(error), rule=rule)])
        except InvalidRuntimeError as error:
            return ValidationResult([unusable(new, error)])
        return validate(self._framework, runtime, old, new, existing, hints=hints)

    def source(self, job: TrainJob, existing: ClusterReader) -> Source:
        """Return the runtime or the revision that the TrainJob is planned from.

        Raises RuntimeNotFoundError, InvalidRuntimeError or RevisionLostError.
        """
        if recorded_revision(job) is None:
            return Source(self._live(job, existing))
        try:
            return planning_source(job, self.resource, lambda: self._live(job, existing), existing)
        except InvalidDocumentError as error:
            raise self._invalid(job, error) from None

    def _live(self, job: TrainJob, existing: ClusterReader) -> AnyRuntime:
        """Return the runtime; raises RuntimeNotFoundError or InvalidRuntimeError."""
        try:
            runtime: AnyRuntime | None = existing.get(self.resource, self.key(job))
        except InvalidDocumentError as error:
            raise self._invalid(job, error) from None
        if runtime is None:
            raise RuntimeNotFoundError(not_found(job.spec.runtime_ref, job.metadata.namespace))
        return runtime

    def _invalid(self, job: TrainJob, error: InvalidDocumentError) -> InvalidRuntimeError:
        """Return the error for a runtime that cannot be decoded."""
        subject = f"{self.resource.kind} {job.spec.runtime_ref.name}"
        if isinstance(error, LimitExceededError):
            return InvalidRuntimeError(subject, replace(error.error, rule=Rule.TOO_LARGE))
        # It was stored under another schema than ours.
        errors = (forbidden(each.path, each.message, rule=Rule.SCHEMA) for each in error.problems)
        return InvalidRuntimeError(subject, *errors)


class Runtimes:
    """Both kinds of runtimes, as `runtimeRef` of a TrainJob selects them."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self._kinds = {each: Runtime(each, framework) for each in _KINDS.values()}

    def of(self, job: TrainJob) -> Runtime:
        """Return the kind that the TrainJob refers to; raises UnsupportedRuntimeError."""
        found = referenced_runtime(job)
        if found is not None:
            return self._kinds[found[0]]
        reference = job.spec.runtime_ref
        kind = ".".join(filter(None, (reference.kind, reference.api_group)))
        message = f"unsupported runtime: {kind}"
        supported = " or ".join(sorted(each.group_kind for each in self._kinds))
        detail = f"{message}: must be {supported}"
        rule = Rule.RUNTIME_UNSUPPORTED
        error = invalid("spec.runtimeRef", reference.dump(), detail, rule=rule)
        raise UnsupportedRuntimeError(message, [error])

    def validate(
        self, old: TrainJob | None, new: TrainJob, existing: ClusterReader
    ) -> ValidationResult:
        """Validate a TrainJob at admission; `old` is None on create.

        Raises PluginFailedError, unless the plugin fails for the stored TrainJob too.
        """
        try:
            return self.of(new).validate_objects(old, _named(new), existing)
        except UnsupportedRuntimeError as error:
            result = ValidationResult([*error.errors])
        # An update cannot change the runtimeRef, so it is not rejected for that.
        return result if old is None else with_stored_errors_as_warnings(result, result)


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
    name = f"{metadata.generate_name[: LONGEST_LABEL - GENERATED_SUFFIX]}{'x' * GENERATED_SUFFIX}"
    return job.model_copy(update={"metadata": metadata.model_copy(update={"name": name})})


def not_found(reference: RuntimeRef, namespace: str | None) -> str:
    """Return the error message for a runtime that does not exist."""
    if reference.kind == names.TRAINING_RUNTIME:
        return f"TrainingRuntime {reference.name} is not found in namespace {namespace}"
    return f"ClusterTrainingRuntime {reference.name} is not found"
