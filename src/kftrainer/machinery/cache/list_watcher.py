"""List and watch I/O: sends the requests that the Reflector decides on."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar, assert_never

import structlog

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
    Arrived,
    DeltaQueue,
    Gone,
    News,
    Reached,
    Replaced,
    Unwanted,
)
from kftrainer.machinery.cache.reflector import (
    Action,
    AskVersion,
    ListAsStream,
    Listed,
    ListFailed,
    ListInPages,
    Outcome,
    Reason,
    Reflector,
    Step,
    StreamBroke,
    VersionTold,
    Watch,
    WatchEnded,
)
from kftrainer.machinery.cache.source import Source
from kftrainer.machinery.cache.store import Contents, Store
from kftrainer.machinery.cache.stream_timeout import Pulse, server_timeout
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.time_slices import TimeSlices
from kftrainer.machinery.metrics.registry import InformerMetrics

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Errors that last until the permission is granted or the kind is installed.
Refusal = ForbiddenError | KindNotFoundError


def refusal_in(outcome: Outcome) -> Refusal | None:
    """Return the error with which the server refused the read, if it did."""
    error = None if isinstance(outcome, Listed | VersionTold) else outcome.error
    return error if isinstance(error, Refusal) else None


class _Stream(Generic[T]):
    """State of one stream: its action and the objects received so far."""

    def __init__(self, action: ListAsStream | Watch, pulse: Pulse, collected: Contents[T]) -> None:
        self.action = action
        self.pulse = pulse
        self.collected = collected
        self.is_complete = isinstance(action, Watch)
        self.opened: float | None = None

    def outcome(self, error: KubeError | None, now: float) -> Outcome:
        """Return the outcome of the ended stream."""
        lived = now - self.opened if self.opened is not None else 0.0
        if isinstance(self.action, ListAsStream) and not self.is_complete:
            return StreamBroke(self.action, lived, error)
        return WatchEnded(lived, self.pulse.events, error)


class ListWatcher(Generic[T]):
    """List and watch one kind until cancelled, retrying after failures."""

    def __init__(  # noqa: PLR0913  everything between the server and the store
        self,
        source: Source,
        *,
        clock: Clock,
        rng: Random,
        maker: CachedObjectFactory[T],
        store: Store[T],
        inbox: DeltaQueue[T],
        metrics: InformerMetrics | None,
        on_refused: Callable[[Refusal], bool],
    ) -> None:
        self._source = source
        self._clock = clock
        self._on_refused = on_refused  # returns whether the refusal is new
        self._rng = rng
        self._maker = maker
        self._store = store
        self._inbox = inbox
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
            outcome = await self._carry_out(step.action)
            await self._inbox.emptied()  # the store's resourceVersion is current only now
            now = self._clock.monotonic()
            step = self._reflector.after(outcome, self._store.resource_version, now)
            self._report(outcome, step)

    def _report(self, outcome: Outcome, step: Step) -> None:
        refusal = refusal_in(outcome)
        is_known = refusal is not None and not self._on_refused(refusal)
        say = self._log.warning if step.delay and not is_known else self._log.debug
        say("list_watch_ended", after=repr(outcome), next=repr(step.action), delay=step.delay)
        resumed = isinstance(outcome, WatchEnded | VersionTold) and isinstance(step.action, Watch)
        if resumed and self._metrics is not None:
            self._metrics.reconnected()

    async def _carry_out(self, action: Action) -> Outcome:
        match action:
            case ListAsStream() | Watch():
                return await self._stream(action)
            case ListInPages():
                return await self._list(action)
            case AskVersion():
                return await self._ask_version()
            case _:
                assert_never(action)

    async def _stream(self, action: ListAsStream | Watch) -> Outcome:
        seconds = server_timeout(self._rng)
        pulse = Pulse(self._clock.monotonic(), seconds)
        stream = _Stream(action, pulse, self._store.empty_contents())
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(stream, seconds), name="informer-read")
            guard = tasks.create_task(self._guard(reading, pulse), name="informer-guard")
            await asyncio.wait((reading,))
            guard.cancel()
        silent = RequestTimeoutError("the watch was silent, or did not end in its time")
        error = silent if reading.cancelled() else reading.result()
        return stream.outcome(error, self._clock.monotonic())

    async def _guard(self, reading: "asyncio.Task[KubeError | None]", pulse: Pulse) -> None:
        """Cancel the read when the stream is silent for too long or misses its deadline."""
        while (left := pulse.left(self._clock.monotonic())) > 0:
            await self._clock.sleep(left)
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
                    stream.pulse.heard(event, self._clock.monotonic())
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
            self._inbox.put(self._news(event))

    def _news(self, event: WatchEvent) -> News[T]:
        match event:
            case Bookmark(version):
                return Reached(version)
            case Upserted(manifest) | Deleted(manifest) if not self._maker.keeps(manifest):
                return Unwanted(key_of(manifest), manifest["metadata"]["resourceVersion"])
            case Upserted(manifest):
                return Arrived(self._maker.make(manifest))
            case Deleted(manifest):
                return Gone(self._maker.make(manifest))
            case _:
                assert_never(event)

    def _collect(self, event: WatchEvent, stream: _Stream[T]) -> None:
        """Collect the initial objects, which are unordered, until the final bookmark."""
        match event:
            case Upserted(manifest) if self._maker.keeps(manifest):
                stream.collected.put(self._maker.make(manifest))
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
        self._inbox.put(Replaced(contents, version))
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
                    if self._maker.keeps(item):
                        contents.put(self._maker.make(item))
                    await self._time_slices.yield_if_due()
        except KubeError as error:
            return ListFailed(action, len(versions), error)
        # The watch resumes at the first page's version, whatever later pages contain.
        self._replace(contents, versions[0], action.reason)
        return Listed()

    async def _ask_version(self) -> VersionTold:
        try:
            return VersionTold(await self._source.version())
        except KubeError as error:
            return VersionTold(error)
