"""Work queue decisions: which request is next, waiting or in flight. Pure.

A request is never handed out twice at the same time. If it is added several times before it is
handed out, it is handed out once. If it is added while it is in flight, it is handed out once more
after it is done. `_entries` corresponds to the dirty set of client-go's queue, and `_in_flight` to
its processing set.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kftrainer.machinery.controller.reconcile import Request

# One in TURNS requests is the oldest one, if it has been ready for PATIENCE seconds: a steady
# stream of high-priority requests must not starve the others.
PATIENCE = 10.0
TURNS = 10

_NOWHERE = -1
_FEWEST_TO_TIDY = 64


class QueueObserver(Protocol):
    """Receives the events of a queue, for example to update metrics."""

    def depth(self, priority: int, delta: int, /) -> None:
        """The number of ready requests of a priority changed by `delta`."""
        ...

    def added(self) -> None:
        """A request became ready."""
        ...

    def handed_out(self, waited: float, /) -> None:
        """A request was handed out `waited` seconds after it became ready."""
        ...

    def done(self, worked: float, /) -> None:
        """The work on a request ended after `worked` seconds."""
        ...

    def retried(self) -> None:
        """A request was added with a delay."""
        ...

    def watch_unfinished(self, ages: Callable[[], Sequence[float]], /) -> None:
        """Register a function that returns the ages in seconds of the requests in flight."""
        ...


@dataclass(slots=True, eq=False)
class _Entry:
    """A request that is ready or delayed."""

    request: Request
    priority: int
    ready_at: float = math.inf
    ready: bool = False
    place: int = _NOWHERE  # changes with each move; orders the entries that became ready


class _Heap:
    """Entries ordered by a number, lowest first; entries that moved since are skipped."""

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
    """The queue without waiting; `WorkQueue` adds the clock and the waiting workers."""

    def __init__(self, observer: QueueObserver | None = None) -> None:
        self._observer = observer
        self._places = itertools.count()
        self._entries: dict[Request, _Entry] = {}
        self._in_flight: dict[Request, float] = {}
        self._waiting = _Heap()
        # Entries that can be handed out. An entry whose request is in flight is in neither heap.
        self._by_urgency = _Heap()
        self._by_age = _Heap()
        self._ready = 0
        self._takeable = 0
        self._passed_over = 0

    def __len__(self) -> int:
        """Return the number of ready requests, including those that are also in flight."""
        return self._ready

    @property
    def takeable(self) -> int:
        """Number of requests that can be handed out, as of the last call with a time."""
        return self._takeable

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return len(self._in_flight)

    @property
    def next_ready_at(self) -> float | None:
        """Time at which the first delayed request becomes ready, or None."""
        entry = self._waiting.first()
        return None if entry is None else entry.ready_at

    def unfinished(self, now: float) -> list[float]:
        """Return how long each request in flight has been worked on, in seconds."""
        return [now - since for since in self._in_flight.values()]

    def add(self, request: Request, now: float, *, priority: int = 0, after: float = 0.0) -> None:
        """Add a request that becomes ready after the given number of seconds.

        If it is already queued, the earlier time and the higher priority apply.
        """
        self.promote_due(now)
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
        """Return the next request and its priority, or None; it is in flight until `done`."""
        self.promote_due(now)
        entry = self._next_entry(now)
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
        """End the work on a request; if it was added meanwhile it can be handed out again."""
        worked = now - self._in_flight.pop(request)
        if self._observer is not None:
            self._observer.done(worked)
        entry = self._entries.get(request)
        if entry is not None and entry.ready:
            self._make_takeable(entry)

    def promote_due(self, now: float) -> None:
        """Make the delayed requests ready that are due, in the order of their times."""
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
            self._make_takeable(entry)

    def _make_takeable(self, entry: _Entry) -> None:
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
            self._make_takeable(entry)

    def _next_entry(self, now: float) -> _Entry | None:
        urgent = self._by_urgency.first()
        oldest = self._by_age.first()
        if oldest is urgent or oldest is None or now - oldest.ready_at < PATIENCE:
            return urgent
        self._passed_over = (self._passed_over + 1) % TURNS
        return urgent if self._passed_over else oldest
