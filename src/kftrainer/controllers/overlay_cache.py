"""OverlayCache: the cache plus recent responses of the API server, so that we read our writes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.machinery.cache.cache import Cache, NotCachedError
from kftrainer.machinery.cache.cached_object import CachedObject, CachedObjectFactory
from kftrainer.machinery.cache.reduction import Reduction
from kftrainer.machinery.cache.store import is_older
from kftrainer.machinery.controller.events import ObservedObject
from kftrainer.runtime.cluster_reader import DerivedReader

T = TypeVar("T")

SWEEP_AT = 1_000  # number of stored responses at which those that the cache has are dropped
NO_REDUCTIONS: Mapping[Resource[Any], Reduction] = MappingProxyType({})

Which = tuple[Resource[Any], ObjectKey]


class ReducedObjectError(LookupError):
    """The cache holds only a part of the object, and the complete object is not loaded."""

    def __init__(self, resource: Resource[Any], key: ObjectKey) -> None:
        super().__init__(f"{resource.kind} {key} is large, and was not loaded")


class Scope:
    """Complete objects that can be read from the OverlayCache until the scope is left."""

    def __init__(self, loaded: dict[Which, list[Manifest | None]]) -> None:
        self._loaded = loaded
        self._ours: list[Which] = []
        # Complete objects that were read: one that becomes large meanwhile is read unchanged.
        self.read: dict[Which, ObservedObject[Any]] = {}

    def load(self, resource: Resource[Any], key: ObjectKey, manifest: Manifest | None) -> None:
        """Make the complete object readable; None if it no longer exists."""
        self._ours.append((resource, key))
        self._loaded.setdefault((resource, key), []).append(manifest)

    def unload(self) -> None:
        """Drop the objects, except those that another scope has loaded too."""
        for which in self._ours:
            self._loaded[which].pop(0)
            if not self._loaded[which]:
                del self._loaded[which]
        self._ours.clear()


class OverlayCache:
    """ClusterReader of the cache, overlaid with recent responses of the API server.

    A response is kept until the cache has reached its version. Without it, a reconcile soon after a
    write would not find the written object and would write again.

    Only parts of large objects are cached, see `reductions`. The complete object can be read in a
    scope that has loaded it; without one, reads of a kind in `complete_kinds` raise
    ReducedObjectError.
    """

    def __init__(
        self,
        cache: Cache,
        watched: Collection[Resource[Any]],
        partial: Mapping[Resource[Any], Resource[Any]],
        reductions: Mapping[Resource[Any], Reduction] = NO_REDUCTIONS,
        complete_kinds: Collection[Resource[Any]] = (),
    ) -> None:
        self._cache = cache
        self._watched = frozenset(watched)  # also kinds that are not installed yet
        self._partial = partial  # kinds whose metadata only is cached
        self._complete_kinds = frozenset(complete_kinds)
        self._factories: dict[Resource[Any], CachedObjectFactory[Any]] = {
            each: CachedObjectFactory(each, None, {}, reduction=reductions.get(each))
            for each in watched
        }
        self._seen: dict[Which, CachedObject[Any]] = {}
        self._loaded: dict[Which, list[Manifest | None]] = {}
        self._scopes: dict[ObjectKey, Scope] = {}

    @contextmanager
    def scope(self, key: ObjectKey) -> Iterator[Scope]:
        """Return a context in which loaded objects can be read completely.

        That includes large objects with this key that are written in the context.
        """
        scope = self._scopes[key] = Scope(self._loaded)
        try:
            yield scope
        finally:
            scope.unload()
            del self._scopes[key]

    def watches(self, resource: Resource[Any]) -> bool:
        """Whether the kind is cached, or will be as soon as it is installed."""
        return resource in self._watched

    def is_complete(self, resource: Resource[Any], namespace: str | None = None) -> bool:
        """Whether the kind is installed and its cache is synced, optionally in one namespace."""
        try:
            return self._cache.informer(self._cached(resource)).is_readable(namespace)
        except NotCachedError:
            return False

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object with this key from the cache or a more recent response, or None."""
        if (loaded := self._loaded.get((resource, key))) is not None:
            return None if loaded[-1] is None else resource.decode(loaded[-1])
        found = self._complete_entry(resource, key)
        return None if found is None else found.object

    def manifest(self, resource: Resource[Any], key: ObjectKey) -> Manifest | None:
        """Return the object as it is on the wire, also if it cannot be decoded."""
        if (loaded := self._loaded.get((resource, key))) is not None:
            return loaded[-1]
        found = self._complete_entry(resource, key)
        return None if found is None else found.manifest

    def cached_part(self, resource: Resource[Any], key: ObjectKey) -> Manifest | None:
        """Return the object, or the cached part if it is large."""
        found = self._entry(resource, key)
        return None if found is None else found.manifest

    def is_reduced(self, resource: Resource[Any], key: ObjectKey) -> bool:
        """Whether only a part of the object can be read."""
        if (resource, key) in self._loaded:
            return False
        found = self._entry(resource, key)
        return found is not None and found.is_reduced

    def cached_as(self, resource: Resource[Any]) -> Resource[Any]:
        """Return the resource as it is cached: some kinds, such as Secrets, as metadata only."""
        return self._cached(resource)

    def version(self, resource: Resource[Any], key: ObjectKey) -> str:
        """Return the resourceVersion that the cache has reached in the key's namespace."""
        return self._reached(resource, key)

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """Return the objects in the cache; empty if the kind is not cached."""
        try:
            return self._cache.list(self._cached(resource), namespace)
        except NotCachedError:
            return ()

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Yield the objects that `list` returns, decoded one by one."""
        try:
            return self._cache.iterate(self._cached(resource), namespace)
        except NotCachedError:
            return iter(())

    def record(self, resource: Resource[Any], manifest: Manifest) -> None:
        """Store an object that the API server returned; only metadata of metadata-only kinds."""
        if resource not in self._watched:
            return
        if resource in self._partial:
            manifest = {key: manifest[key] for key in ("apiVersion", "kind", "metadata")}
        if len(self._seen) >= SWEEP_AT:
            for kind, key in list(self._seen):
                self._not_yet_cached(kind, key)
        entry = self._factories[resource].create(manifest)
        self._remember((resource, entry.key), entry)
        self._load((resource, entry.key), entry, manifest)

    def record_for(self, scope_key: ObjectKey, resource: Resource[Any], manifest: Manifest) -> None:
        """Store an object like `record`, and make it readable completely in this scope."""
        self.record(resource, manifest)
        key = key_of(manifest)
        if self.is_reduced(resource, key) and (scope := self._scopes.get(scope_key)) is not None:
            scope.load(resource, key, manifest)

    def _remember(self, which: Which, entry: CachedObject[Any]) -> None:
        """Keep the newest response: concurrent requests may complete in any order."""
        known = self._seen.get(which)
        if known is None or not is_older(entry.resource_version, known.resource_version):
            self._seen[which] = entry

    def _load(self, which: Which, entry: CachedObject[Any], manifest: Manifest) -> None:
        """Replace loaded objects by a newer version."""
        if loaded := self._loaded.get(which):
            known = loaded[-1]
            if known is None or not is_older(entry.resource_version, _version(known)):
                self._loaded[which] = [manifest] * len(loaded)
        elif entry.is_reduced and (scope := self._scopes.get(entry.key)) is not None:
            scope.load(*which, manifest)

    def _cached(self, resource: Resource[Any]) -> Resource[Any]:
        return self._partial.get(resource, resource)

    def _complete_entry(self, resource: Resource[T], key: ObjectKey) -> ObservedObject[T] | None:
        found, scope = self._entry(resource, key), self._scopes.get(key)
        if found is None or not found.is_reduced:
            if found is not None and scope is not None:
                scope.read[resource, key] = found
            return found
        if resource not in self._complete_kinds:
            return found
        if scope is not None and (resource, key) in scope.read:
            return scope.read[resource, key]
        raise ReducedObjectError(resource, key)

    def _entry(self, resource: Resource[T], key: ObjectKey) -> ObservedObject[T] | None:
        """Return the latest version of the object, from the cache or a response."""
        if (seen := self._not_yet_cached(resource, key)) is not None:
            return seen
        try:
            return self._cache.informer(self._cached(resource)).cached_object(key)
        except NotCachedError:
            return None

    def _not_yet_cached(self, resource: Resource[Any], key: ObjectKey) -> CachedObject[Any] | None:
        """Return the stored response, unless the cache has reached its version."""
        seen = self._seen.get((resource, key))
        if seen is None:
            return None
        if is_older(self._reached(resource, key), seen.resource_version):
            return seen
        del self._seen[resource, key]
        return None

    def _reached(self, resource: Resource[Any], key: ObjectKey) -> str:
        """Return the resourceVersion that the cache of the kind has reached."""
        return self._cache.informer(self._cached(resource)).version_in(key.namespace)


class CachedParts(DerivedReader):
    """ClusterReader for event handlers, which cannot load large objects: returns cached parts.

    The cached part of every TrainJob includes its runtimeRef and whether it has finished; that of
    every JobSet, whether it is suspended.
    """

    def __init__(self, view: OverlayCache) -> None:
        super().__init__(view)
        self._view = view

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object, or its cached part, or None."""
        found = self._view.cached_part(resource, key)
        return None if found is None else resource.decode(found)


def _version(manifest: Manifest) -> str:
    version: str = manifest["metadata"]["resourceVersion"]
    return version
