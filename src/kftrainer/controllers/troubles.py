"""What hinders a TrainJob, in words for its owner: pure."""

from dataclasses import dataclass

from kftrainer.controllers.children import ForeignObjectError, NotInstalledError
from kftrainer.kube.errors import (
    ConflictError,
    KubeError,
    ServerError,
    TooManyRequestsError,
    TransportError,
)
from kftrainer.kube.fence import FencedError
from kftrainer.runtime.errors import PlanningError, PluginFailedError

FAILED = "ResourcesCreationFailed"
LONGEST_IN_EVENT = 950
INTERNAL_ERROR = 500  # among others, a webhook that does not answer


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why the objects of a TrainJob could not be made."""

    reason: str
    message: str
    may_pass: bool  # by itself, so that it is worth trying again
    is_told: bool = True  # to the TrainJob's owner; what will soon pass would only disturb

    @property
    def event_message(self) -> str:
        """As the Event says it."""
        text = self.message
        if len(text) > LONGEST_IN_EVENT:
            text = f"{text[:LONGEST_IN_EVENT]} ..."
        return f"TrainJob resources reconciliation failed: {text}"


def hindrance_of(error: PlanningError | KubeError) -> Hindrance:
    """What to say about the error, and whether to try again."""
    message = str(error)
    if isinstance(error, NotInstalledError):
        return Hindrance(f"{error.resource.kind}NotInstalled", message, may_pass=False)
    if isinstance(error, PlanningError):
        # Documents do not change by themselves, and we are told when they are changed.
        may_pass = isinstance(error, ForeignObjectError | PluginFailedError)
        return Hindrance(error.reason, message, may_pass=may_pass)
    return Hindrance(FAILED, message, may_pass=True, is_told=not _will_soon_pass(error))


def _will_soon_pass(error: KubeError) -> bool:
    if isinstance(error, ServerError):
        return error.status != INTERNAL_ERROR
    return isinstance(error, TransportError | TooManyRequestsError | ConflictError | FencedError)
