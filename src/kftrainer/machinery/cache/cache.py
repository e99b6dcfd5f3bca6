"""All informers of a process behind one read interface."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.machinery.cache.multi_namespace import AnyInformer

T = TypeVar("T")


class NotCachedError(LookupError):
    """No informer for this kind was added to the cache."""


class NotSyncedError(NotCachedError):
    """The first list has not completed, so a missing object may exist on the server."""


class Cache:
    """Synchronous reads of all kinds that were added; never opens a watch by itself."""

    name = "cache"

    def __init__(self, *, sync_timeout: float = 120.0) -> None:
        self._sync_timeout = sync_timeout
        self._informers: dict[Resource[Any], AnyInformer[Any]] = {}
        self._start: Callable[[AnyInformer[Any]], None] | None = None

    def add(self, informer: AnyInformer[Any]) -> None:
        """Add the informer of a kind; if the cache is running, start it at once."""
        if informer.resource in self._informers:
            raise ValueError(f"{informer.resource.group_kind} already has an informer")
        self._informers[informer.resource] = informer
        if self._start is not None:
            self._start(informer)

    def informer(self, resource: Resource[T]) -> AnyInformer[T]:
        """Return the informer of a kind, for example to add handlers."""
        try:
            return cast("AnyInformer[T]", self._informers[resource])
        except KeyError:
            raise NotCachedError(
                f"{resource.group_kind} is not cached: add an informer of it at the start"
            ) from None

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object with this key, or None."""
        return self._synced(resource).get(key)

    def by_index(self, resource: Resource[T], name: str, value: str) -> list[T]:
        """Return the objects for which the named index function yields this value."""
        return self._synced(resource).by_index(name, value)

    def index_keys(self, resource: Resource[Any], name: str, value: str) -> list[ObjectKey]:
        """Return the keys of the objects with this index value, without decoding them."""
        return self._synced(resource).index_keys(name, value)

    def has_index(self, resource: Resource[T], name: str, value: str) -> bool:
        """Return whether any object has this index value."""
        return self._synced(resource).has_index(name, value)

    def list(self, resource: Resource[T], namespace: str | None = None) -> list[T]:
        """Return all objects of a kind, or those in one namespace."""
        return self._synced(resource).list(namespace)

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Iterate over the objects of a kind; each is decoded when the iterator reaches it."""
        return self._synced(resource).iterate(namespace)

    def _synced(self, resource: Resource[T]) -> AnyInformer[T]:
        informer = self.informer(resource)
        if not informer.has_synced:
            raise NotSyncedError(f"{informer.name} has not synced yet")
        return informer

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Run all informers; call `ready` when those added before the start have synced.

        Raises NotSyncedError, within an ExceptionGroup, if that takes longer than the timeout.
        """
        async with asyncio.TaskGroup() as tasks:

            def start(informer: AnyInformer[Any]) -> None:
                tasks.create_task(informer.run(_nothing, stop), name=informer.name)

            for informer in self._informers.values():
                start(informer)
            self._start = start
            try:
                announcing = tasks.create_task(self._announce(ready), name="cache: announce")
                await stop.wait()
                announcing.cancel()
            finally:
                self._start = None

    async def _announce(self, ready: Callable[[], None]) -> None:
        await self.wait_synced()
        ready()

    async def wait_synced(self) -> None:
        """Wait until all informers added so far have synced.

        Raises NotSyncedError if that takes longer than the timeout.
        """
        informers = tuple(self._informers.values())
        try:
            async with asyncio.timeout(self._sync_timeout):
                for informer in informers:
                    await informer.wait_synced()
        except TimeoutError:
            missing = (each.resource.group_kind for each in informers if not each.has_synced)
            raise NotSyncedError(
                f"the cache has waited {self._sync_timeout:g} s for {', '.join(missing)}: "
                "check that the kind is installed and that it may be listed and watched"
            ) from None


def _nothing() -> None:
    """Ignore the readiness of a single informer."""
