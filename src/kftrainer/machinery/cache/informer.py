"""Informer: a local copy of the objects of one kind, with handlers for changes."""

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
    Bookmarked,
    Delta,
    DeltaQueue,
    FilteredOut,
    Removed,
    Replaced,
    Updated,
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
# Called with the kind and the namespace when the API server refuses reads, and with None when reads
# succeed again; by then the informer holds the objects.
AccessHandler = Callable[[Resource[Any], str | None, Refusal | None], None]
NO_INDEXES: Mapping[str, IndexFunction[Any]] = MappingProxyType({})


class Informer(Generic[T]):
    """List and watch one kind, and call handlers for each change.

    Reads are synchronous, may lag a little behind the server, and return a new object each time.
    Handlers are called one after the other, in the order of each object's changes, after the change
    is visible to reads; they must not take long. An exception in a handler is logged; an exception
    in `keep`, the transform or an index function stops the informer.

    With a reduction, reads of a large object return only the stored part.

    An object that `keep` rejects is treated as absent. If it was kept before, handlers get a delete
    event with its last kept state.
    """

    def __init__(  # noqa: PLR0913  options of a list and watch
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
        self._deltas: DeltaQueue[T] = DeltaQueue()
        self._handlers: tuple[ChangeHandler[T], ...] = ()
        self._new_handlers: asyncio.Queue[tuple[ChangeHandler[T], asyncio.Event]] = asyncio.Queue()
        self._turn = asyncio.Lock()  # held while the store changes or must not change
        self._synced = asyncio.Event()
        self._settled = asyncio.Event()  # set after the first sync or the first refusal
        self._source = Source(client, resource, namespace, label_selector, field_selector)
        self._log = log.bind(**self._source.context)
        self._list_watcher = ListWatcher(
            self._source,
            clock=clock,
            rng=rng if rng is not None else SystemRandom(),
            factory=CachedObjectFactory(resource, transform, indexes, keep, reduction),
            store=self._store,
            deltas=self._deltas,
            metrics=metrics,
            on_refused=self._refused,
        )

    @property
    def name(self) -> str:
        """Name for logs and error messages."""
        return f"informer of {' in '.join(self._source.context.values())}"

    @property
    def has_synced(self) -> bool:
        """Whether the first list is stored and the handlers added before it were called."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until the informer has synced."""
        await self._synced.wait()

    @property
    def refusal(self) -> Refusal | None:
        """Why the server refuses reads; None if it does not, or before the first request."""
        return self._refusal

    async def wait_settled(self) -> None:
        """Wait until the informer has synced or was refused for the first time."""
        await self._settled.wait()

    def is_readable(self, namespace: str | None = None) -> bool:
        """Return whether a missing object does not exist, apart from the lag of the cache.

        False before the first sync, and while the kind is not installed.
        """
        return self.has_synced and not isinstance(self._refusal, KindNotFoundError)

    @property
    def resource_version(self) -> str:
        """The resourceVersion up to which the store is current; empty before the first list."""
        return self._store.resource_version

    def version_in(self, namespace: str) -> str:
        """Return the resourceVersion for a namespace; the same for all in a single informer."""
        return self._store.resource_version

    def get(self, key: ObjectKey) -> T | None:
        """Return the object with this key, or None."""
        entry = self._store.contents.get(key)
        return entry.object if entry is not None else None

    def cached_object(self, key: ObjectKey) -> ObservedObject[T] | None:
        """Return the undecoded object with this key, or None."""
        return self._store.contents.get(key)

    def by_index(self, name: str, value: str) -> list[T]:
        """Return the objects for which the named index function yields this value."""
        return [*self._decoded(self._store.contents.by_index(name, value))]

    def index_keys(self, name: str, value: str) -> list[ObjectKey]:
        """Return the keys of the objects with this index value, without decoding them."""
        return self._store.contents.index_keys(name, value)

    def has_index(self, name: str, value: str) -> bool:
        """Return whether any object has this index value."""
        return self._store.contents.has_index(name, value)

    def list(self, namespace: str | None = None) -> list[T]:
        """Return all objects, or those in one namespace."""
        return [*self.iterate(namespace)]

    def iterate(self, namespace: str | None = None) -> Iterator[T]:
        """Iterate over a snapshot of the objects; each is decoded when the iterator reaches it."""
        contents = self._store.contents
        entries = list(contents) if namespace is None else contents.in_namespace(namespace)
        return self._decoded(entries)

    def _decoded(self, entries: Iterable[CachedObject[T]]) -> Iterator[T]:
        """Yield the decoded objects, skipping those that `decode` rejects."""
        for entry in entries:
            try:
                yield entry.object
            except ValueError as error:
                self._log.debug("object_not_decoded", key=str(entry.key), error=str(error))

    def add_handler(self, handler: ChangeHandler[T]) -> asyncio.Event:
        """Call the handler for all objects and then for each change, while the informer runs.

        The returned event is set when the handler was called for all objects that are stored
        already. If the first list is still to come, the handler has been called for it when the
        informer has synced.
        """
        called = asyncio.Event()
        if len(self._store.contents):
            self._new_handlers.put_nowait((handler, called))
        else:
            self._handlers = (*self._handlers, handler)
            called.set()
        return called

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """List and watch until `stop` is set; call `ready` after the first sync."""
        async with asyncio.TaskGroup() as tasks:
            running = (
                tasks.create_task(self._list_watcher.run(), name=f"{self.name}: read"),
                tasks.create_task(self._process(), name=f"{self.name}: process"),
                tasks.create_task(self._call_new_handlers(), name=f"{self.name}: new handlers"),
                tasks.create_task(self._announce(ready), name=f"{self.name}: announce"),
            )
            await stop.wait()
            for task in running:
                task.cancel()

    async def _announce(self, ready: Callable[[], None]) -> None:
        await self._synced.wait()
        self._log.info("informer_synced", objects=len(self._store.contents))
        ready()

    async def _process(self) -> None:
        time_slices = TimeSlices(self._clock)
        while True:
            if not len(self._deltas):
                self._measure()
            delta = await self._deltas.next()
            async with self._turn:
                await self._apply(delta, time_slices)
            self._deltas.done()
            await time_slices.yield_if_due()

    async def _call_new_handlers(self) -> None:
        """Call late handlers for all stored objects; deltas wait meanwhile, so none is lost."""
        time_slices = TimeSlices(self._clock)
        while True:
            handler, called = await self._new_handlers.get()
            async with self._turn:
                time_slices.begin()
                for entry in self._store.contents:
                    self._report((handler,), ObjectEvent(entry.key, None, entry, initial=True))
                    await time_slices.yield_if_due()
                self._handlers = (*self._handlers, handler)
            called.set()

    async def _apply(self, delta: Delta[T], time_slices: TimeSlices) -> None:
        match delta:
            case Updated(entry):
                self._report(self._handlers, self._store.upsert(entry))
            case Removed(entry):
                self._report(self._handlers, self._store.delete(entry))
            case FilteredOut(key, version):
                self._report(self._handlers, self._store.drop(key, version))
            case Bookmarked(version):
                self._store.advance(version)
            case Replaced():
                await self._replace(delta, time_slices)
            case _:
                assert_never(delta)

    async def _replace(self, delta: Replaced[T], time_slices: TimeSlices) -> None:
        # A handler added during this loop is called for all stored objects afterwards.
        handlers = self._handlers
        initial = not self.has_synced
        for change in self._store.replace(delta.contents, delta.resource_version, initial=initial):
            self._report(handlers, change)
            await time_slices.yield_if_due()
        self._synced.set()
        self._settled.set()
        if self._refusal is not None:
            self._refusal = None
            self._report_access()

    def _refused(self, refusal: Refusal) -> bool:
        """Record why reads are refused; return False if that is already recorded."""
        if type(refusal) is type(self._refusal):
            return False
        self._refusal = refusal
        self._settled.set()
        self._report_access()
        return True

    def _report_access(self) -> None:
        if self._on_access is not None:
            self._on_access(self.resource, self._source.namespace, self._refusal)

    def _report(self, handlers: Iterable[ChangeHandler[T]], change: ObjectEvent[T] | None) -> None:
        if change is None:
            return
        for handler in handlers:
            try:
                handler(change)
            except Exception:  # noqa: BLE001  one failing handler must not block the others
                self._log.exception("informer_handler_failed", key=str(change.key))
                if self._metrics is not None:
                    self._metrics.event("handler_failed")

    def _measure(self) -> None:
        if self._metrics is not None:
            self._metrics.objects(len(self._store.contents))
            self._metrics.bytes_held(self._store.contents.bytes_held)
