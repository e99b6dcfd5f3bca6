"""Retry delays. Pure: the current time is an argument.

The bounds here are controller-runtime's. `cli.manager_setup.assembly` sets those of the manager,
and a `Result` or a `ReconcileError` can have a lower one.
"""

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Protocol

from kftrainer.machinery.controller.reconcile import Request

FIRST_DELAY = 0.005
LONGEST_DELAY = 1000.0


class Backoff(Protocol):
    """Counts the failures of each request and computes its retry delay."""

    def next_delay(self, request: Request, now: float, longest: float = math.inf) -> float:
        """Count a failure and return the delay in seconds, at most `longest` before jitter."""
        ...

    def forget(self, request: Request) -> None:
        """Reset the request after a success."""
        ...

    def failures(self, request: Request) -> int:
        """Return the number of failures since the last success."""
        ...


Jitter = Callable[[float], float]


def exactly(delay: float) -> float:
    """Return the delay without jitter."""
    return delay


def spread(rng: Random, by: float = 0.1) -> Jitter:
    """Return a jitter that changes a delay by up to the given fraction."""
    return lambda delay: delay * rng.uniform(1 - by, 1 + by)


class Exponential:
    """Exponential backoff: each request's delay doubles with each failure, up to a cap."""

    def __init__(
        self,
        base: float = FIRST_DELAY,
        cap: float = LONGEST_DELAY,
        *,
        jitter: Jitter = exactly,
    ) -> None:
        if not 0 < base <= cap < math.inf:
            raise ValueError(f"a backoff cannot grow from {base} to {cap}")
        self._base = base
        self._cap = cap
        self._jitter = jitter
        # From this count on the delay is the cap; 2.0**failures would overflow.
        self._doublings = math.ceil(math.log2(cap / base))
        self._failures: dict[Request, int] = {}

    def next_delay(self, request: Request, now: float, longest: float = math.inf) -> float:
        """Count a failure and return the delay; jitter is applied after the cap.

        Otherwise requests at the cap would all be retried at the same time.
        """
        failures = self._failures.get(request, 0)
        self._failures[request] = failures + 1
        capped = self._cap if failures >= self._doublings else self._base * 2.0**failures
        return self._jitter(min(capped, self._cap, longest))

    def forget(self, request: Request) -> None:
        """Reset the request to the first delay."""
        self._failures.pop(request, None)

    def failures(self, request: Request) -> int:
        """Return the number of failures since the last `forget`."""
        return self._failures.get(request, 0)


def doubling(first: float, longest: float) -> Iterator[float]:
    """Yield polling intervals, each twice as long as the previous one, up to a cap."""
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, longest)
