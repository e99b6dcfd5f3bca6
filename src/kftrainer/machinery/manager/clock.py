"""Time, handed in: the only place of the operator that looks at a clock."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has one


class Clock(Protocol):
    """What the machinery knows of time."""

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring and waiting."""
        ...

    def now(self) -> datetime:
        """The time of day in UTC, for what is written into objects."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancelling ends it at once."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """Seconds since some moment, those in which the machine slept among them.

        A leader whose machine was suspended must not take its lease for fresh when it wakes.
        """
        if BOOT_TIME is not None:
            return time.clock_gettime(BOOT_TIME)
        return time.monotonic()  # noqa: TID251

    def now(self) -> datetime:
        """The time of day."""
        return datetime.now(UTC)  # noqa: TID251

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
