"""One kind in some namespaces only: an informer for each, that look like one."""

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
    """Informers of one kind by their namespaces; what is in no namespace of theirs is not there.

    For those who may not read the kind everywhere: a right in each of the namespaces is enough.
    Changes in one namespace are told in order, and between two there is none.

    A namespace where the kind must not be read, or that does not exist, does not keep the others
    from being read: its informer tries again until it is allowed to.
    """

    def __init__(self, resource: Resource[T], informers: Mapping[str, Informer[T]]) -> None:
        self.resource = resource
        self._informers = informers
        self._welcomes: asyncio.Queue[tuple[Sequence[asyncio.Event], asyncio.Event]] = (
            asyncio.Queue()
        )

    @property
    def name(self) -> str:
        """For logs and error messages."""
        return f"informer of {self.resource.group_kind} in {', '.join(self._informers)}"

    @property
    def has_synced(self) -> bool:
        """Whether at least one has, and each of the others has or is refused by the server."""
        synced = [each.has_synced for each in self._informers.values()]
        refused = [each.refusal is not None for each in self._informers.values()]
        return any(synced) and all(map(or_, synced, refused))

    async def wait_synced(self) -> None:
        """Wait until that is true."""
        for informer in self._informers.values():
            await informer.wait_settled()
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(each.wait_synced()) for each in self._informers.values()]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()

    def is_readable(self, namespace: str | None = None) -> bool:
        """Whether an object that is not here does not exist, in a namespace or in any of them."""
        if namespace is None:
            informers = [*self._informers.values()]
        else:
            informers = [each for name, each in self._informers.items() if name == namespace]
        return any(each.is_readable() for each in informers)

    def version_in(self, namespace: str) -> str:
        """Up to where we know the server's history of a namespace; empty if we do not."""
        informer = self._informers.get(namespace)
        return informer.resource_version if informer is not None else ""

    def get(self, key: ObjectKey) -> T | None:
        """The object of this key, if there is one."""
        informer = self._informers.get(key.namespace)
        return informer.get(key) if informer is not None else None

    def seen(self, key: ObjectKey) -> ObservedObject[T] | None:
        """The same, not yet decoded."""
        informer = self._informers.get(key.namespace)
        return informer.seen(key) if informer is not None else None

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects for which the index function of this name gives this value."""
        return [found for each in self._informers.values() for found in each.by_index(name, value)]

    def index_keys(self, name: str, value: str) -> list[ObjectKey]:
        """The keys of these objects; nothing is decoded."""
        return [key for each in self._informers.values() for key in each.index_keys(name, value)]

    def has_index(self, name: str, value: str) -> bool:
        """Whether there is any such object."""
        return any(each.has_index(name, value) for each in self._informers.values())

    def list(self, namespace: str | None = None) -> list[T]:
        """All objects, or those of a namespace."""
        return [*self.iterate(namespace)]

    def iterate(self, namespace: str | None = None) -> Iterator[T]:
        """The same objects, each decoded when it is asked for."""
        return chain.from_iterable(each.iterate(namespace) for each in self._informers.values())

    def add_handler(self, handler: ChangeHandler[T]) -> asyncio.Event:
        """Tell this handler of all objects and then of changes, while the informers run.

        What is returned is set when all informers have told it of what is here already.
        """
        told = asyncio.Event()
        parts = [each.add_handler(handler) for each in self._informers.values()]
        if all(part.is_set() for part in parts):
            told.set()
        else:
            self._welcomes.put_nowait((parts, told))
        return told

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Run all informers until told to stop; ready when all have synced."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run(_nothing, stop), name=informer.name)
            besides = (
                tasks.create_task(self._announce(ready), name=f"{self.name}: announce"),
                tasks.create_task(self._welcome(), name=f"{self.name}: welcome"),
            )
            await stop.wait()
            for task in besides:
                task.cancel()

    async def _announce(self, ready: Callable[[], None]) -> None:
        await self.wait_synced()
        ready()

    async def _welcome(self) -> None:
        """Say of each handler that came late when all informers have told it."""
        while True:
            parts, told = await self._welcomes.get()
            for part in parts:
                await part.wait()
            told.set()


AnyInformer = Informer[T] | MultiNamespaceInformer[T]


def in_namespaces(
    resource: Resource[T],
    namespaces: Iterable[str],
    make: Callable[[str | None], Informer[T]],
) -> AnyInformer[T]:
    """What informs of a kind in these namespaces, or everywhere if none is named.

    `make` makes the informer of one namespace, or of all if it is None; a kind whose objects are
    in no namespace has only that.
    """
    names = tuple(dict.fromkeys(namespaces))
    if not names or not resource.namespaced:
        return make(None)
    return MultiNamespaceInformer(resource, {name: make(name) for name in names})


def _nothing() -> None:
    """One informer's readiness is not the group's."""
