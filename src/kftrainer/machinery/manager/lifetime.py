"""Runnables as context managers: entering waits until they are ready, leaving stops them.

Nesting is the start order; the stop order is the reverse:

    async with running(*servers, …), running(*caches, …):
        async with running(*controllers, …):
            await stop.wait()
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import structlog

from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.runnable import Runnable

log = structlog.get_logger(__name__)


class RunnableEndedError(Exception):
    """A runnable returned before it was stopped."""


class Budget:
    """The total time that stopping may take, shared by all blocks."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._ends: float | None = None

    def start(self) -> None:
        """Start the countdown unless it has started."""
        if self._ends is None:
            self._ends = self._clock.monotonic() + self._seconds

    def remaining(self) -> float:
        """Return the seconds that are left; starts the countdown."""
        self.start()
        assert self._ends is not None  # noqa: S101
        return max(0.0, self._ends - self._clock.monotonic())


async def _run(runnable: Runnable, ready: Callable[[], None], stop: asyncio.Event) -> None:
    await runnable.run(ready, stop)
    if not stop.is_set():
        raise RunnableEndedError(f"{runnable.name} ended before it was stopped")


async def _all_ready(readiness: Sequence[asyncio.Event], stop: asyncio.Event) -> None:
    """Return when all are ready or `stop` is set."""
    async with asyncio.TaskGroup() as group:
        stopped = group.create_task(stop.wait())
        for ready in readiness:
            waiting = group.create_task(ready.wait())
            await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        stopped.cancel()


@asynccontextmanager
async def running(
    *runnables: Runnable, budget: Budget, stop: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """Run the runnables during the block; cancel those that do not stop within the budget.

    The block starts when all are ready, or at once when `stop` is set, which the block has to
    check. If a runnable fails, the block is cancelled and the failure is raised in an
    ExceptionGroup. The task group has cancelled the others by then, so they are not cancelled again
    here.
    """
    end = asyncio.Event()  # of the runnables
    async with asyncio.TaskGroup() as group:
        readiness: list[asyncio.Event] = []
        tasks: list[asyncio.Task[None]] = []
        for runnable in runnables:
            ready = asyncio.Event()
            readiness.append(ready)
            tasks.append(group.create_task(_run(runnable, ready.set, end), name=runnable.name))
        await _all_ready(readiness, stop or asyncio.Event())
        yield
        end.set()
        budget.start()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=budget.remaining())
            for task in late:
                log.warning("runnable_cancelled", runnable=task.get_name())
                task.cancel()
