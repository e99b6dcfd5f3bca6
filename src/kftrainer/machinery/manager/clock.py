"""Injected time: the only module of the operator that reads a clock."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # on Linux


class Clock(Protocol):
    """The clock interface of the machinery."""

    def monotonic(self) -> float:
        """Return seconds that never decrease, for measuring and waiting."""
        ...

    def now(self) -> datetime:
        """Return the current time in UTC, for timestamps in objects."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for the given number of seconds; can be cancelled at any time."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary time, including those in which the machine slept.

        A leader whose machine was suspended must not consider its lease fresh after the resume.
        """
        if BOOT_TIME is not None:
            return time.clock_gettime(BOOT_TIME)
        return time.monotonic()  # noqa: TID251

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)  # noqa: TID251

    async def sleep(self, seconds: float) -> None:
        """Sleep for the given number of seconds."""
        await asyncio.sleep(seconds)
