"""Indexed local copy of the objects of one kind. Pure."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.cache.cached_object import CachedObject
from kftrainer.machinery.controller.events import ObjectEvent

T = TypeVar("T")


def is_older(version: str, than: str) -> bool:
    """Return whether one resourceVersion precedes another; False for unknown formats."""
    if not (version.isdecimal() and than.isdecimal()):
        return False
    return (len(version), version) < (len(than), than)


class UnknownIndexError(LookupError):
    """There is no index with this name."""


class Contents(Generic[T]):
    """Entries by namespace and name, and by the values of each index."""

    def __init__(self, index_names: Iterable[str] = ()) -> None:
        self._namespaces: dict[str, dict[str, CachedObject[T]]] = {}
        self._indexes: dict[str, dict[str, dict[ObjectKey, CachedObject[T]]]] = {
            name: {} for name in index_names
        }
        self._count = 0
        self.bytes_held = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[CachedObject[T]]:
        for entries in self._namespaces.values():
            yield from entries.values()

    def get(self, key: ObjectKey) -> CachedObject[T] | None:
        """Return the entry with this key, or None."""
        entries = self._namespaces.get(key.namespace)
        return entries.get(key.name) if entries else None

    def in_namespace(self, namespace: str) -> list[CachedObject[T]]:
        """Return all entries in one namespace."""
        return list(self._namespaces.get(namespace, {}).values())

    def by_index(self, name: str, value: str) -> list[CachedObject[T]]:
        """Return all entries for which the named index function yields this value."""
        return list(self._index(name).get(value, {}).values())

    def index_keys(self, name: str, value: str) -> list[ObjectKey]:
        """Return the keys of the entries with this index value."""
        return list(self._index(name).get(value, ()))

    def has_index(self, name: str, value: str) -> bool:
        """Return whether any entry has this index value."""
        return value in self._index(name)

    def _index(self, name: str) -> dict[str, dict[ObjectKey, CachedObject[T]]]:
        if name not in self._indexes:
            raise UnknownIndexError(f"no index {name!r}; there are: {sorted(self._indexes)}")
        return self._indexes[name]

    def put(self, entry: CachedObject[T]) -> None:
        """Add the entry, replacing an earlier one with the same key."""
        self.remove(entry.key)
        self._namespaces.setdefault(entry.key.namespace, {})[entry.key.name] = entry
        self._count += 1
        self.bytes_held += entry.size
        for index, values in zip(self._indexes.values(), entry.index_values, strict=True):
            for value in values:
                index.setdefault(value, {})[entry.key] = entry

    def remove(self, key: ObjectKey) -> None:
        """Remove the entry with this key, if there is one."""
        entry = self.get(key)
        if entry is None:
            return
        _remove(self._namespaces, key.namespace, key.name)
        self._count -= 1
        self.bytes_held -= entry.size
        for index, values in zip(self._indexes.values(), entry.index_values, strict=True):
            for value in values:
                _remove(index, value, key)


K = TypeVar("K")
V = TypeVar("V")


def _remove(buckets: dict[str, dict[K, V]], name: str, key: K) -> None:
    bucket = buckets[name]
    del bucket[key]
    if not bucket:
        del buckets[name]  # otherwise empty buckets would accumulate


class Store(Generic[T]):
    """The known objects of one kind and their resourceVersion; returns an event per change.

    `upsert`, `delete` and `drop` ignore versions older than the stored one, except that `upsert`
    accepts a re-created object (another UID). `replace` accepts any version.
    """

    def __init__(self, index_names: Iterable[str] = ()) -> None:
        self._index_names = tuple(index_names)
        self.contents: Contents[T] = self.empty_contents()
        self.resource_version = ""

    def empty_contents(self) -> Contents[T]:
        """Return empty contents in which to collect a list for `replace`."""
        return Contents(self._index_names)

    def upsert(self, entry: CachedObject[T]) -> ObjectEvent[T] | None:
        """Store the current state of an object; return None if it is not new."""
        self.advance(entry.resource_version)
        old = self.contents.get(entry.key)
        if old is not None and not _is_newer(entry, old):
            return None
        self.contents.put(entry)
        return ObjectEvent(entry.key, old, entry)

    def delete(self, entry: CachedObject[T]) -> ObjectEvent[T] | None:
        """Remove a deleted object, given its last state; return None if it is not stored."""
        self.advance(entry.resource_version)
        old = self._removed(entry.key, entry.resource_version)
        return ObjectEvent(entry.key, entry, None) if old is not None else None

    def drop(self, key: ObjectKey, resource_version: str) -> ObjectEvent[T] | None:
        """Remove an object that is no longer kept; the event has its last stored state."""
        self.advance(resource_version)
        old = self._removed(key, resource_version)
        return ObjectEvent(key, old, None) if old is not None else None

    def _removed(self, key: ObjectKey, resource_version: str) -> CachedObject[T] | None:
        old = self.contents.get(key)
        if old is None or is_older(resource_version, old.resource_version):
            return None
        self.contents.remove(key)
        return old

    def advance(self, resource_version: str) -> None:
        """Record that all changes up to this version have been received."""
        if not is_older(resource_version, self.resource_version):
            self.resource_version = resource_version or self.resource_version

    def replace(
        self, contents: Contents[T], resource_version: str, *, initial: bool = False
    ) -> Iterator[ObjectEvent[T]]:
        """Replace all objects by those of a list, even if its version is older.

        The contents are replaced at once. The events are computed lazily, deletes first; the
        iterator must be exhausted before the next call. Unchanged objects yield no event.
        """
        before, self.contents = self.contents, contents
        self.resource_version = resource_version
        return _differences(before, contents, initial=initial)


def _is_newer(entry: CachedObject[T], old: CachedObject[T]) -> bool:
    if entry.resource_version and entry.resource_version == old.resource_version:
        return False
    # A re-created object may have a lower version if etcd was restored from a backup.
    return not is_older(entry.resource_version, old.resource_version) or entry.uid != old.uid


def _differences(
    before: Contents[T], after: Contents[T], *, initial: bool
) -> Iterator[ObjectEvent[T]]:
    for old in before:
        if after.get(old.key) is None:
            yield ObjectEvent(old.key, old, None, final_state_unknown=True)
    for new in after:
        known = before.get(new.key)
        if known is None:
            yield ObjectEvent(new.key, None, new, initial)
        elif not new.resource_version or new.resource_version != known.resource_version:
            yield ObjectEvent(new.key, known, new)
