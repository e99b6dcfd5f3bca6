"""Why a TrainJob cannot be planned.

    PlanningError
    ├── UnsupportedRuntimeError   spec.runtimeRef names a kind that is no runtime
    ├── RuntimeNotFoundError      the runtime is not there
    ├── InvalidRuntimeError       the runtime cannot be used; paths are in the runtime
    ├── InvalidTrainJobError      the TrainJob does not fit; paths are in the TrainJob
    └── PluginFailedError         a plugin has a bug

All but the last are somebody's mistake in a document, and say in which field it is.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from kftrainer.kube.objects.field_errors import FieldError


class PlanningError(Exception):
    """There is no plan for this TrainJob; `errors` says where the trouble is, if in a field."""

    reason: ClassVar[str] = "ResourcesCreationFailed"  # in one word, for conditions

    def __init__(self, message: str, errors: Iterable[FieldError] = ()) -> None:
        super().__init__(message)
        self.errors: Sequence[FieldError] = tuple(errors)


class UnsupportedRuntimeError(PlanningError):
    """The TrainJob refers to something that is not a runtime."""

    reason = "TrainingRuntimeNotSupported"


class RuntimeNotFoundError(PlanningError):
    """The TrainJob refers to a runtime that is not there."""

    reason = "RuntimeNotFound"


class _InvalidDocumentError(PlanningError):
    def __init__(self, subject: str, *errors: FieldError) -> None:
        super().__init__(f"{subject}: {'; '.join(map(str, errors))}", errors)
        self.subject = subject


class InvalidRuntimeError(_InvalidDocumentError):
    """The runtime cannot be used, whoever refers to it."""

    reason = "InvalidRuntime"


class InvalidTrainJobError(_InvalidDocumentError):
    """The TrainJob does not fit its runtime."""

    reason = "InvalidTrainJob"


class PluginFailedError(PlanningError):
    """A plugin raised what it should not."""

    reason = "PluginFailed"
