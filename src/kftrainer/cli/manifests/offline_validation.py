"""Validates documents as the API server and our admission would, without a cluster."""

from collections.abc import Iterator
from dataclasses import dataclass

from kftrainer.api import names
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
    AnyResource,
)
from kftrainer.api.trainjob import TrainJob
from kftrainer.cli.manifests.cases import Case, case_of, mark_twins, require_names, tally_of
from kftrainer.cli.manifests.documents import Reading
from kftrainer.cli.manifests.identification import KNOWN
from kftrainer.cli.manifests.problems import UNREADABLE, DocumentProblem, Tally, unreadable
from kftrainer.kube.objects.field_errors import ErrorType, FieldError
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.errors import PlanningError, PluginFailedError
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.runtimes import Runtimes, referenced_runtime
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.runtime import runtime_findings

RUNTIMES = (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
NOTHING_TO_CHECK = "there is no TrainJob and no runtime to check"


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """All problems in the order of the documents, and the numbers of objects."""

    remarks: list[DocumentProblem]
    tally: Tally


def judge(reading: Reading, framework: Framework) -> OfflineResult:
    """Validate every TrainJob and runtime; other kinds are used as context."""
    court = OfflineAdmission(reading, framework)
    court.judge()
    tally = tally_of(court.cases)
    remarks = court.remarks()
    if court.cases and not tally.checked and not reading.unread:
        file = reading.documents[0].place.file
        remarks.append(DocumentProblem(file, None, "", UNREADABLE, NOTHING_TO_CHECK))
    return OfflineResult(remarks, tally)


class OfflineAdmission:
    """Validates all documents, each in the context of the others.

    `validate` and `render` share it, so both report the same problems with the same messages. With
    `to_plan`, each TrainJob must be complete: named, unique, and with its runtime in the documents.
    """

    def __init__(self, reading: Reading, framework: Framework, *, to_plan: bool = False) -> None:
        known = (*KNOWN, *(watch.resource for watch in framework.watches()))
        by_head = {(each.api_version, each.kind): each for each in known}
        self.cases = [case_of(document, by_head) for document in reading.documents]
        self.runtimes = Runtimes(framework)
        self._reading = reading
        self._to_plan = to_plan
        self._runtimes_by_key = {
            (case.resource, case.key): case for case in reversed([*self.of_kind(*RUNTIMES)])
        }
        self._kinds_here = {case.resource for case in self.cases}

    def judge(self) -> None:
        """Add to each case what the API server and admission would report."""
        mark_twins(self.cases, as_error=self._to_plan)
        if self._to_plan:
            require_names(self.of_kind(TRAIN_JOBS))
        self._judge_runtimes()
        self._judge_train_jobs()

    def remarks(self) -> list[DocumentProblem]:
        """Return all problems, in the order of the documents."""
        found = [*map(unreadable, self._reading.unread)]
        for case in self.cases:
            found += sorted(case.remarks, key=lambda remark: remark.line or 0)
        return found

    def existing(self) -> GivenObjects:
        """Return the valid objects as if they were in the cluster."""
        return GivenObjects(
            case.stored for case in self.cases if case.stored is not None and not case.is_refused
        )

    def of_kind(self, *kinds: AnyResource) -> Iterator[Case]:
        """Yield the objects of these kinds."""
        return (case for case in self.cases if case.resource in kinds)

    def runtime_of(self, job: TrainJob) -> Case | None:
        """Return the runtime that the TrainJob refers to, if it is in the documents."""
        found = referenced_runtime(job)
        return None if found is None else self._runtimes_by_key.get(found)

    def _judge_runtimes(self) -> None:
        for case in self.of_kind(*RUNTIMES):
            if case.model is not None:
                try:
                    case.take(runtime_findings(self.runtimes.framework, case.model))
                except PluginFailedError as error:
                    case.refuse(internal_error(error))

    def _judge_train_jobs(self) -> None:
        existing = self.existing()
        for case in self.of_kind(TRAIN_JOBS):
            if case.model is not None and self._has_runtime(case):
                try:
                    case.take(self.runtimes.validate(None, case.model, existing))
                except PluginFailedError as error:
                    case.refuse(internal_error(error))

    def _has_runtime(self, case: Case) -> bool:
        """Return whether the TrainJob can be validated; warn if its runtime is not available."""
        job: TrainJob = case.model
        reference = referenced_runtime(job)
        if reference is None:
            return True  # validation reports the invalid reference
        runtime = self.runtime_of(job)
        if runtime is not None:
            return not runtime.is_refused  # reported at the runtime
        kind, key = reference
        is_complete = not self._reading.unread  # a missing object does not exist
        is_shipped = kind is CLUSTER_TRAINING_RUNTIMES and key.name in names.SHIPPED_RUNTIMES
        if is_complete and kind in self._kinds_here and not is_shipped:
            return True  # validation reports it: there are others of this kind, but not this one
        missing = f"{kind.kind} {key} is in none of the files"
        if self._to_plan and is_complete:
            case.refuse(FieldError("spec.runtimeRef.name", ErrorType.NOT_FOUND, missing))
        elif not self._to_plan:
            unchecked = "so whether the TrainJob fits it was not checked"
            case.warn(f"spec.runtimeRef.name: {missing}, {unchecked}")
        return False


def internal_error(error: PlanningError) -> FieldError:
    """Return the error for a plugin that fails or builds an invalid object."""
    return FieldError("", ErrorType.INTERNAL, str(error), rule=Rule.PLUGIN_FAILED)
