"""Read access to existing objects for planning and validation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of

T = TypeVar("T")


class ClusterReader(Protocol):
    """Synchronous, read-only access to objects: a cache, or objects from files."""

    def is_complete(self, resource: Resource[Any]) -> bool:
        """Whether an object of this kind that is not found does not exist.

        False if the objects are not known: for a kind that is not watched, not installed or not
        synced yet, and for a kind of which no file was given.
        """
        ...

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object with this key; None if it does not exist or the kind is unknown."""
        ...

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """Return all objects of the kind, or of one namespace; empty if the kind is unknown."""
        ...

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Yield the objects that `list` returns, decoded one by one; for large lists."""
        ...


class DerivedReader:
    """ClusterReader that reads from another one; subclasses override what they change."""

    def __init__(self, reader: ClusterReader) -> None:
        self._reader = reader

    def is_complete(self, resource: Resource[Any]) -> bool:
        """Whether an object of this kind that is not found does not exist."""
        return self._reader.is_complete(resource)

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object with this key, or None."""
        return self._reader.get(resource, key)

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """Return all objects of the kind, or of one namespace."""
        return self._reader.list(resource, namespace)

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Yield the objects that `list` returns, decoded one by one."""
        return self._reader.iterate(resource, namespace)


class GivenObjects:
    """ClusterReader of given manifests; kinds without a manifest are unknown.

    Of the `complete` kinds, objects that are not given do not exist.
    """

    def __init__(
        self, manifests: Iterable[Manifest] = (), *, complete: Iterable[Resource[Any]] = ()
    ) -> None:
        self._complete = {(each.api_version, each.kind) for each in complete}
        self._kinds: dict[tuple[str, str], dict[ObjectKey, Manifest]] = {}
        for manifest in manifests:
            kind = (manifest["apiVersion"], manifest["kind"])
            self._kinds.setdefault(kind, {})[key_of(manifest)] = manifest

    def is_complete(self, resource: Resource[Any]) -> bool:
        """Whether a manifest of this kind was given, or the kind is complete without one."""
        kind = (resource.api_version, resource.kind)
        return kind in self._kinds or kind in self._complete

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the given object with this key, or None."""
        found = self._of(resource).get(key)
        return None if found is None else resource.decode(found)

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """Return the given objects of the kind."""
        return [*self.iterate(resource, namespace)]

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Yield the given objects of the kind, decoded one by one."""
        for key, manifest in self._of(resource).items():
            if namespace is None or key.namespace == namespace:
                yield resource.decode(manifest)

    def _of(self, resource: Resource[Any]) -> Mapping[ObjectKey, Manifest]:
        return self._kinds.get((resource.api_version, resource.kind), {})


NO_OBJECTS = GivenObjects()
