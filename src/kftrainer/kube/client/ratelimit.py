"""How fast requests may be sent: a token bucket, and the clock that it is read from."""

import asyncio
from typing import Protocol


class Clock(Protocol):
    """What the wire knows of time; a clock of the machinery is one."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancelling ends it at once."""
        ...


class LoopClock:
    """The clock of the event loop that it is asked in."""

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


LOOP_CLOCK = LoopClock()


class Limiter(Protocol):
    """Delays requests."""

    async def wait(self) -> None:
        """Return when one more request may be sent."""
        ...


class TokenBucket:
    """Tokens that come back at a steady rate; taking one that is not there yet means waiting. Pure.

    Starts full. Whoever takes a token from an empty bucket gets the next that will be free, so
    waiting is in the order of asking.
    """

    def __init__(self, per_second: float, burst: int, now: float) -> None:
        if per_second <= 0 or burst < 1:
            raise ValueError("a token bucket needs a rate above 0 and room for a token")
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at = now

    def take(self, now: float) -> float:
        """Take a token, and say in how many seconds it may be used."""
        refill = max(0.0, now - self._filled_at) * self._per_second
        self._tokens = min(float(self._burst), self._tokens + refill) - 1.0
        self._filled_at = now
        return max(0.0, -self._tokens / self._per_second)


class RateLimiter:
    """Holds requests back so that no more than `qps` a second leave, after a first `burst`."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        self._clock = clock
        self._bucket = TokenBucket(qps, burst, clock.monotonic())

    async def wait(self) -> None:
        """Return when one more request may be sent."""
        pause = self._bucket.take(self._clock.monotonic())
        if pause > 0:
            await self._clock.sleep(pause)
