"""What a work queue decides: who is next, who waits, who is being worked on; pure, told the time.

A request is never handed out twice at once. However often it is added before it is handed out, it
is handed out once; when it is added while it is being worked on, once more after that is done.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kftrainer.machinery.controller.reconcile import Request

# One turn in so many goes to who has waited longest, once it has waited so many seconds: a steady
# stream of urgent requests must not keep the others waiting for ever.
PATIENCE = 10.0
TURNS = 10

_NOWHERE = -1
_FEWEST_TO_TIDY = 64


class QueueObserver(Protocol):
    """Is told what happens in a queue; the metrics are one."""

    def depth(self, priority: int, delta: int, /) -> None:
        """The number of ready requests of a priority has changed."""
        ...

    def added(self) -> None:
        """A request has become ready."""
        ...

    def handed_out(self, waited: float, /) -> None:
        """A request has been handed out, so many seconds after it was ready."""
        ...

    def done(self, worked: float, /) -> None:
        """The work on a request has ended after so many seconds."""
        ...

    def retried(self) -> None:
        """A request has been added for later."""
        ...

    def watch_unfinished(self, ages: Callable[[], Sequence[float]], /) -> None:
        """From now on `ages` tells how long each request in work has been in work."""
        ...


@dataclass(slots=True, eq=False)
class _Entry:
    """A request that is to be handed out, now or later."""

    request: Request
    priority: int
    ready_at: float = math.inf
    ready: bool = False
    place: int = _NOWHERE  # new whenever it moves, and so the order of those that became ready


class _Heap:
    """Entries by a number, the least first; those that have moved on since are passed over."""

    def __init__(self) -> None:
        self._items: list[tuple[float, int, _Entry]] = []
        self._tidy_at = _FEWEST_TO_TIDY

    def push(self, number: float, entry: _Entry) -> None:
        heapq.heappush(self._items, (number, entry.place, entry))
        if len(self._items) > self._tidy_at:
            self._items = [item for item in self._items if item[2].place == item[1]]
            heapq.heapify(self._items)
            self._tidy_at = max(_FEWEST_TO_TIDY, 2 * len(self._items))

    def first(self) -> _Entry | None:
        items = self._items
        while items:
            _, place, entry = items[0]
            if entry.place == place:
                return entry
            heapq.heappop(items)
        return None


class QueueCore:
    """The queue without any waiting; a shell lends it a clock and those who wait."""

    def __init__(self, observer: QueueObserver | None = None) -> None:
        self._observer = observer
        self._places = itertools.count()
        self._entries: dict[Request, _Entry] = {}
        self._in_flight: dict[Request, float] = {}
        self._waiting = _Heap()
        # Those that can be handed out. An entry whose request is in flight is in neither of them.
        self._by_urgency = _Heap()
        self._by_age = _Heap()
        self._ready = 0
        self._takeable = 0
        self._passed_over = 0

    def __len__(self) -> int:
        """How many are ready, with those whose request is in flight."""
        return self._ready

    @property
    def takeable(self) -> int:
        """How many could be handed out now, as far as it has been told the time."""
        return self._takeable

    @property
    def in_flight(self) -> int:
        """How many are being worked on."""
        return len(self._in_flight)

    @property
    def next_ready_at(self) -> float | None:
        """When the first of those that wait for their time becomes ready."""
        entry = self._waiting.first()
        return None if entry is None else entry.ready_at

    def unfinished(self, now: float) -> list[float]:
        """How long each request in work has been in work."""
        return [now - since for since in self._in_flight.values()]

    def add(self, request: Request, now: float, *, priority: int = 0, after: float = 0.0) -> None:
        """Hand it out after so many seconds.

        Of several times the earliest counts, and of several priorities the highest.
        """
        self.mature(now)
        entry = self._entries.get(request)
        if entry is None:
            entry = self._entries[request] = _Entry(request, priority)
        elif priority > entry.priority:
            self._raise_to(priority, entry)
        ready_at = now + after
        if not entry.ready and ready_at < entry.ready_at:
            entry.ready_at = max(now, ready_at)
            if ready_at <= now:
                self._make_ready(entry)
            else:
                entry.place = next(self._places)
                self._waiting.push(ready_at, entry)

    def take(self, now: float) -> tuple[Request, int] | None:
        """The request whose turn it is, and its priority; it is in flight until it is done."""
        self.mature(now)
        entry = self._whose_turn(now)
        if entry is None:
            return None
        entry.place = _NOWHERE
        del self._entries[entry.request]
        self._in_flight[entry.request] = now
        self._ready -= 1
        self._takeable -= 1
        if self._observer is not None:
            self._observer.depth(entry.priority, -1)
            self._observer.handed_out(now - entry.ready_at)
        return entry.request, entry.priority

    def done(self, request: Request, now: float) -> None:
        """The work has ended; if it was added meanwhile it can be handed out again."""
        worked = now - self._in_flight.pop(request)
        if self._observer is not None:
            self._observer.done(worked)
        entry = self._entries.get(request)
        if entry is not None and entry.ready:
            self._let_take(entry)

    def mature(self, now: float) -> None:
        """Those whose time has come become ready, in the order of their times."""
        while (entry := self._waiting.first()) is not None and entry.ready_at <= now:
            self._make_ready(entry)

    def _make_ready(self, entry: _Entry) -> None:
        entry.ready = True
        entry.place = next(self._places)
        self._ready += 1
        if self._observer is not None:
            self._observer.added()
            self._observer.depth(entry.priority, 1)
        if entry.request not in self._in_flight:
            self._let_take(entry)

    def _let_take(self, entry: _Entry) -> None:
        self._takeable += 1
        self._by_urgency.push(-entry.priority, entry)
        self._by_age.push(entry.ready_at, entry)

    def _raise_to(self, priority: int, entry: _Entry) -> None:
        lower, entry.priority = entry.priority, priority
        if not entry.ready:
            return
        entry.place = next(self._places)
        if self._observer is not None:
            self._observer.depth(lower, -1)
            self._observer.depth(priority, 1)
        if entry.request not in self._in_flight:
            self._takeable -= 1
            self._let_take(entry)

    def _whose_turn(self, now: float) -> _Entry | None:
        urgent = self._by_urgency.first()
        oldest = self._by_age.first()
        if oldest is urgent or oldest is None or now - oldest.ready_at < PATIENCE:
            return urgent
        self._passed_over = (self._passed_over + 1) % TURNS
        return urgent if self._passed_over else oldest
