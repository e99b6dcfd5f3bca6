"""A work queue to wait at: lends the pure queue a clock and a line of waiting workers."""

import asyncio
import math
from collections import deque

from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.backoff import Backoff
from kftrainer.machinery.queue.core import QueueCore, QueueObserver


class QueueShutDownError(Exception):
    """The queue hands out nothing any more."""


class WorkQueue:
    """Requests to work on, each by one worker at a time.

    All but `next` and `drained` act at once, so that nobody sees the queue halfway. Among the
    workers who wait in `next` one keeps the time of what was added for later: it sleeps until the
    first of these is due. The others stand in a line, from which one is woken for each item.
    """

    def __init__(
        self, clock: Clock, backoff: Backoff, metrics: QueueObserver | None = None
    ) -> None:
        self._clock = clock
        self._backoff = backoff
        self._metrics = metrics
        self._core = QueueCore(metrics)
        self._line: deque[asyncio.Future[None]] = deque()
        self._woken = 0  # have been woken, and have not come to the queue yet
        self._alarm: asyncio.Timeout | None = None  # ends the timekeeper's sleep early
        self._alarm_at = 0.0
        self._shut_down = False
        self._drained = asyncio.Event()
        if metrics is not None:
            metrics.watch_unfinished(lambda: self._core.unfinished(clock.monotonic()))

    def __len__(self) -> int:
        """How many requests are ready."""
        return len(self._core)

    def add(self, request: Request, *, priority: int = 0, after: float = 0.0) -> None:
        """Hand it out after so many seconds, or sooner if it is added again for sooner."""
        if self._shut_down:
            return
        if after > 0 and self._metrics is not None:
            self._metrics.retried()
        self._core.add(request, self._clock.monotonic(), priority=priority, after=after)
        self._wake()

    def add_rate_limited(
        self, request: Request, *, priority: int = 0, max_delay: float = math.inf
    ) -> None:
        """Hand it out again after the backoff of one more failure."""
        delay = self._backoff.next_delay(request, self._clock.monotonic(), max_delay)
        self.add(request, priority=priority, after=delay)

    def forget(self, request: Request) -> None:
        """It has not failed: its backoff starts anew. This neither removes it nor ends its work."""
        self._backoff.forget(request)

    def retries(self, request: Request) -> int:
        """How often it has failed in a row."""
        return self._backoff.failures(request)

    async def next(self) -> tuple[Request, int]:
        """The next request and its priority; whoever gets it must say when it is done.

        Raises QueueShutDownError. A worker that is cancelled here has taken nothing.
        """
        while not self._shut_down:
            taken = self._core.take(self._clock.monotonic())
            if taken is not None:
                self._wake()
                return taken
            due = self._core.next_ready_at
            if due is not None and self._alarm is None:
                await self._keep_time_until(due)
            else:
                await self._stand_in_line()
        raise QueueShutDownError

    def done(self, request: Request) -> None:
        """The work on it has ended, well or not."""
        self._core.done(request, self._clock.monotonic())
        if self._shut_down and not self._core.in_flight:
            self._drained.set()
        self._wake()

    def shut_down(self) -> None:
        """Hand out nothing any more, and take nothing: who starts next will see everything anew."""
        self._shut_down = True
        while self._line:
            self._wake_first()
        self._ring()
        if not self._core.in_flight:
            self._drained.set()

    async def drained(self) -> None:
        """Return when the queue is shut down and the work on all it has handed out has ended."""
        await self._drained.wait()

    def _wake(self) -> None:
        """One worker for each item that can be taken, and one to keep the time."""
        while self._line and self._woken < self._core.takeable:
            self._wake_first()
        due = self._core.next_ready_at
        if self._alarm is None:
            # Anyone who has been woken will look at the time, or bring us here again.
            if due is not None and self._line and not self._woken:
                self._wake_first()
        elif self._woken < self._core.takeable or (due is not None and due < self._alarm_at):
            self._ring()

    def _wake_first(self) -> None:
        while self._line:
            waiter = self._line.popleft()
            if not waiter.cancelled():
                waiter.set_result(None)
                self._woken += 1
                return

    async def _stand_in_line(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._line.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._line:
                self._line.remove(waiter)
            elif not waiter.cancelled():
                self._woken -= 1
                self._wake()  # what it was woken for is somebody else's now
            raise
        self._woken -= 1

    async def _keep_time_until(self, due: float) -> None:
        self._alarm_at = due
        try:
            async with asyncio.timeout(None) as self._alarm:
                await self._clock.sleep(due - self._clock.monotonic())
        except TimeoutError:
            pass  # the alarm was rung: there is an item, or an earlier time
        except asyncio.CancelledError:
            self._alarm = None
            self._wake()  # somebody else must keep the time
            raise
        self._alarm = None

    def _ring(self) -> None:
        if self._alarm is not None and not self._alarm.expired():
            self._alarm.reschedule(asyncio.get_running_loop().time())
