"""Cancels a task at each of its suspension points in turn.

Only where it waits can a task be cancelled. So each time the work is done anew it is cancelled at
the first wait, of the task or of any that it has started, at which that has not been done before;
when it comes to its end instead, it has been cancelled at every one of them.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, coroutine
from typing import Any, TypeVar

T = TypeVar("T")

Place = tuple[str, int]  # a file, and a line of it
Awaited = asyncio.Future[Any] | None  # None: nothing in particular, the others are to run


@dataclass(frozen=True, slots=True)
class Wait:
    """The n-th time that a task waits in these places, of which each was called by the last."""

    places: tuple[Place, ...]
    n: int

    def __str__(self) -> str:
        return (
            " > ".join(f"{Path(file).name}:{line}" for file, line in self.places) + f" ({self.n})"
        )


class Canceller:
    """Cancels what `run` runs at a wait that has not been tried."""

    def __init__(self, tried: Set[Wait]) -> None:
        self._tried = tried
        self._seen: Counter[tuple[Place, ...]] = Counter()
        self._root: asyncio.Task[Any] | None = None
        self._started: list[asyncio.Task[Any]] = []
        self.has_cancelled = asyncio.Event()
        self.cancelled_at: Wait | None = None

    @property
    def still_running(self) -> list[asyncio.Task[Any]]:
        """The tasks that the work has started, and that have not ended."""
        return [task for task in self._started if not task.done()]

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work in the task that calls this, and that is cancelled when it is time."""
        self._root = asyncio.current_task()
        before = _canceller.set(self)
        try:
            return await _stepped(work, self)
        finally:
            _canceller.reset(before)

    async def end_by_force(self) -> None:
        """End what has not let itself be cancelled, so that a test can fail and need not hang."""
        while running := self.still_running:
            for task in running:
                task.cancel()
            await asyncio.sleep(0)

    def started(self, task: asyncio.Task[Any]) -> None:
        """Take note of a task that the work has started."""
        self._started.append(task)

    def cancels(self, waiting: Coroutine[Any, Any, Any]) -> bool:
        """Whether the cancellation comes at this wait."""
        if self.cancelled_at is not None:
            return False
        places = tuple(_places_of(waiting))
        wait = Wait(places, self._seen[places])
        self._seen[places] += 1
        if wait in self._tried:
            return False
        self.cancelled_at = wait
        self.has_cancelled.set()
        assert self._root is not None
        self._root.cancel()
        return True


_canceller: ContextVar[Canceller | None] = ContextVar("canceller", default=None)


@contextmanager
def watched_tasks() -> Iterator[None]:
    """For the block, a Canceller also sees the tasks that its work starts, and those of theirs."""
    loop = asyncio.get_running_loop()

    def make(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        canceller = _canceller.get()
        if canceller is None:
            return asyncio.Task(work, loop=loop, **options)
        task = asyncio.Task(_run(work, canceller), loop=loop, **options)
        canceller.started(task)
        return task

    loop.set_task_factory(make)  # type: ignore[arg-type]  # options differ between Pythons
    try:
        yield
    finally:
        loop.set_task_factory(None)


async def _run(work: Coroutine[Any, Any, T], canceller: Canceller) -> T:
    return await _stepped(work, canceller)


@coroutine
def _stepped(work: Coroutine[Any, Any, T], canceller: Canceller) -> Generator[Awaited, None, T]:
    """Await the work step by step; at the chosen wait, stay there until the cancellation comes.

    It comes a little later where others hand it on, and the wait might be over by then.
    """
    error: BaseException | None = None
    while True:
        try:
            awaited: Awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        error = None
        try:
            if canceller.cancels(work):
                yield from _until_cancelled(awaited)
            yield awaited
        except BaseException as thrown:  # noqa: BLE001  it is for the work to deal with
            error = thrown


def _until_cancelled(awaited: Awaited) -> Generator[Any, None, None]:
    """Stay until cancelled, then do what a task does: cancel what it waits for, if that helps."""
    try:
        yield from asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        if awaited is None or not awaited.cancel():
            raise


def _places_of(waiting: Any) -> Iterator[Place]:
    """Where a coroutine waits, and the calls that lead there, as far as Python shows them."""
    while waiting is not None:
        frame: FrameType | None = getattr(waiting, "cr_frame", None) or getattr(
            waiting, "gi_frame", None
        )
        if frame is not None:
            yield frame.f_code.co_filename, frame.f_lineno
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
