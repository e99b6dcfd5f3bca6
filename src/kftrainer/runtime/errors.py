"""Errors of planning.

    PlanningError
    ├── UnsupportedRuntimeError   spec.runtimeRef names a kind that is not a runtime
    ├── RuntimeNotFoundError      the runtime does not exist
    ├── ClaimTemplateNotFoundError  a ResourceClaimTemplate does not exist
    ├── NotInstalledError         the kind of an object that the TrainJob needs is not installed
    ├── RevisionLostError         the recorded revision of a changed runtime does not exist
    ├── InvalidRuntimeError       the runtime cannot be used; paths are in the runtime
    ├── InvalidTrainJobError      the TrainJob is not valid; paths are in the TrainJob
    └── PluginFailedError         a plugin has a bug

All but the last are errors in the TrainJob or the runtime.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from kftrainer.api import names
from kftrainer.kube.objects.field_errors import FieldError
from kftrainer.kube.objects.resource import Resource


class PlanningError(Exception):
    """The TrainJob cannot be planned; `errors` are the field errors, if there are any."""

    reason: ClassVar[str] = names.REASON_CREATION_FAILED  # reason of conditions

    def __init__(self, message: str, errors: Iterable[FieldError] = ()) -> None:
        super().__init__(message)
        self.errors: Sequence[FieldError] = tuple(errors)


class UnsupportedRuntimeError(PlanningError):
    """The TrainJob refers to a kind that is not a runtime."""

    reason = names.REASON_RUNTIME_NOT_SUPPORTED


class RuntimeNotFoundError(PlanningError):
    """The TrainJob refers to a runtime that does not exist."""

    reason = names.REASON_RUNTIME_NOT_FOUND


class ClaimTemplateNotFoundError(PlanningError):
    """The TrainJob refers to a ResourceClaimTemplate that does not exist."""

    reason = names.REASON_CLAIM_TEMPLATE_NOT_FOUND


class NotInstalledError(PlanningError):
    """The kind of an object that the TrainJob needs is not installed."""

    def __init__(
        self, resource: Resource[Any], remedy: str = "install the CRD or grant access"
    ) -> None:
        super().__init__(
            f"the kind {resource.kind} ({resource.api_version}) is not installed in the cluster, "
            f"or the manager may not read it: {remedy}; the TrainJob then continues automatically"
        )
        self.resource = resource


class RevisionLostError(PlanningError):
    """The recorded revision of the runtime does not exist, and the runtime has changed since."""

    reason = names.REASON_REVISION_LOST


class _InvalidDocumentError(PlanningError):
    def __init__(self, subject: str, *errors: FieldError) -> None:
        super().__init__(f"{subject}: {'; '.join(map(str, errors))}", errors)
        self.subject = subject


class InvalidRuntimeError(_InvalidDocumentError):
    """The runtime cannot be used; the paths of `errors` are in the runtime."""

    reason = names.REASON_INVALID_RUNTIME


class InvalidTrainJobError(_InvalidDocumentError):
    """The TrainJob is not valid for its runtime; the paths of `errors` are in the TrainJob."""

    reason = names.REASON_INVALID_TRAIN_JOB


class PluginFailedError(PlanningError):
    """A plugin raised an exception that is not a PlanningError."""

    reason = names.REASON_PLUGIN_FAILED
