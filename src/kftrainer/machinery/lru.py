"""A mapping of limited size that drops the least recently used entry."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Holds the values of the most recently used keys."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value, or None if it was dropped; reading counts as use."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Store the value, dropping the least recently used one if there are too many."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._capacity:
            self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Remove the value, if there is one."""
        self._values.pop(key, None)

    def __len__(self) -> int:
        return len(self._values)
