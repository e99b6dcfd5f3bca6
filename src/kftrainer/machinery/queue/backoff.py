"""Retry delays. Pure: the current time is an argument."""

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


class TokenBucket:
    """Token bucket shared by all requests: limits retries per second after a burst.

    Each call takes a token. If the bucket is empty, it takes a future one and the delay lasts until
    then.
    """

    def __init__(self, rate: float = 10.0, burst: int = 100) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"nothing comes out of a bucket of {burst} filled at {rate}/s")
        self._rate = rate
        self._burst = float(burst)
        self._tokens = self._burst
        self._filled_at = -math.inf

    def next_delay(self, request: Request, now: float, longest: float = math.inf) -> float:
        """Return the delay for any request; `longest` is ignored because the rate is shared."""
        if now > self._filled_at:
            gained = (now - self._filled_at) * self._rate
            self._tokens = min(self._burst, self._tokens + gained)
            self._filled_at = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)

    def forget(self, request: Request) -> None:
        """Do nothing: tokens are not returned."""

    def failures(self, request: Request) -> int:
        """Return 0: failures are not counted per request."""
        return 0


class MaxOf:
    """The longest delay of several backoffs; each of them counts every failure."""

    def __init__(self, *rules: Backoff) -> None:
        if not rules:
            raise ValueError("there is no longest delay of no rules")
        self._rules = rules

    def next_delay(self, request: Request, now: float, longest: float = math.inf) -> float:
        """Return the longest delay."""
        return max([rule.next_delay(request, now, longest) for rule in self._rules])

    def forget(self, request: Request) -> None:
        """Reset the request in all backoffs."""
        for rule in self._rules:
            rule.forget(request)

    def failures(self, request: Request) -> int:
        """Return the highest failure count."""
        return max(rule.failures(request) for rule in self._rules)
