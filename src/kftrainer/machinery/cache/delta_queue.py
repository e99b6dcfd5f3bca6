"""Buffer between the watch and the event handlers, so that reading never blocks.

The API server drops a watcher that does not read for a tenth of a second. Deltas therefore wait
here while handlers are slow; when many wait, only the last one of each object is kept.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.cache.cached_object import CachedObject
from kftrainer.machinery.cache.store import Contents

T = TypeVar("T")

LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Updated(Generic[T]):
    """An object was added or changed."""

    entry: CachedObject[T]


@dataclass(frozen=True, slots=True)
class Removed(Generic[T]):
    """An object was deleted; the entry is its last state."""

    entry: CachedObject[T]


@dataclass(frozen=True, slots=True)
class FilteredOut:
    """An object does not, or no longer, match the filter of the cache."""

    key: ObjectKey
    resource_version: str


@dataclass(frozen=True, slots=True)
class Bookmarked:
    """All changes up to this resourceVersion have been received."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Replaced(Generic[T]):
    """The complete contents as of this resourceVersion."""

    contents: Contents[T]
    resource_version: str


Delta = Updated[T] | Removed[T] | FilteredOut | Bookmarked | Replaced[T]


def _subject(delta: Delta[T]) -> Hashable:
    match delta:
        case Updated(entry) | Removed(entry):
            return entry.key
        case FilteredOut(key):
            return key
        case _:
            return type(delta).__name__


def only_the_last(waiting: deque[Delta[T]]) -> deque[Delta[T]]:
    """Return the last delta of each object, in the order in which these were added."""
    last: dict[Hashable, Delta[T]] = {}
    for delta in waiting:
        subject = _subject(delta)
        last.pop(subject, None)
        last[subject] = delta
    return deque(last.values())


class DeltaQueue(Generic[T]):
    """Ordered deltas for one consumer; holds at most 1000, or two for each object."""

    def __init__(self) -> None:
        self._waiting: deque[Delta[T]] = deque()
        self._limit = LIMIT
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, delta: Delta[T]) -> None:
        """Append a delta."""
        self._waiting.append(delta)
        self._filled.set()
        self._emptied.clear()
        if len(self._waiting) > self._limit:
            self._waiting = only_the_last(self._waiting)
            # If most deltas are for different objects, compaction frees little: raise the limit.
            self._limit = max(LIMIT, 2 * len(self._waiting))

    async def next(self) -> Delta[T]:
        """Return the first delta, waiting for one if needed; call `done` after processing it."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft()

    def done(self) -> None:
        """Mark the last returned delta as processed."""
        if not self._waiting:
            self._emptied.set()

    async def emptied(self) -> None:
        """Wait until all deltas have been processed."""
        await self._emptied.wait()
