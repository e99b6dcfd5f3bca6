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
class Arrived(Generic[T]):
    """An object was added or changed."""

    entry: CachedObject[T]


@dataclass(frozen=True, slots=True)
class Gone(Generic[T]):
    """An object was deleted; the entry is its last state."""

    entry: CachedObject[T]


@dataclass(frozen=True, slots=True)
class Unwanted:
    """An object does not, or no longer, match the filter of the cache."""

    key: ObjectKey
    resource_version: str


@dataclass(frozen=True, slots=True)
class Reached:
    """All changes up to this resourceVersion have been received."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Replaced(Generic[T]):
    """The complete contents as of this resourceVersion."""

    contents: Contents[T]
    resource_version: str


News = Arrived[T] | Gone[T] | Unwanted | Reached | Replaced[T]


def _subject(news: News[T]) -> Hashable:
    match news:
        case Arrived(entry) | Gone(entry):
            return entry.key
        case Unwanted(key):
            return key
        case _:
            return type(news).__name__


def only_the_last(waiting: deque[News[T]]) -> deque[News[T]]:
    """Return the last delta of each object, in the order in which these were added."""
    last: dict[Hashable, News[T]] = {}
    for news in waiting:
        subject = _subject(news)
        last.pop(subject, None)
        last[subject] = news
    return deque(last.values())


class DeltaQueue(Generic[T]):
    """Ordered deltas for one consumer; holds at most 1000, or two for each object."""

    def __init__(self) -> None:
        self._waiting: deque[News[T]] = deque()
        self._limit = LIMIT
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, news: News[T]) -> None:
        """Append a delta."""
        self._waiting.append(news)
        self._filled.set()
        self._emptied.clear()
        if len(self._waiting) > self._limit:
            self._waiting = only_the_last(self._waiting)
            # If most deltas are for different objects, compaction frees little: raise the limit.
            self._limit = max(LIMIT, 2 * len(self._waiting))

    async def next(self) -> News[T]:
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
