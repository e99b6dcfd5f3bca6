"""A real clock that runs faster, so that minutes take seconds."""

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class FastClock:
    """Counts a number of seconds for each real second."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    def monotonic(self) -> float:
        """Seconds since the clock was created, as it counts them."""
        return (self._loop.time() - self._began) * self._times

    def now(self) -> datetime:
        """The same as a time of day."""
        return START + timedelta(seconds=self.monotonic())

    async def sleep(self, seconds: float) -> None:
        """Wait until it has counted this number of seconds."""
        await asyncio.sleep(seconds / self._times)
