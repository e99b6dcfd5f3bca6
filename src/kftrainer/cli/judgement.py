"""What the API server and our admission would say about documents, without either of them."""

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
from kftrainer.cli.cases import Case, case_of, warn_of_twins
from kftrainer.cli.documents import Reading
from kftrainer.cli.given import KNOWN
from kftrainer.cli.remarks import Remark, unreadable
from kftrainer.kube.field import Fault, FieldError
from kftrainer.kube.resource import ObjectKey
from kftrainer.runtime.errors import PluginFailedError
from kftrainer.runtime.existing import Given
from kftrainer.runtime.framework import Framework
from kftrainer.runtime.rule_names import Rule
from kftrainer.runtime.runtime_rules import runtime_findings
from kftrainer.runtime.runtimes import Runtimes

RUNTIMES = (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)


@dataclass(frozen=True, slots=True)
class Judgement:
    """All remarks, in the order of the documents, and how many objects were looked at."""

    remarks: list[Remark]
    objects: int


def judge(reading: Reading, framework: Framework) -> Judgement:
    """Look at every document: our own kinds are judged, others are what there is besides."""
    known = (*KNOWN, *(watch.resource for watch in framework.watches()))
    by_head = {(each.api_version, each.kind): each for each in known}
    cases = [case_of(document, by_head) for document in reading.documents]
    warn_of_twins(cases)
    court = _Court(cases, Runtimes(framework), is_complete=not reading.unread)
    court.judge_runtimes()
    court.judge_train_jobs()
    remarks = [*map(unreadable, reading.unread)]
    for case in cases:
        remarks += sorted(case.remarks, key=lambda remark: remark.line or 0)
    if not remarks and cases and not any(case.is_ours for case in cases):
        file = reading.documents[0].place.file
        nothing = "there is no TrainJob and no runtime to look at"
        remarks.append(Remark(file, None, "", None, nothing, "warning"))
    return Judgement(remarks, len(cases))


class _Court:
    """All objects, each judged with what the others say there is."""

    def __init__(self, cases: list[Case], runtimes: Runtimes, *, is_complete: bool) -> None:
        self._cases = cases
        self._runtimes = runtimes
        self._is_complete = is_complete  # what is not here is nowhere
        self._runtimes_by_key = {
            (case.resource, case.key): case for case in self._of_kind(*RUNTIMES)
        }
        self._kinds_here = {case.resource for case in cases}

    def judge_runtimes(self) -> None:
        """Say what admission would say about the runtimes."""
        for case in self._of_kind(*RUNTIMES):
            if case.model is not None:
                case.take(runtime_findings(case.model))

    def judge_train_jobs(self) -> None:
        """The same about the TrainJobs, with the runtimes that are there."""
        existing = Given(
            case.stored for case in self._cases if case.stored is not None and not case.is_refused
        )
        for case in self._of_kind(TRAIN_JOBS):
            if case.model is not None and self._has_runtime(case):
                try:
                    case.take(self._runtimes.validate(None, case.model, existing))
                except PluginFailedError as error:
                    rule = Rule.PLUGIN_FAILED
                    case.refuse(FieldError("", Fault.INTERNAL, str(error), rule=rule))

    def _of_kind(self, *kinds: AnyResource) -> Iterator[Case]:
        return (case for case in self._cases if case.resource in kinds)

    def _has_runtime(self, case: Case) -> bool:
        """Whether the TrainJob can be judged with its runtime; warns if nobody knows."""
        job: TrainJob = case.model
        kind = _kind_of_runtime(job)
        if kind is None:
            return True  # and wrong, whatever there is
        name = job.spec.runtime_ref.name
        key = ObjectKey(job.metadata.namespace or "" if kind.namespaced else "", name)
        runtime = self._runtimes_by_key.get((kind, key))
        if runtime is not None:
            return not runtime.is_refused  # which has been said there
        is_shipped = kind is CLUSTER_TRAINING_RUNTIMES and name in names.SHIPPED_RUNTIMES
        if self._is_complete and kind in self._kinds_here and not is_shipped:
            return True  # and wrong: there are others, but not this one
        case.warn(
            f"spec.runtimeRef.name: {kind.kind} {key} is in none of the files, so whether the "
            "TrainJob fits it was not checked"
        )
        return False


def _kind_of_runtime(job: TrainJob) -> AnyResource | None:
    reference = job.spec.runtime_ref
    for kind in RUNTIMES:
        if (reference.kind, reference.api_group) == (kind.kind, kind.group):
            return kind
    return None
