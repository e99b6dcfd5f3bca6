"""What hinders a TrainJob, in words for its owner: pure."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kftrainer.controllers.trainjob.apply import (
    ForeignObjectError,
    NotInstalledError,
    PendingDeletionError,
)
from kftrainer.controllers.trainjob.messages import condition_message
from kftrainer.kube.client.errors import (
    ConflictError,
    ForbiddenError,
    KindNotFoundError,
    KubeError,
    ServerError,
    TooManyRequestsError,
    TransportError,
)
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.runtime.errors import PlanningError, PluginFailedError

FAILED = "ResourcesCreationFailed"
LONGEST_IN_EVENT = 950
INTERNAL_ERROR = 500  # among others, a webhook that does not answer
# Upper bounds of the retry interval, in seconds. No watch reports that one of these errors no
# longer applies, so the bound is how long a TrainJob may wait without need.
RETRY_TAKEN_NAME = 30.0
RETRY_QUOTA = 60.0
RETRY_UNAVAILABLE = 60.0  # the API server, or a webhook that it calls
RETRY_REJECTED = 300.0  # by a rule or for want of a permission, until somebody changes that
QUOTA = ("exceeded quota", "status unknown for quota")  # in messages of the API server
PATIENCE = timedelta(minutes=1)  # with an object that is being deleted


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why the objects of a TrainJob could not be made."""

    reason: str
    message: str
    may_pass: bool  # by itself, so that it is worth trying again
    is_told: bool = True  # to the TrainJob's owner; what will soon pass would only disturb
    max_delay: float = RETRY_REJECTED  # seconds between two attempts

    @property
    def event_message(self) -> str:
        """As the Event says it."""
        text = self.message
        if len(text) > LONGEST_IN_EVENT:
            text = f"{text[:LONGEST_IN_EVENT]} ..."
        return f"TrainJob resources reconciliation failed: {text}"


def hindrance_of(error: PlanningError | KubeError, now: datetime) -> Hindrance:
    """What to say about the error, and whether to try again."""
    message = condition_message(str(error))
    if isinstance(error, NotInstalledError):
        return Hindrance(f"{error.resource.kind}NotInstalled", message, may_pass=False)
    if isinstance(error, KindNotFoundError) and error.resource is not None:
        # The kind was removed while we run. The informer may not have noticed, so try again.
        missing = hindrance_of(NotInstalledError(error.resource), now)
        return replace(missing, may_pass=True, max_delay=RETRY_UNAVAILABLE)
    if isinstance(error, PendingDeletionError):
        is_late = error.since is not None and now - error.since >= PATIENCE
        return Hindrance(
            error.reason, message, may_pass=True, is_told=is_late, max_delay=RETRY_TAKEN_NAME
        )
    if isinstance(error, ForeignObjectError):
        return Hindrance(error.reason, message, may_pass=True, max_delay=RETRY_TAKEN_NAME)
    if isinstance(error, PlanningError):
        # Documents do not change by themselves, and we are told when they are changed.
        return Hindrance(error.reason, message, may_pass=isinstance(error, PluginFailedError))
    return Hindrance(
        FAILED,
        message,
        may_pass=True,
        is_told=not _will_soon_pass(error),
        max_delay=_max_delay(error),
    )


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
