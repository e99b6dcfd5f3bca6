"""The Reconciler contract: bring the cluster to the state that one object specifies.

A reconciler gets a name, not an event: events may be long past and several may have been merged. It
reads the object, compares, acts, and must be idempotent.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from kftrainer.kube.objects.resource import ObjectKey

Request = ObjectKey  # the object to reconcile


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a successful reconcile: done, requeue after a delay, or requeue with backoff.

    A delay that is not positive means the same as `requeue`, because no delay would be a busy loop.
    """

    requeue_after: float | None = None  # seconds until the next reconcile if no event occurs
    requeue: bool = False  # requeue with the backoff, as after a failure
    max_delay: float = math.inf  # seconds: an upper bound of the backoff for this result

    def __post_init__(self) -> None:
        if self.requeue and not self.is_rate_limited:
            raise ValueError(f"either requeue, or requeue_after={self.requeue_after}: not both")

    @property
    def is_rate_limited(self) -> bool:
        """Whether the backoff determines when the request is reconciled again."""
        if self.requeue_after is None:
            return self.requeue
        return not self.requeue_after > 0


DONE = Result()


class ReconcileError(Exception):
    """The reconcile failed with an expected error, such as a failed API call, and is retried.

    It counts as an error like every exception. It is logged without a traceback, and its backoff
    does not exceed `max_delay` seconds. With `is_reported`, the object's status already reports it:
    only the first attempt of a process is logged as an error, the others for debugging.
    """

    def __init__(
        self, message: str, *, max_delay: float = math.inf, is_reported: bool = False
    ) -> None:
        super().__init__(message)
        self.max_delay = max_delay
        self.is_reported = is_reported


class TerminalError(Exception):
    """The reconcile failed, and a retry does not help until the object changes."""


class Reconciler(Protocol):
    """Brings the cluster to the state that an object specifies; exceptions are retried."""

    async def reconcile(self, request: Request) -> Result:
        """Reconcile the object; must tolerate cancellation at any await."""
        ...
