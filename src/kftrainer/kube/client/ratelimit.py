"""Client-side rate limit: a token bucket. `api.configuration` has the manager's QPS and burst."""

from typing import Protocol

from kftrainer.kube.clock import Clock


class Limiter(Protocol):
    """Delays requests."""

    async def wait(self) -> None:
        """Return when one more request may be sent."""
        ...


class TokenBucket:
    """Tokens that are refilled at a steady rate. Pure.

    The bucket starts full. `take` on an empty bucket returns the next future token, so callers are
    served in order; `try_take` returns none.
    """

    def __init__(self, per_second: float, burst: int, now: float) -> None:
        if per_second <= 0 or burst < 1:
            raise ValueError("a token bucket needs a rate above 0 and a burst of at least 1")
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at = now

    def take(self, now: float) -> float:
        """Take a token and return in how many seconds it may be used."""
        self._refill(now)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._per_second)

    def try_take(self, now: float) -> bool:
        """Take a token if there is one; return whether it was taken."""
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _refill(self, now: float) -> None:
        gained = max(0.0, now - self._filled_at) * self._per_second
        self._tokens = min(float(self._burst), self._tokens + gained)
        self._filled_at = now


class RateLimiter:
    """Limits requests to `qps` per second after an initial `burst`."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        self._clock = clock
        self._bucket = TokenBucket(qps, burst, clock.monotonic())

    async def wait(self) -> None:
        """Return when one more request may be sent."""
        pause = self._bucket.take(self._clock.monotonic())
        if pause > 0:
            await self._clock.sleep(pause)
