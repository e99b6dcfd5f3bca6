"""How long to wait before trying again: pure rules that are told the time."""

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Protocol

from kftrainer.machinery.controller.reconcile import Request

FIRST_DELAY = 0.005
LONGEST_DELAY = 1000.0


class Backoff(Protocol):
    """Knows how often a request has failed, and how long it should wait therefore."""

    def next_delay(self, request: Request, now: float, longest: float = math.inf) -> float:
        """Count a failure; the seconds to wait after it, at most `longest` before jitter."""
        ...

    def forget(self, request: Request) -> None:
        """It has succeeded."""
        ...

    def failures(self, request: Request) -> int:
        """How often it has failed since it last succeeded."""
        ...


Jitter = Callable[[float], float]


def exactly(delay: float) -> float:
    """No jitter."""
    return delay


def spread(rng: Random, by: float = 0.1) -> Jitter:
    """Jitter that makes a delay shorter or longer by up to a part of it."""
    return lambda delay: delay * rng.uniform(1 - by, 1 + by)


class Exponential:
    """Each request waits twice as long after each of its failures in a row, up to a cap."""

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
        # From here on it is the cap: two to the power of many failures is not a float any more.
        self._doublings = math.ceil(math.log2(cap / base))
        self._failures: dict[Request, int] = {}

    def next_delay(self, request: Request, now: float, longest: float = math.inf) -> float:
        """The cap is applied first: those that wait for the longest must be spread as well."""
        failures = self._failures.get(request, 0)
        self._failures[request] = failures + 1
        capped = self._cap if failures >= self._doublings else self._base * 2.0**failures
        return self._jitter(min(capped, self._cap, longest))

    def forget(self, request: Request) -> None:
        """Its next delay is the first one again."""
        self._failures.pop(request, None)

    def failures(self, request: Request) -> int:
        """Calls of `next_delay` since it was last forgotten."""
        return self._failures.get(request, 0)


def doubling(first: float, longest: float) -> Iterator[float]:
    """Pauses for who looks again and again: each twice as long as the one before, up to a cap."""
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, longest)


class TokenBucket:
    """All requests together are retried so many times a second, after a burst.

    Each call takes a token, if need be one that will only be there later, and waits for that one.
    """

    def __init__(self, rate: float = 10.0, burst: int = 100) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"nothing comes out of a bucket of {burst} filled at {rate}/s")
        self._rate = rate
        self._burst = float(burst)
        self._tokens = self._burst
        self._filled_at = -math.inf

    def next_delay(self, request: Request, now: float, longest: float = math.inf) -> float:
        """Whichever request it is; the rate holds for all, so there is no shorter delay for one."""
        if now > self._filled_at:
            gained = (now - self._filled_at) * self._rate
            self._tokens = min(self._burst, self._tokens + gained)
            self._filled_at = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)

    def forget(self, request: Request) -> None:
        """A token that was taken is not given back."""

    def failures(self, request: Request) -> int:
        """It does not know one request from another."""
        return 0


class MaxOf:
    """The longest delay of several rules; every rule is asked each time, and so counts it."""

    def __init__(self, *rules: Backoff) -> None:
        if not rules:
            raise ValueError("there is no longest delay of no rules")
        self._rules = rules

    def next_delay(self, request: Request, now: float, longest: float = math.inf) -> float:
        """The longest one."""
        return max([rule.next_delay(request, now, longest) for rule in self._rules])

    def forget(self, request: Request) -> None:
        """All of them forget it."""
        for rule in self._rules:
            rule.forget(request)

    def failures(self, request: Request) -> int:
        """As the one counts that has counted most."""
        return max(rule.failures(request) for rule in self._rules)
