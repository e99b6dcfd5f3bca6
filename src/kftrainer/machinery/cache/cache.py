"""The informers of a process, as one place to read from."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.machinery.cache.multi_namespace import AnyInformer

T = TypeVar("T")


class NotCachedError(LookupError):
    """Nobody has declared that objects of this kind are read from the cache."""


class NotSyncedError(NotCachedError):
    """The objects have not been listed yet: that one is not here would mean nothing."""


class Cache:
    """Synchronous reads of all kinds that were declared; never opens a watch by itself."""

    name = "cache"

    def __init__(self, *, sync_timeout: float = 120.0) -> None:
        self._sync_timeout = sync_timeout
        self._informers: dict[Resource[Any], AnyInformer[Any]] = {}
        self._start: Callable[[AnyInformer[Any]], None] | None = None

    def add(self, informer: AnyInformer[Any]) -> None:
        """Declare a kind; while the cache runs its informer is started at once."""
        if informer.resource in self._informers:
            raise ValueError(f"there is an informer of {informer.resource.group_kind} already")
        self._informers[informer.resource] = informer
        if self._start is not None:
            self._start(informer)

    def informer(self, resource: Resource[T]) -> AnyInformer[T]:
        """The informer of a kind, to add handlers to."""
        try:
            return cast("AnyInformer[T]", self._informers[resource])
        except KeyError:
            raise NotCachedError(
                f"{resource.group_kind} is not cached: add an informer of it at the start"
            ) from None

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """The object of this key, if there is one."""
        return self._synced(resource).get(key)

    def by_index(self, resource: Resource[T], name: str, value: str) -> list[T]:
        """The objects for which the index function of this name gives this value."""
        return self._synced(resource).by_index(name, value)

    def index_keys(self, resource: Resource[Any], name: str, value: str) -> list[ObjectKey]:
        """The keys of these objects; nothing is decoded."""
        return self._synced(resource).index_keys(name, value)

    def has_index(self, resource: Resource[T], name: str, value: str) -> bool:
        """Whether there is any such object."""
        return self._synced(resource).has_index(name, value)

    def list(self, resource: Resource[T], namespace: str | None = None) -> list[T]:
        """All objects of a kind, or those of a namespace."""
        return self._synced(resource).list(namespace)

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """The same objects, each decoded when it is asked for."""
        return self._synced(resource).iterate(namespace)

    def _synced(self, resource: Resource[T]) -> AnyInformer[T]:
        informer = self.informer(resource)
        if not informer.has_synced:
            raise NotSyncedError(f"{informer.name} has not synced yet")
        return informer

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Run all informers; ready when those that were there at the start have synced.

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
        """Wait until all kinds that have been declared by now can be read.

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
                "is the kind installed, and may we list and watch it?"
            ) from None


def _nothing() -> None:
    """One informer's readiness is not the cache's."""
