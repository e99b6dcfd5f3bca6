"""Between who reads from the server and who tells the handlers: the reader never has to wait.

A server gives a watcher that does not read a tenth of a second, then drops it. So when handlers
are slow the news wait here; when many wait, only the last of each object is kept.
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
    """An object is new or has changed."""

    entry: CachedObject[T]


@dataclass(frozen=True, slots=True)
class Gone(Generic[T]):
    """An object was deleted in this state."""

    entry: CachedObject[T]


@dataclass(frozen=True, slots=True)
class Unwanted:
    """An object is not, or no longer, one of those that are kept."""

    key: ObjectKey
    resource_version: str


@dataclass(frozen=True, slots=True)
class Reached:
    """There is no more news up to this version."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Replaced(Generic[T]):
    """These are all objects, as of this version."""

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
    """The last news of each subject, in the order in which these came."""
    last: dict[Hashable, News[T]] = {}
    for news in waiting:
        subject = _subject(news)
        last.pop(subject, None)
        last[subject] = news
    return deque(last.values())


class DeltaQueue(Generic[T]):
    """News in order, for one consumer; holds no more than a thousand, or two of each object."""

    def __init__(self) -> None:
        self._waiting: deque[News[T]] = deque()
        self._limit = LIMIT
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, news: News[T]) -> None:
        """Add to the end."""
        self._waiting.append(news)
        self._filled.set()
        self._emptied.clear()
        if len(self._waiting) > self._limit:
            self._waiting = only_the_last(self._waiting)
            # If most are of different objects little was won: wait until it is worth the work.
            self._limit = max(LIMIT, 2 * len(self._waiting))

    async def next(self) -> News[T]:
        """Take the first, as soon as there is one; `done` must follow."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft()

    def done(self) -> None:
        """What was taken has been dealt with."""
        if not self._waiting:
            self._emptied.set()

    async def emptied(self) -> None:
        """Wait until all that was put in has been dealt with."""
        await self._emptied.wait()
