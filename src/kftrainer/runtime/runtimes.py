"""The two kinds of runtimes, and how a TrainJob finds its own."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from kftrainer.api import names
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from kftrainer.api.trainjob import RuntimeRef, TrainJob
from kftrainer.kube.field import Findings, forbidden, invalid
from kftrainer.kube.resource import ObjectKey
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    InvalidTrainJobError,
    PlanningError,
    RuntimeNotFoundError,
    UnsupportedRuntimeError,
)
from kftrainer.runtime.existing import Existing
from kftrainer.runtime.framework import Framework
from kftrainer.runtime.info import AnyRuntime, Info
from kftrainer.runtime.phases import Observed, Watch
from kftrainer.runtime.planned import Planned
from kftrainer.runtime.tape import SILENCE, Tape
from kftrainer.runtime.template import new_info, subject_of


class Runtime(Protocol):
    """What one can ask about TrainJobs of one kind of runtime."""

    def new_objects(
        self, job: TrainJob, existing: Existing, tape: Tape = SILENCE
    ) -> Sequence[Planned]:
        """The objects to apply now, in this order; raises PlanningError."""
        ...

    def runtime_info(self, job: TrainJob, existing: Existing, tape: Tape = SILENCE) -> Info:
        """What plugins start from; raises PlanningError."""
        ...

    def train_job_status(self, job: TrainJob, existing: Existing) -> Observed | None:
        """How it goes; None while there is nothing to see yet."""
        ...

    def event_handler_registrars(self) -> Sequence[Watch]:
        """The kinds to watch for TrainJobs."""
        ...

    def validate_objects(self, old: TrainJob | None, new: TrainJob, existing: Existing) -> Findings:
        """What is wrong with the TrainJob; `old` is None when it is created."""
        ...


class _FromTemplate:
    """What both kinds do alike, once the runtime is found."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    @abstractmethod
    def find(self, job: TrainJob, existing: Existing) -> AnyRuntime | None:
        """The runtime that the TrainJob refers to."""

    def new_objects(
        self, job: TrainJob, existing: Existing, tape: Tape = SILENCE
    ) -> Sequence[Planned]:
        """The objects to apply now, in this order; raises PlanningError."""
        info = self.runtime_info(job, existing, tape)
        missing = self._framework.missing_for(info)
        if missing is not None:
            detail = f"the plugin {missing}, which the runtime's policy needs, is switched off"
            raise InvalidRuntimeError(subject_of(info.runtime), forbidden("spec", detail))
        self._framework.enforce(info, job)
        return self._framework.build(info, job)

    def runtime_info(self, job: TrainJob, existing: Existing, tape: Tape = SILENCE) -> Info:
        """What plugins start from; raises PlanningError."""
        runtime = self.find(job, existing)
        if runtime is None:
            raise RuntimeNotFoundError(not_found(job.spec.runtime_ref, job.metadata.namespace))
        return new_info(job, runtime, existing, tape)

    def train_job_status(self, job: TrainJob, existing: Existing) -> Observed | None:
        """How it goes; None while there is nothing to see yet."""
        return self._framework.observe(job, existing)

    def event_handler_registrars(self) -> Sequence[Watch]:
        """The kinds to watch for TrainJobs."""
        return self._framework.watches()

    def validate_objects(self, old: TrainJob | None, new: TrainJob, existing: Existing) -> Findings:
        """What is wrong with the TrainJob; `old` is None when it is created."""
        findings = Findings()
        try:
            info = self.runtime_info(new, existing)
        except InvalidTrainJobError as error:
            findings.refuse(*error.errors)
        except PlanningError as error:
            findings.refuse(invalid("spec.runtimeRef", new.spec.runtime_ref.dump(), str(error)))
        else:
            findings.add(self._framework.validate(info, old, new))
        return findings


class NamespacedRuntimes(_FromTemplate):
    """TrainingRuntimes: found in the TrainJob's own namespace."""

    def find(self, job: TrainJob, existing: Existing) -> AnyRuntime | None:
        """The TrainingRuntime that the TrainJob refers to."""
        key = ObjectKey(job.metadata.namespace or "", job.spec.runtime_ref.name)
        return existing.get(TRAINING_RUNTIMES, key)


class ClusterRuntimes(_FromTemplate):
    """ClusterTrainingRuntimes: the same for all namespaces."""

    def find(self, job: TrainJob, existing: Existing) -> AnyRuntime | None:
        """The ClusterTrainingRuntime that the TrainJob refers to."""
        return existing.get(CLUSTER_TRAINING_RUNTIMES, ObjectKey("", job.spec.runtime_ref.name))


class Runtimes:
    """The kinds of runtimes, by `Kind.group` as `runtimeRef` names them."""

    def __init__(self, framework: Framework) -> None:
        self._kinds: Mapping[str, Runtime] = {
            TRAINING_RUNTIMES.group_kind: NamespacedRuntimes(framework),
            CLUSTER_TRAINING_RUNTIMES.group_kind: ClusterRuntimes(framework),
        }

    def of(self, job: TrainJob) -> Runtime:
        """The kind that the TrainJob refers to; raises UnsupportedRuntimeError."""
        reference = job.spec.runtime_ref
        key = f"{reference.kind}.{reference.api_group}"
        found = self._kinds.get(key)
        if found is None:
            error = invalid(
                "spec.runtimeRef", reference.dump(), f"must be one of {list(self._kinds)}"
            )
            raise UnsupportedRuntimeError(f"unsupported runtime: {key}", [error])
        return found


def not_found(reference: RuntimeRef, namespace: str | None) -> str:
    """What to say about a runtime that is not there."""
    if reference.kind == names.TRAINING_RUNTIME:
        return f"TrainingRuntime {reference.name} is not found in namespace {namespace}"
    return f"ClusterTrainingRuntime {reference.name} is not found"
