"""What was found out about an object that nobody changes, for as long as it is the same object."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")


class Memo(Generic[T, V]):
    """Finds something out about each object once; what was asked for first is forgotten first.

    It holds the objects themselves: no other can get the same `id` in the meantime.
    """

    def __init__(self, find: Callable[[T], V], *, most: int) -> None:
        self._find = find
        self._most = most
        self._known: dict[int, tuple[T, V]] = {}

    def of(self, it: T) -> V:
        """What is known about this very object; an exception is not remembered."""
        known = self._known.get(id(it))
        if known is not None:
            return known[1]
        found = self._find(it)
        if len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        self._known[id(it)] = it, found
        return found
