"""What the manager knows of the cluster, with what the server has just told it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from kftrainer.kube.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.machinery.cache import Cache, NotCachedError
from kftrainer.machinery.store import is_older

T = TypeVar("T")

SWEEP_AT = 1_000  # answers that are remembered before those that the cache knows are forgotten


class View:
    """Reads from the cache, which lags: what we wrote or asked for is remembered until it has it.

    Without that, a reconcile that comes soon after a write would not see it, and write again.
    """

    def __init__(
        self,
        cache: Cache,
        watched: Collection[Resource[Any]],
        partial: Mapping[Resource[Any], Resource[Any]],
    ) -> None:
        self._cache = cache
        self._watched = frozenset(watched)  # as soon as they are installed
        self._partial = partial  # kinds of which only the metadata is cached
        self._seen: dict[tuple[Resource[Any], ObjectKey], Manifest] = {}

    def watches(self, resource: Resource[Any]) -> bool:
        """Whether the kind is cached, or will be as soon as it is installed."""
        return resource in self._watched

    def knows(self, resource: Resource[Any]) -> bool:
        """Whether the kind is cached, and has been read."""
        try:
            return self._cache.informer(self._cached(resource)).has_synced
        except NotCachedError:
            return False

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """The object of this key, as the cache has it or as we were told since."""
        seen = self._not_yet_cached(resource, key)
        if seen is not None:
            return resource.decode(seen)
        try:
            return self._cache.get(self._cached(resource), key)
        except NotCachedError:
            return None

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """The objects in the cache."""
        try:
            return self._cache.list(self._cached(resource), namespace)
        except NotCachedError:
            return ()

    def saw(self, resource: Resource[Any], manifest: Manifest) -> None:
        """Remember an object as the server answered it; of a Secret, not what is in it."""
        if resource not in self._watched:
            return
        if resource in self._partial:
            manifest = {key: manifest[key] for key in ("apiVersion", "kind", "metadata")}
        if len(self._seen) >= SWEEP_AT:
            for kind, key in list(self._seen):
                self._not_yet_cached(kind, key)
        self._remember((resource, key_of(manifest)), manifest)

    def _remember(self, which: tuple[Resource[Any], ObjectKey], manifest: Manifest) -> None:
        """Keep the newest: several may ask for an object, and answers come in any order."""
        known = self._seen.get(which)
        if known is None or not is_older(_version(manifest), _version(known)):
            self._seen[which] = manifest

    def _cached(self, resource: Resource[Any]) -> Resource[Any]:
        return self._partial.get(resource, resource)

    def _not_yet_cached(self, resource: Resource[Any], key: ObjectKey) -> Manifest | None:
        """What we saw, unless the cache has come that far: then it knows, or knows better."""
        seen = self._seen.get((resource, key))
        if seen is None:
            return None
        if is_older(self._reached(resource, key), _version(seen)):
            return seen
        del self._seen[resource, key]
        return None

    def _reached(self, resource: Resource[Any], key: ObjectKey) -> str:
        """Up to which version the cache knows everything about the kind."""
        return self._cache.informer(self._cached(resource)).version_in(key.namespace)


def _version(manifest: Manifest) -> str:
    version: str = manifest["metadata"]["resourceVersion"]
    return version
