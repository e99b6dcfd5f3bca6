"""The contract of a reconciler: make the world as one object wants it, whatever has happened.

It is told a name, never an event: what happened may be long past, and several things may have
happened since. It reads the object, compares, acts, and can be run again at any time.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from kftrainer.kube.objects.resource import ObjectKey

Request = ObjectKey  # which object to look at


@dataclass(frozen=True, slots=True)
class Result:
    """What a reconcile that succeeded asks for next: nothing, or to look again, in one of two ways.

    A delay that is not positive means the same as `requeue`: none at all would be a busy loop.
    """

    requeue_after: float | None = None  # seconds until it wants to look again, if nothing happens
    requeue: bool = False  # it wants to look again later and later, as after failures
    max_delay: float = math.inf  # seconds: an upper bound of the back-off for this result

    def __post_init__(self) -> None:
        if self.requeue and not self.is_rate_limited:
            raise ValueError(f"either requeue, or requeue_after={self.requeue_after}: not both")

    @property
    def is_rate_limited(self) -> bool:
        """Whether the backoff, and not the reconciler, says when to look again."""
        if self.requeue_after is None:
            return self.requeue
        return not self.requeue_after > 0


DONE = Result()


class TerminalError(Exception):
    """It failed, and trying again would not help until the object changes."""


class Reconciler(Protocol):
    """Makes the world as one object wants it; an exception means: try again later."""

    async def reconcile(self, request: Request) -> Result:
        """Look at the object and act; must bear being cancelled at any await."""
        ...
