"""The contract of a reconciler: make the world as one object wants it, whatever has happened.

It is told a name, never an event: what happened may be long past, and several things may have
happened since. It reads the object, compares, acts, and can be run again at any time.
"""

from dataclasses import dataclass
from typing import Protocol

from kftrainer.kube.resource import ObjectKey

Request = ObjectKey  # which object to look at


@dataclass(frozen=True, slots=True)
class Result:
    """What a reconcile that succeeded asks for next."""

    requeue_after: float | None = None  # seconds until it wants to look again, if nothing happens


DONE = Result()


class TerminalError(Exception):
    """It failed, and trying again would not help until the object changes."""


class Reconciler(Protocol):
    """Makes the world as one object wants it; an exception means: try again later."""

    async def reconcile(self, request: Request) -> Result:
        """Look at the object and act; must bear being cancelled at any await."""
        ...
