"""Sends requests at a constant rate and counts the results."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

Send = Callable[[int], Awaitable[str | None]]  # returns the error, if any


@dataclass(slots=True)
class Tally:
    """Results so far."""

    failures: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # that each took
    lasted: float = 0.0

    @property
    def rate(self) -> float:
        """Requests that were answered in a second."""
        return len(self.seconds) / self.lasted

    def __str__(self) -> str:
        times = sorted(self.seconds)
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        return (
            f"{len(times)} requests, {self.rate:.0f}/s, p50 {p50 * 1000:.0f} ms, "
            f"p99 {p99 * 1000:.0f} ms, {len(self.failures)} failed"
        )


@asynccontextmanager
async def constant_load(send: Send, rate: float, at_once: int = 32) -> AsyncIterator[Tally]:
    """Send requests at this rate for the block, with a limit on those in flight."""
    now, tally = asyncio.get_running_loop().time, Tally()
    began, places = now(), asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        started = now()
        wrong = await send(number)
        places.release()
        tally.seconds.append(now() - started)
        if wrong is not None:
            tally.failures.append(f"after {started - began:.2f} s: {wrong}")

    async def all_of_them(tasks: asyncio.TaskGroup) -> None:
        for number in count():
            await places.acquire()
            tasks.create_task(one(number))
            await asyncio.sleep(max(0.0, began + (number + 1) / rate - now()))

    async with asyncio.TaskGroup() as tasks:
        pacing = tasks.create_task(all_of_them(tasks))
        yield tally
        pacing.cancel()
    tally.lasted = now() - began
