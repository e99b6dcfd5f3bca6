"""Translates errors into failures: for the TrainJob's status, Events, metrics and retries. Pure.

A failed API call is a failed reconcile, as in controller-runtime: the reconciler raises
ReconcileError, after it has written the status. So is an exception in a plugin. The following are
not failed reconciles:

- Errors in the TrainJob or the runtime, for which Kubeflow Trainer returns an error. A retry cannot
  succeed: the change of a watched object enqueues the TrainJob.
- A name that is in use or an object that is still being deleted: no call failed. It is retried.
- Conflicts, namespaces that are being deleted and lost leases: expected races.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kftrainer.api import names
from kftrainer.controllers.trainjob.apply import (
    ForeignObjectError,
    PendingDeletionError,
)
from kftrainer.controllers.trainjob.messages import condition_message
from kftrainer.kube.client.errors import (
    ConflictError,
    ForbiddenError,
    KindNotFoundError,
    KubeError,
    NamespaceTerminatingError,
    ServerError,
    TooManyRequestsError,
    TransportError,
)
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.machinery.controller.reconcile import ReconcileError
from kftrainer.runtime.errors import NotInstalledError, PlanningError, PluginFailedError

LONGEST_IN_EVENT = 950
INTERNAL_ERROR = 500  # for example, a webhook that does not respond
# Upper bounds of the retry interval, in seconds. No watch reports that one of these errors no
# longer applies, so the bound is the longest time that a TrainJob waits unnecessarily.
RETRY_TAKEN_NAME = 30.0
RETRY_QUOTA = 60.0
RETRY_UNAVAILABLE = 60.0  # the API server, or a webhook that it calls
RETRY_REJECTED = 300.0  # by a rule, or for lack of a permission
QUOTA = ("exceeded quota", "status unknown for quota")  # in messages of the API server
PATIENCE = timedelta(minutes=1)  # until a pending deletion is reported to the user
# Races with other clients and with the next leader: the reconcile is repeated, but has not failed.
EXPECTED_ERRORS = (ConflictError, NamespaceTerminatingError, WriteGuardError)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the objects of a TrainJob are not applied, or its pods not created."""

    reason: str
    message: str
    retryable: bool  # without an event that enqueues the TrainJob, so it is retried
    # Reported in the status and as an Event; False if it is expected to pass soon.
    user_visible: bool = True
    is_error: bool = False  # the reconcile failed; otherwise it is only requeued
    max_delay: float = RETRY_REJECTED  # seconds between two attempts

    @property
    def event_message(self) -> str:
        """The message of the Event."""
        text = self.message
        if len(text) > LONGEST_IN_EVENT:
            text = f"{text[:LONGEST_IN_EVENT]} ..."
        return f"TrainJob resources reconciliation failed: {text}"


def failure_of(error: PlanningError | KubeError, now: datetime) -> Failure:
    """Return how to report the error and whether to retry."""
    message = condition_message(str(error))
    if isinstance(error, NotInstalledError):
        reason = names.REASON_KIND_NOT_INSTALLED.format(kind=error.resource.kind)
        return Failure(reason, message, retryable=False)
    if isinstance(error, KindNotFoundError) and error.resource is not None:
        # The kind was removed at run time. The informer may not report its return, so retry.
        missing = failure_of(NotInstalledError(error.resource), now)
        return replace(missing, retryable=True, is_error=True, max_delay=RETRY_UNAVAILABLE)
    if isinstance(error, PendingDeletionError):
        is_late = error.since is not None and now - error.since >= PATIENCE
        return Failure(
            error.reason, message, retryable=True, user_visible=is_late, max_delay=RETRY_TAKEN_NAME
        )
    if isinstance(error, ForeignObjectError):
        return Failure(error.reason, message, retryable=True, max_delay=RETRY_TAKEN_NAME)
    if isinstance(error, PlanningError):
        # The result depends only on watched objects: a change of them enqueues the TrainJob.
        is_bug = isinstance(error, PluginFailedError)
        return Failure(error.reason, message, retryable=is_bug, is_error=is_bug)
    return Failure(
        names.REASON_CREATION_FAILED,
        message,
        retryable=True,
        user_visible=not _will_soon_pass(error),
        is_error=not isinstance(error, EXPECTED_ERRORS),
        max_delay=_max_delay(error),
    )


@contextmanager
def failing_reconcile(what: str, max_delay: float = RETRY_UNAVAILABLE) -> Iterator[None]:
    """Translate failed API calls into ReconcileErrors, except for EXPECTED_ERRORS."""
    try:
        yield
    except EXPECTED_ERRORS:
        raise
    except KubeError as error:
        raise ReconcileError(f"cannot {what}: {error}", max_delay=max_delay) from error


def _max_delay(error: KubeError) -> float:
    if isinstance(error, ForbiddenError) and any(each in str(error) for each in QUOTA):
        return RETRY_QUOTA
    if isinstance(error, ServerError) or _will_soon_pass(error):
        return RETRY_UNAVAILABLE
    return RETRY_REJECTED


def _will_soon_pass(error: KubeError) -> bool:
    if isinstance(error, ServerError):
        return error.status != INTERNAL_ERROR
    return isinstance(
        error, TransportError | TooManyRequestsError | ConflictError | WriteGuardError
    )
