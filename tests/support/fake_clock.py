"""A clock that tests advance manually."""

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)
MAX_ROUNDS = 10_000


class FakeClock:
    """A clock at zero seconds; sleepers wake in the order of their deadlines."""

    def __init__(self) -> None:
        self._time = 0.0
        self._count = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        """Return the seconds by which the clock was advanced."""
        return self._time

    def now(self) -> datetime:
        """Return the same time as a datetime."""
        return START + timedelta(seconds=self._time)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by this time."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._time + seconds, next(self._count), sleeper))
        await sleeper

    @property
    def sleeping(self) -> list[float]:
        """Return the deadlines of the current sleepers in order."""
        return sorted(at for at, _, sleeper in self._sleepers if not sleeper.done())

    async def advance(self, seconds: float) -> None:
        """Advance the time: each sleeping task resumes at its own time, before the next one does.

        What is ready to run has run before and after; what waits for other processes has not.
        """
        until = self._time + seconds
        await at_rest()
        while self._sleepers and self._sleepers[0][0] <= until:
            at, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                self._time = at
                sleeper.set_result(None)
                await at_rest()
        self._time = until


async def at_rest() -> None:
    """Return when every other task waits for something."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(MAX_ROUNDS):
        if not ready:
            return
        await asyncio.sleep(0)
    raise AssertionError("The tasks never come to rest.")
