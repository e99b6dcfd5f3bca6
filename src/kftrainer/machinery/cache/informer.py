"""A true copy of the objects of one kind, and word of each change to those who asked for it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Any, Generic, TypeVar, assert_never

import structlog

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KindNotFoundError
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.machinery.cache.cached_object import (
    CachedObject,
    CachedObjectFactory,
    IndexFunction,
    Keep,
    Transform,
)
from kftrainer.machinery.cache.delta_queue import (
    Arrived,
    DeltaQueue,
    Gone,
    News,
    Reached,
    Replaced,
    Unwanted,
)
from kftrainer.machinery.cache.list_watcher import ListWatcher, Refusal
from kftrainer.machinery.cache.reduction import Reduction
from kftrainer.machinery.cache.source import Source
from kftrainer.machinery.cache.store import Store
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.time_slices import TimeSlices
from kftrainer.machinery.metrics.registry import InformerMetrics

log = structlog.get_logger(__name__)

T = TypeVar("T")

ChangeHandler = Callable[[ObjectEvent[T]], None]
# Called with the kind and the namespace when reads are refused, and with None when they succeed
# again; the objects can be read from the informer by then.
AccessHandler = Callable[[Resource[Any], str | None, Refusal | None], None]
NO_INDEXES: Mapping[str, IndexFunction[Any]] = MappingProxyType({})


class Informer(Generic[T]):
    """Lists and watches one kind, for as long as it runs.

    Reads are answered at once from what is known, which may be a little behind the server; each
    gives a fresh object. Handlers are called one after the other, in the order in which each
    object changed, when reads show the change already; they must not take long. An exception of
    a handler is logged; one of `keep`, the transform or an index function ends the informer.

    With a reduction, reads of a large object return the part that is held of it.

    An object that `keep` says no to is as good as not there; if it was kept before, it is told as
    deleted, in the state in which it was.
    """

    def __init__(  # noqa: PLR0913  what can be said of a watch
        self,
        client: Client,
        resource: Resource[T],
        *,
        clock: Clock,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        keep: Keep | None = None,
        transform: Transform | None = None,
        indexes: Mapping[str, IndexFunction[T]] = NO_INDEXES,
        reduction: Reduction | None = None,
        metrics: InformerMetrics | None = None,
        rng: Random | None = None,
        on_access: AccessHandler | None = None,
    ) -> None:
        self.resource = resource
        self._on_access = on_access
        self._refusal: Refusal | None = None
        self._clock = clock
        self._metrics = metrics
        self._store: Store[T] = Store(indexes)
        self._inbox: DeltaQueue[T] = DeltaQueue()
        self._handlers: tuple[ChangeHandler[T], ...] = ()
        self._latecomers: asyncio.Queue[tuple[ChangeHandler[T], asyncio.Event]] = asyncio.Queue()
        self._turn = asyncio.Lock()  # of who changes the store, or needs it to stay as it is
        self._synced = asyncio.Event()
        self._settled = asyncio.Event()  # has synced, or was refused
        self._source = Source(client, resource, namespace, label_selector, field_selector)
        self._log = log.bind(**self._source.context)
        self._feed = ListWatcher(
            self._source,
            clock=clock,
            rng=rng if rng is not None else SystemRandom(),
            maker=CachedObjectFactory(resource, transform, indexes, keep, reduction),
            store=self._store,
            inbox=self._inbox,
            metrics=metrics,
            on_refused=self._refused,
        )

    @property
    def name(self) -> str:
        """For logs and error messages."""
        return f"informer of {' in '.join(self._source.context.values())}"

    @property
    def has_synced(self) -> bool:
        """Whether all objects of the first list are here, and who came before was told of them."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until that is so."""
        await self._synced.wait()

    @property
    def refusal(self) -> Refusal | None:
        """Why the server refuses to be read; None if it does not, or has not been asked yet."""
        return self._refusal

    async def wait_settled(self) -> None:
        """Wait until it has synced, or was refused for the first time."""
        await self._settled.wait()

    def is_readable(self, namespace: str | None = None) -> bool:
        """Whether an object that is not here does not exist, but for the lag of the cache.

        False before the first sync, and while the kind is not installed.
        """
        return self.has_synced and not isinstance(self._refusal, KindNotFoundError)

    @property
    def resource_version(self) -> str:
        """Up to where we know the server's history; empty before the first list."""
        return self._store.resource_version

    def version_in(self, namespace: str) -> str:
        """The same of one namespace, which to a single informer is no different."""
        return self._store.resource_version

    def get(self, key: ObjectKey) -> T | None:
        """The object of this key, if there is one."""
        entry = self._store.contents.get(key)
        return entry.object if entry is not None else None

    def seen(self, key: ObjectKey) -> ObservedObject[T] | None:
        """The same, not yet decoded."""
        return self._store.contents.get(key)

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects for which the index function of this name gives this value."""
        return [*self._decoded(self._store.contents.by_index(name, value))]

    def index_keys(self, name: str, value: str) -> list[ObjectKey]:
        """The keys of these objects; nothing is decoded."""
        return self._store.contents.index_keys(name, value)

    def has_index(self, name: str, value: str) -> bool:
        """Whether there is any such object."""
        return self._store.contents.has_index(name, value)

    def list(self, namespace: str | None = None) -> list[T]:
        """All objects, or those of a namespace."""
        return [*self.iterate(namespace)]

    def iterate(self, namespace: str | None = None) -> Iterator[T]:
        """The same objects, each decoded when it is asked for; changes meanwhile do not show."""
        contents = self._store.contents
        entries = list(contents) if namespace is None else contents.in_namespace(namespace)
        return self._decoded(entries)

    def _decoded(self, entries: Iterable[CachedObject[T]]) -> Iterator[T]:
        """The objects, but for those that `decode` refuses: one of them must not hide the rest."""
        for entry in entries:
            try:
                yield entry.object
            except ValueError as error:
                self._log.debug("informer.not_decoded", key=str(entry.key), error=str(error))

    def add_handler(self, handler: ChangeHandler[T]) -> asyncio.Event:
        """Tell this handler of all objects and then of changes, while the informer runs.

        What is returned is set when it has been told of all that is here already; of a first list
        that is yet to come, it has been told when the informer has synced.
        """
        told = asyncio.Event()
        if len(self._store.contents):
            self._latecomers.put_nowait((handler, told))
        else:
            self._handlers = (*self._handlers, handler)
            told.set()
        return told

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """List and watch until told to stop; ready when it has synced."""
        async with asyncio.TaskGroup() as tasks:
            running = (
                tasks.create_task(self._feed.run(), name=f"{self.name}: read"),
                tasks.create_task(self._process(), name=f"{self.name}: process"),
                tasks.create_task(self._welcome(), name=f"{self.name}: welcome"),
                tasks.create_task(self._announce(ready), name=f"{self.name}: announce"),
            )
            await stop.wait()
            for task in running:
                task.cancel()

    async def _announce(self, ready: Callable[[], None]) -> None:
        await self._synced.wait()
        self._log.info("informer.synced", objects=len(self._store.contents))
        ready()

    async def _process(self) -> None:
        breather = TimeSlices(self._clock)
        while True:
            if not len(self._inbox):
                self._measure()
            news = await self._inbox.next()
            async with self._turn:
                await self._absorb(news, breather)
            self._inbox.done()
            await breather.breathe()

    async def _welcome(self) -> None:
        """Tell who came late of all that is here; news wait meanwhile, so that none is missed."""
        breather = TimeSlices(self._clock)
        while True:
            handler, told = await self._latecomers.get()
            async with self._turn:
                breather.begin()
                for entry in self._store.contents:
                    self._tell((handler,), ObjectEvent(entry.key, None, entry, initial=True))
                    await breather.breathe()
                self._handlers = (*self._handlers, handler)
            told.set()

    async def _absorb(self, news: News[T], breather: TimeSlices) -> None:
        match news:
            case Arrived(entry):
                self._tell(self._handlers, self._store.upsert(entry))
            case Gone(entry):
                self._tell(self._handlers, self._store.delete(entry))
            case Unwanted(key, version):
                self._tell(self._handlers, self._store.drop(key, version))
            case Reached(version):
                self._store.advance(version)
            case Replaced():
                await self._replace(news, breather)
            case _:
                assert_never(news)

    async def _replace(self, news: Replaced[T], breather: TimeSlices) -> None:
        # Who comes while this goes on is told of all that is here afterwards, or there is nothing.
        handlers = self._handlers
        initial = not self.has_synced
        for change in self._store.replace(news.contents, news.resource_version, initial=initial):
            self._tell(handlers, change)
            await breather.breathe()
        self._synced.set()
        self._settled.set()
        if self._refusal is not None:
            self._refusal = None
            self._report_access()

    def _refused(self, refusal: Refusal) -> bool:
        """Record why reads are refused; returns False if that is known."""
        if type(refusal) is type(self._refusal):
            return False
        self._refusal = refusal
        self._settled.set()
        self._report_access()
        return True

    def _report_access(self) -> None:
        if self._on_access is not None:
            self._on_access(self.resource, self._source.namespace, self._refusal)

    def _tell(self, handlers: Iterable[ChangeHandler[T]], change: ObjectEvent[T] | None) -> None:
        if change is None:
            return
        for handler in handlers:
            try:
                handler(change)
            except Exception:  # noqa: BLE001  one handler must not take the others' news
                self._log.exception("informer.handler_failed", key=str(change.key))
                if self._metrics is not None:
                    self._metrics.event("handler_failed")

    def _measure(self) -> None:
        if self._metrics is not None:
            self._metrics.objects(len(self._store.contents))
            self._metrics.bytes_held(self._store.contents.bytes_held)
