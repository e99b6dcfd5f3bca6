"""Memo: a bounded cache of values computed from immutable objects, keyed by identity."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")


class Memo(Generic[T, V]):
    """Compute a value once per object; the oldest entry is dropped first.

    It keeps references to the objects, so that no other object can get the same `id`.
    """

    def __init__(self, find: Callable[[T], V], *, most: int) -> None:
        self._find = find
        self._most = most
        self._known: dict[int, tuple[T, V]] = {}

    def of(self, it: T) -> V:
        """Return the value of this object; exceptions are not cached."""
        known = self._known.get(id(it))
        if known is not None:
            return known[1]
        found = self._find(it)
        if len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        self._known[id(it)] = it, found
        return found
