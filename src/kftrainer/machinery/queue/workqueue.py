"""Asynchronous work queue: QueueCore with a clock and waiting workers."""

import asyncio
import math
from collections import deque

from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.backoff import Backoff
from kftrainer.machinery.queue.core import QueueCore, QueueObserver


class QueueShutDownError(Exception):
    """The queue is shut down."""


class WorkQueue:
    """Requests to reconcile; each is processed by one worker at a time.

    All methods except `next` and `drained` are synchronous, so the state is always consistent. One
    of the workers that wait in `next` is the timekeeper: it sleeps until the first delayed request
    is due. The others wait in line, and one is resumed for each item.
    """

    def __init__(
        self, clock: Clock, backoff: Backoff, metrics: QueueObserver | None = None
    ) -> None:
        self._clock = clock
        self._backoff = backoff
        self._metrics = metrics
        self._core = QueueCore(metrics)
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._notified = 0  # workers that were resumed but have not called `take` yet
        self._sleep: asyncio.Timeout | None = None  # ends the timekeeper's sleep early
        self._sleeps_until = 0.0
        self._shut_down = False
        self._drained = asyncio.Event()
        if metrics is not None:
            metrics.watch_unfinished(lambda: self._core.unfinished(clock.monotonic()))

    def __len__(self) -> int:
        """Return the number of ready requests."""
        return len(self._core)

    def add(self, request: Request, *, priority: int = 0, after: float = 0.0) -> None:
        """Add a request that becomes ready after `after` seconds; the earliest time applies."""
        if self._shut_down:
            return
        if after > 0 and self._metrics is not None:
            self._metrics.retried()
        self._core.add(request, self._clock.monotonic(), priority=priority, after=after)
        self._notify_workers()

    def add_rate_limited(
        self, request: Request, *, priority: int = 0, max_delay: float = math.inf
    ) -> None:
        """Add the request again with the backoff delay of one more failure."""
        delay = self._backoff.next_delay(request, self._clock.monotonic(), max_delay)
        self.add(request, priority=priority, after=delay)

    def forget(self, request: Request) -> None:
        """Reset the request's backoff; this neither removes it nor ends its work."""
        self._backoff.forget(request)

    def retries(self, request: Request) -> int:
        """Return the number of failures since the backoff was last reset."""
        return self._backoff.failures(request)

    async def next(self) -> tuple[Request, int]:
        """Return the next request and its priority; the caller must call `done` afterwards.

        Raises QueueShutDownError. A worker that is cancelled here has taken nothing.
        """
        while not self._shut_down:
            taken = self._core.take(self._clock.monotonic())
            if taken is not None:
                self._notify_workers()
                return taken
            due = self._core.next_ready_at
            if due is not None and self._sleep is None:
                await self._sleep_until(due)
            else:
                await self._wait_in_line()
        raise QueueShutDownError

    def done(self, request: Request) -> None:
        """End the work on a request, successful or not."""
        self._core.done(request, self._clock.monotonic())
        if self._shut_down and not self._core.in_flight:
            self._drained.set()
        self._notify_workers()

    def shut_down(self) -> None:
        """Stop handing out and accepting requests.

        Queued requests are dropped: the next start lists all objects again.
        """
        self._shut_down = True
        while self._waiters:
            self._notify_first()
        self._end_sleep()
        if not self._core.in_flight:
            self._drained.set()

    async def drained(self) -> None:
        """Return when the queue is shut down and no request is in flight."""
        await self._drained.wait()

    def _notify_workers(self) -> None:
        """Resume one worker for each available item, and one as timekeeper."""
        while self._waiters and self._notified < self._core.takeable:
            self._notify_first()
        due = self._core.next_ready_at
        if self._sleep is None:
            # A resumed worker checks the time itself, or calls this method again.
            if due is not None and self._waiters and not self._notified:
                self._notify_first()
        elif self._notified < self._core.takeable or (due is not None and due < self._sleeps_until):
            self._end_sleep()

    def _notify_first(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.cancelled():
                waiter.set_result(None)
                self._notified += 1
                return

    async def _wait_in_line(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled():
                self._notified -= 1
                self._notify_workers()  # pass the item on to another worker
            raise
        self._notified -= 1

    async def _sleep_until(self, due: float) -> None:
        self._sleeps_until = due
        try:
            async with asyncio.timeout(None) as self._sleep:
                await self._clock.sleep(due - self._clock.monotonic())
        except TimeoutError:
            pass  # the sleep was ended early: there is an item, or an earlier due time
        except asyncio.CancelledError:
            self._sleep = None
            self._notify_workers()  # another worker must become timekeeper
            raise
        self._sleep = None

    def _end_sleep(self) -> None:
        if self._sleep is not None and not self._sleep.expired():
            self._sleep.reschedule(asyncio.get_running_loop().time())
