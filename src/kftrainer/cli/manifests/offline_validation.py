"""Validates documents as the API server and our admission would, without a cluster."""

from collections.abc import Iterator

from kftrainer.api import names
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    RESOURCE_CLAIM_TEMPLATES,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
    AnyResource,
)
from kftrainer.api.trainjob import TrainJob
from kftrainer.cli.manifests.checked_object import (
    CheckedObject,
    check_document,
    report_duplicates,
    require_names,
)
from kftrainer.cli.manifests.documents import Documents
from kftrainer.cli.manifests.identification import KNOWN
from kftrainer.cli.manifests.problems import DocumentProblem, unreadable
from kftrainer.kube.objects.field_errors import ErrorType, FieldError
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import PlanningError, PluginFailedError
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.runtimes import Runtimes, referenced_runtime
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.training_runtime import runtime_findings

RUNTIMES = (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)


class OfflineAdmission:
    """Validates all documents, each in the context of the others.

    With `to_plan`, each TrainJob must be complete: named, unique, and with its runtime in the
    documents.
    """

    def __init__(
        self, documents: Documents, framework: Framework, *, to_plan: bool = False
    ) -> None:
        known = (*KNOWN, *(watch.resource for watch in framework.watches()))
        by_head = {(each.api_version, each.kind): each for each in known}
        self.objects = [check_document(each, by_head) for each in documents.documents]
        self.runtimes = Runtimes(framework)
        self._read_errors = documents.errors
        self._to_plan = to_plan
        self._runtimes_by_key = {
            (checked.resource, checked.key): checked
            for checked in reversed([*self.of_kind(*RUNTIMES)])
        }
        self._kinds = {each.resource for each in self.objects}

    def validate(self) -> None:
        """Add to each object the errors and warnings of the API server and of admission."""
        report_duplicates(self.objects, as_error=self._to_plan)
        if self._to_plan:
            require_names(self.of_kind(TRAIN_JOBS))
        self._validate_runtimes()
        self._validate_train_jobs()

    def problems(self) -> list[DocumentProblem]:
        """Return all problems, in the order of the documents."""
        found = [*map(unreadable, self._read_errors)]
        for each in self.objects:
            found += sorted(each.problems, key=lambda problem: problem.line or 0)
        return found

    def existing(self) -> GivenObjects:
        """Return the valid objects as if they were in the cluster."""
        given = (
            checked.stored
            for checked in self.objects
            if checked.stored is not None and not checked.is_invalid
        )
        return GivenObjects(given, complete=[RESOURCE_CLAIM_TEMPLATES])

    def of_kind(self, *kinds: AnyResource) -> Iterator[CheckedObject]:
        """Yield the objects of these kinds."""
        return (checked for checked in self.objects if checked.resource in kinds)

    def runtime_of(self, job: TrainJob) -> CheckedObject | None:
        """Return the runtime that the TrainJob refers to, if it is in the documents."""
        found = referenced_runtime(job)
        return None if found is None else self._runtimes_by_key.get(found)

    def _validate_runtimes(self) -> None:
        for checked in self.of_kind(*RUNTIMES):
            if checked.model is not None:
                try:
                    checked.add_result(runtime_findings(self.runtimes.framework, checked.model))
                except PluginFailedError as error:
                    checked.add_errors(internal_error(error))

    def _validate_train_jobs(self) -> None:
        existing = self.existing()
        for checked in self.of_kind(TRAIN_JOBS):
            if checked.model is not None and self._has_runtime(checked):
                try:
                    checked.add_result(self.runtimes.validate(None, checked.model, existing))
                except PluginFailedError as error:
                    checked.add_errors(internal_error(error))

    def _has_runtime(self, checked: CheckedObject) -> bool:
        """Return whether the TrainJob can be validated; warn if its runtime is not available."""
        job: TrainJob = checked.model
        reference = referenced_runtime(job)
        if reference is None:
            return True  # validation reports the invalid reference
        runtime = self.runtime_of(job)
        if runtime is not None:
            return not runtime.is_invalid  # reported at the runtime
        kind, key = reference
        is_complete = not self._read_errors  # a missing object does not exist
        is_bundled = kind is CLUSTER_TRAINING_RUNTIMES and key.name in names.BUNDLED_RUNTIMES
        if is_complete and kind in self._kinds and not is_bundled:
            return True  # validation reports it: there are others of this kind, but not this one
        missing = f"{kind.kind} {key} is not among the given files"
        if self._to_plan and is_complete:
            checked.add_errors(FieldError("spec.runtimeRef.name", ErrorType.NOT_FOUND, missing))
        elif not self._to_plan:
            unchecked = "so checks that need the runtime were skipped"
            checked.add_warnings(f"spec.runtimeRef.name: {missing}, {unchecked}")
        return False


def internal_error(error: PlanningError) -> FieldError:
    """Return the error for a plugin that fails or builds an invalid object."""
    return FieldError("", ErrorType.INTERNAL, str(error), rule=Rule.PLUGIN_FAILED)
