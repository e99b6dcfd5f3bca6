"""One kind in selected namespaces: an informer for each, read as one."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import or_
from typing import Generic, TypeVar

from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.machinery.cache.informer import ChangeHandler, Informer
from kftrainer.machinery.controller.events import ObservedObject

T = TypeVar("T")


class MultiNamespaceInformer(Generic[T]):
    """Informers of one kind by namespace; objects in other namespaces are not visible.

    For accounts that may not read the kind in all namespaces: permission in each of the namespaces
    is sufficient. Events of one namespace are ordered; events of different namespaces are not.

    A namespace that does not exist or in which reads are forbidden does not block the others: its
    informer retries until reads succeed.
    """

    def __init__(self, resource: Resource[T], informers: Mapping[str, Informer[T]]) -> None:
        self.resource = resource
        self._informers = informers
        self._new_handlers: asyncio.Queue[tuple[Sequence[asyncio.Event], asyncio.Event]] = (
            asyncio.Queue()
        )

    @property
    def name(self) -> str:
        """Name for logs and error messages."""
        return f"informer of {self.resource.group_kind} in {', '.join(self._informers)}"

    @property
    def has_synced(self) -> bool:
        """Whether at least one informer has synced and the others have synced or are refused."""
        synced = [each.has_synced for each in self._informers.values()]
        refused = [each.refusal is not None for each in self._informers.values()]
        return any(synced) and all(map(or_, synced, refused))

    async def wait_synced(self) -> None:
        """Wait until `has_synced` is true."""
        for informer in self._informers.values():
            await informer.wait_settled()
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(each.wait_synced()) for each in self._informers.values()]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()

    def is_readable(self, namespace: str | None = None) -> bool:
        """Return whether a missing object does not exist, in one namespace or in any of them."""
        if namespace is None:
            informers = [*self._informers.values()]
        else:
            informers = [each for name, each in self._informers.items() if name == namespace]
        return any(each.is_readable() for each in informers)

    def version_in(self, namespace: str) -> str:
        """Return the resourceVersion of a namespace's informer; empty if there is none."""
        informer = self._informers.get(namespace)
        return informer.resource_version if informer is not None else ""

    def get(self, key: ObjectKey) -> T | None:
        """Return the object with this key, or None."""
        informer = self._informers.get(key.namespace)
        return informer.get(key) if informer is not None else None

    def cached_object(self, key: ObjectKey) -> ObservedObject[T] | None:
        """Return the undecoded object with this key, or None."""
        informer = self._informers.get(key.namespace)
        return informer.cached_object(key) if informer is not None else None

    def by_index(self, name: str, value: str) -> list[T]:
        """Return the objects for which the named index function yields this value."""
        return [found for each in self._informers.values() for found in each.by_index(name, value)]

    def index_keys(self, name: str, value: str) -> list[ObjectKey]:
        """Return the keys of the objects with this index value, without decoding them."""
        return [key for each in self._informers.values() for key in each.index_keys(name, value)]

    def has_index(self, name: str, value: str) -> bool:
        """Return whether any object has this index value."""
        return any(each.has_index(name, value) for each in self._informers.values())

    def list(self, namespace: str | None = None) -> list[T]:
        """Return all objects, or those in one namespace."""
        return [*self.iterate(namespace)]

    def iterate(self, namespace: str | None = None) -> Iterator[T]:
        """Iterate over the objects; each is decoded when the iterator reaches it."""
        return chain.from_iterable(each.iterate(namespace) for each in self._informers.values())

    def add_handler(self, handler: ChangeHandler[T]) -> asyncio.Event:
        """Call the handler for all objects and then for each change, while the informers run.

        The returned event is set when all informers have called the handler for the objects that
        they hold already.
        """
        called = asyncio.Event()
        parts = [each.add_handler(handler) for each in self._informers.values()]
        if all(part.is_set() for part in parts):
            called.set()
        else:
            self._new_handlers.put_nowait((parts, called))
        return called

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Run all informers until `stop` is set; call `ready` when `has_synced` is true."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run(_nothing, stop), name=informer.name)
            helpers = (
                tasks.create_task(self._announce(ready), name=f"{self.name}: announce"),
                tasks.create_task(self._await_new_handlers(), name=f"{self.name}: new handlers"),
            )
            await stop.wait()
            for task in helpers:
                task.cancel()

    async def _announce(self, ready: Callable[[], None]) -> None:
        await self.wait_synced()
        ready()

    async def _await_new_handlers(self) -> None:
        """Set a late handler's event when all informers have called it for their objects."""
        while True:
            parts, called = await self._new_handlers.get()
            for part in parts:
                await part.wait()
            called.set()


AnyInformer = Informer[T] | MultiNamespaceInformer[T]


def in_namespaces(
    resource: Resource[T],
    namespaces: Iterable[str],
    new_informer: Callable[[str | None], Informer[T]],
) -> AnyInformer[T]:
    """Return an informer of the kind in these namespaces, or in all if none is given.

    `new_informer` creates the informer of one namespace, or of all namespaces if the argument is
    None. A cluster-scoped kind always gets the latter.
    """
    names = tuple(dict.fromkeys(namespaces))
    if not names or not resource.namespaced:
        return new_informer(None)
    return MultiNamespaceInformer(resource, {name: new_informer(name) for name in names})


def _nothing() -> None:
    """Ignore the readiness of a single informer."""
