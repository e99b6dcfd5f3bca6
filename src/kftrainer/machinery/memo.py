"""Memo: a bounded cache of values computed from immutable objects, keyed by identity."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")


class Memo(Generic[T, V]):
    """Compute a value once per object; the oldest entry is dropped first.

    It keeps references to the objects, so that no other object can get the same `id`. `size`
    measures how much memory an entry takes; together they have at most `most_size`, so that large
    objects, which each garbage collection would traverse, are not kept.
    """

    def __init__(
        self,
        find: Callable[[T], V],
        *,
        most: int,
        size: Callable[[V], int] | None = None,
        most_size: int = 0,
    ) -> None:
        self._find = find
        self._most = most
        self._size = size or (lambda _: 0)
        self._most_size = most_size
        self._known: dict[int, tuple[T, V]] = {}
        self._total = 0

    def of(self, it: T) -> V:
        """Return the value of this object; exceptions are not cached."""
        known = self._known.get(id(it))
        if known is not None:
            return known[1]
        found = self._find(it)
        size = self._size(found)
        if size > self._most_size:
            return found
        while len(self._known) >= self._most or self._total + size > self._most_size:
            _, oldest = self._known.pop(next(iter(self._known)))
            self._total -= self._size(oldest)
        self._known[id(it)] = it, found
        self._total += size
        return found
