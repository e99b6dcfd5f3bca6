"""The clock of API clients: monotonic time and sleep."""

import asyncio
from typing import Protocol


class Clock(Protocol):
    """The clock interface of the client; the machinery's clock implements it."""

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for the given number of seconds; can be cancelled at any time."""
        ...


class LoopClock:
    """The clock of the running event loop."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Sleep for the given number of seconds."""
        await asyncio.sleep(seconds)


LOOP_CLOCK = LoopClock()
