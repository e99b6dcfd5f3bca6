"""List and watch I/O: sends the requests that the Reflector decides on."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar, assert_never

import structlog

from kftrainer.kube.client.client import WATCH_GRACE
from kftrainer.kube.client.errors import (
    ForbiddenError,
    KindNotFoundError,
    KubeError,
    RequestTimeoutError,
)
from kftrainer.kube.client.watch import Bookmark, Deleted, Upserted, WatchEvent
from kftrainer.kube.objects.resource import key_of
from kftrainer.machinery.cache.cached_object import CachedObjectFactory
from kftrainer.machinery.cache.delta_queue import (
    Bookmarked,
    Delta,
    DeltaQueue,
    FilteredOut,
    Removed,
    Replaced,
    Updated,
)
from kftrainer.machinery.cache.reflector import (
    Action,
    ListAsStream,
    Listed,
    ListFailed,
    ListInPages,
    Outcome,
    ReadVersion,
    Reason,
    Reflector,
    Step,
    StreamBroke,
    VersionRead,
    Watch,
    WatchEnded,
)
from kftrainer.machinery.cache.source import Source
from kftrainer.machinery.cache.store import Contents, Store
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.time_slices import TimeSlices
from kftrainer.machinery.metrics.registry import InformerMetrics

log = structlog.get_logger(__name__)

T = TypeVar("T")

SHORTEST_WATCH, LONGEST_WATCH = 300, 600  # seconds
# Servers send a bookmark every minute, but not all of them do so for idle resources.
LONGEST_IDLE, LONGEST_IDLE_WITH_BOOKMARKS = 120.0, 75.0

# Errors that last until the permission is granted or the kind is installed.
Refusal = ForbiddenError | KindNotFoundError


def refusal_in(outcome: Outcome) -> Refusal | None:
    """Return the error with which the server refused the read, if it did."""
    error = None if isinstance(outcome, Listed | VersionRead) else outcome.error
    return error if isinstance(error, Refusal) else None


class _StreamTimeout:
    """Detects that the connection of a stream was lost: by its deadline and by its idle time."""

    def __init__(self, now: float, seconds: float) -> None:
        self.events = 0
        self._last_event = now
        self._deadline = now + seconds + WATCH_GRACE
        self._idle = LONGEST_IDLE

    def received(self, event: WatchEvent, now: float) -> None:
        """Record an event."""
        self.events += 1
        self._last_event = now
        # The bookmark that ends a streamed list is always sent; any other one means that bookmarks
        # repeat every minute.
        if isinstance(event, Bookmark) and not event.initial_events_end:
            self._idle = LONGEST_IDLE_WITH_BOOKMARKS

    def remaining(self, now: float) -> float:
        """Return the seconds until the next check; the stream is lost if not positive."""
        remaining = min(self._deadline, self._last_event + self._idle) - now
        return min(remaining, LONGEST_IDLE_WITH_BOOKMARKS)  # the first bookmark may shorten it


class _Stream(Generic[T]):
    """State of one stream: its action and the objects received so far."""

    def __init__(
        self, action: ListAsStream | Watch, timeout: _StreamTimeout, collected: Contents[T]
    ) -> None:
        self.action = action
        self.timeout = timeout
        self.collected = collected
        self.is_complete = isinstance(action, Watch)
        self.opened: float | None = None

    def outcome(self, error: KubeError | None, now: float) -> Outcome:
        """Return the outcome of the ended stream."""
        seconds = now - self.opened if self.opened is not None else 0.0
        if isinstance(self.action, ListAsStream) and not self.is_complete:
            return StreamBroke(self.action, seconds, error)
        return WatchEnded(seconds, self.timeout.events, error)


class ListWatcher(Generic[T]):
    """List and watch one kind until cancelled, retrying after failures."""

    def __init__(  # noqa: PLR0913  everything between the server and the store
        self,
        source: Source,
        *,
        clock: Clock,
        rng: Random,
        factory: CachedObjectFactory[T],
        store: Store[T],
        deltas: DeltaQueue[T],
        metrics: InformerMetrics | None,
        on_refused: Callable[[Refusal], bool],
    ) -> None:
        self._source = source
        self._clock = clock
        self._on_refused = on_refused  # returns whether the refusal is new
        self._rng = rng
        self._factory = factory
        self._store = store
        self._deltas = deltas
        self._metrics = metrics
        self._reflector = Reflector(rng)
        self._time_slices = TimeSlices(clock)
        self._log = log.bind(**source.context)

    async def run(self) -> None:
        """List and watch until cancelled."""
        step = self._reflector.start()
        while True:
            await self._clock.sleep(step.delay)
            self._time_slices.begin()
            outcome = await self._execute(step.action)
            await self._deltas.emptied()  # the store's resourceVersion is current only now
            now = self._clock.monotonic()
            step = self._reflector.after(outcome, self._store.resource_version, now)
            self._report(outcome, step)

    def _report(self, outcome: Outcome, step: Step) -> None:
        refusal = refusal_in(outcome)
        is_known = refusal is not None and not self._on_refused(refusal)
        write = self._log.warning if step.delay and not is_known else self._log.debug
        write("list_watch_ended", after=repr(outcome), next=repr(step.action), delay=step.delay)
        resumed = isinstance(outcome, WatchEnded | VersionRead) and isinstance(step.action, Watch)
        if resumed and self._metrics is not None:
            self._metrics.reconnected()

    async def _execute(self, action: Action) -> Outcome:
        match action:
            case ListAsStream() | Watch():
                return await self._stream(action)
            case ListInPages():
                return await self._list(action)
            case ReadVersion():
                return await self._read_version()
            case _:
                assert_never(action)

    async def _stream(self, action: ListAsStream | Watch) -> Outcome:
        seconds = self._rng.randrange(SHORTEST_WATCH, LONGEST_WATCH)  # so that not all end together
        timeout = _StreamTimeout(self._clock.monotonic(), seconds)
        stream = _Stream(action, timeout, self._store.empty_contents())
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(stream, seconds), name="informer-read")
            guard = tasks.create_task(self._guard(reading, timeout), name="informer-guard")
            await asyncio.wait((reading,))
            guard.cancel()
        silent = RequestTimeoutError("the watch was idle for too long or exceeded its timeout")
        error = silent if reading.cancelled() else reading.result()
        return stream.outcome(error, self._clock.monotonic())

    async def _guard(
        self,
        reading: "asyncio.Task[KubeError | None]",
        timeout: _StreamTimeout,  # noqa: ASYNC109
    ) -> None:
        """Cancel the read when the stream is silent for too long or misses its deadline."""
        while (remaining := timeout.remaining(self._clock.monotonic())) > 0:
            await self._clock.sleep(remaining)
        reading.cancel()

    async def _read(self, stream: _Stream[T], seconds: int) -> KubeError | None:
        try:
            async with self._source.watch(
                stream.action.resource_version,
                with_initial=isinstance(stream.action, ListAsStream),
                seconds=seconds,
            ) as events:
                stream.opened = self._clock.monotonic()
                async for event in events:
                    stream.timeout.received(event, self._clock.monotonic())
                    self._take(event, stream)
                    await self._time_slices.yield_if_due()
        except KubeError as error:
            return error
        return None

    def _take(self, event: WatchEvent, stream: _Stream[T]) -> None:
        self._count(event)
        if not stream.is_complete:
            self._collect(event, stream)
        else:
            self._deltas.put(self._delta(event))

    def _delta(self, event: WatchEvent) -> Delta[T]:
        match event:
            case Bookmark(version):
                return Bookmarked(version)
            case Upserted(manifest) | Deleted(manifest) if not self._factory.keeps(manifest):
                return FilteredOut(key_of(manifest), manifest["metadata"]["resourceVersion"])
            case Upserted(manifest):
                return Updated(self._factory.create(manifest))
            case Deleted(manifest):
                return Removed(self._factory.create(manifest))
            case _:
                assert_never(event)

    def _collect(self, event: WatchEvent, stream: _Stream[T]) -> None:
        """Collect the initial objects, which are unordered, until the final bookmark."""
        match event:
            case Upserted(manifest) if self._factory.keeps(manifest):
                stream.collected.put(self._factory.create(manifest))
            case Upserted(manifest) | Deleted(manifest):
                stream.collected.remove(key_of(manifest))
            case Bookmark(version, initial_events_end=True) if isinstance(
                stream.action, ListAsStream
            ):
                stream.is_complete = True
                self._replace(stream.collected, version, stream.action.reason)
            case Bookmark():
                pass  # has no meaning before the list is complete

    def _replace(self, contents: Contents[T], version: str, reason: Reason) -> None:
        self._deltas.put(Replaced(contents, version))
        if self._metrics is not None:
            self._metrics.relisted(reason)

    def _count(self, event: WatchEvent) -> None:
        if self._metrics is None:
            return
        match event:
            case Upserted(added=added):
                self._metrics.event("ADDED" if added else "MODIFIED")
            case Deleted():
                self._metrics.event("DELETED")
            case Bookmark():
                self._metrics.event("BOOKMARK")

    async def _list(self, action: ListInPages) -> Listed | ListFailed:
        contents, versions = self._store.empty_contents(), []
        try:
            async for page in self._source.pages(action.resource_version, action.page):
                versions.append(page.resource_version)
                for item in page.items:
                    if self._factory.keeps(item):
                        contents.put(self._factory.create(item))
                    await self._time_slices.yield_if_due()
        except KubeError as error:
            return ListFailed(action, len(versions), error)
        # The watch resumes at the first page's version, whatever later pages contain.
        self._replace(contents, versions[0], action.reason)
        return Listed()

    async def _read_version(self) -> VersionRead:
        try:
            return VersionRead(await self._source.version())
        except KubeError as error:
            return VersionRead(error)
