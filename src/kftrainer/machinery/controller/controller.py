"""Controller: events of watched kinds become requests, and workers reconcile them."""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import structlog
from structlog.contextvars import bound_contextvars

from kftrainer.kube.objects.resource import Resource
from kftrainer.machinery.cache.cache import NotSyncedError
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.handlers import Handler
from kftrainer.machinery.controller.predicates import Predicate
from kftrainer.machinery.controller.reconcile import (
    ReconcileError,
    Reconciler,
    Request,
    Result,
    TerminalError,
)
from kftrainer.machinery.exception_groups import leaf_errors
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.time_slices import SLICE, TimeSlices
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.queue.backoff import Backoff, Exponential
from kftrainer.machinery.queue.workqueue import QueueShutDownError, WorkQueue

log = structlog.get_logger(__name__)

# Objects that existed before the start have a lower priority than new events.
INITIAL_PRIORITY = -100

# Never raised on purpose: bugs in the reconciler, which would be panics in Go.
UNEXPECTED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    TypeError,
)


class ReconcileCancelledError(Exception):
    """A task inside a reconcile was cancelled, but the reconcile itself was not."""


class Watchable(Protocol):
    """The part of an informer that a controller needs."""

    @property
    def resource(self) -> Resource[Any]:
        """The watched kind."""
        ...

    @property
    def has_synced(self) -> bool:
        """Whether the first list has been processed."""
        ...

    async def wait_synced(self) -> None:
        """Return when the first list has been processed."""
        ...

    def add_handler(self, handler: Callable[[ObjectEvent[Any]], None], /) -> asyncio.Event:
        """Call the handler for all objects and then for each change.

        The returned event is set when the handler was called for the objects that are stored
        already.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Watch:
    informer: Watchable
    handler: Handler
    predicates: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class _StartedWatch:
    """A watch whose handler has been added."""

    informer: Watchable
    called: asyncio.Event  # the handler, for all stored objects

    @property
    def is_complete(self) -> bool:
        return self.informer.has_synced and self.called.is_set()

    async def completed(self) -> None:
        await self.informer.wait_synced()
        await self.called.wait()


@dataclass(frozen=True, slots=True)
class _Remainder:
    """Requests of one handler that are still to be added."""

    requests: Iterator[Request | None]
    priority: int


class Controller:
    """Reconciles the objects that its watches map to; a Runnable that runs once.

    When it is stopped, the reconciles in flight are finished and no others are started.
    """

    def __init__(  # noqa: PLR0913
        self,
        name: str,
        reconciler: Reconciler,
        *,
        clock: Clock,
        workers: int = 1,
        timeout: float | None = None,
        backoff: Backoff | None = None,
        metrics: Metrics | None = None,
        sync_timeout: float = 120.0,
    ) -> None:
        if workers < 1:
            raise ValueError(f"the controller {name} needs at least one worker")
        metrics = metrics if metrics is not None else Metrics()
        self._name = name
        self._reconciler = reconciler
        self._clock = clock
        self._workers = workers
        self._timeout = timeout
        self._sync_timeout = sync_timeout
        self._metrics = metrics.for_controller(name)
        self._metrics.max_workers(workers)
        backoff = backoff if backoff is not None else Exponential()
        self._queue = WorkQueue(clock, backoff, metrics.for_queue(name))
        self._watches: list[_Watch] = []
        self._early: dict[Request, None] = {}  # without duplicates, in the order of arrival
        self._unfinished: asyncio.Queue[_Remainder] = asyncio.Queue()  # requests still to be added
        self._is_started = False

    @property
    def name(self) -> str:
        """Name of the controller, unique in a process; used in metrics and logs."""
        return self._name

    @property
    def is_started(self) -> bool:
        """Whether the controller runs, so that requests go to its queue."""
        return self._is_started

    def watch(self, informer: Watchable, handler: Handler, *predicates: Predicate) -> None:
        """Enqueue the handler's requests for events that pass all predicates.

        A watch that is added while the controller runs starts at once; its sync is not waited for.
        """
        watch = _Watch(informer, handler, predicates)
        self._watches.append(watch)
        if self._is_started:
            self._start(watch)

    def enqueue_after(self, request: Request, seconds: float) -> None:
        """Enqueue a request after a delay, if the controller runs; an earlier one remains due."""
        if self._is_started:
            self._queue.add(request, after=seconds)

    def enqueue(self, request: Request, *, priority: int = 0) -> None:
        """Enqueue a request without an event.

        Before the controller runs, the request is only stored: on a replica that is not the leader,
        a growing queue would look like one that is not processed.
        """
        self.enqueue_all((request,), priority=priority)

    def enqueue_all(self, requests: Iterable[Request], *, priority: int = 0) -> None:
        """Enqueue several requests; long iterables are added in small time slices.

        Before the controller runs, the requests are only stored, as with `enqueue`.
        """
        if self._is_started:
            self._add_all(iter(requests), priority)
        else:
            self._early.update(dict.fromkeys(requests))

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Reconcile until `stop` is set; call `ready` when all watched kinds have synced."""
        if not self._watches:
            raise ValueError(f"the controller {self._name} watches nothing")
        self._is_started = True
        started = [self._start(watch) for watch in self._watches]
        early, self._early = self._early, {}
        self._add_all(iter(early), INITIAL_PRIORITY)
        if not await self._synced(started, stop):
            return
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self._name}-{number}")
            adding = group.create_task(self._add_remainders(), name=f"{self._name}-adding")
            log.info("controller_started", controller=self._name, workers=self._workers)
            try:
                ready()
                await stop.wait()
            finally:
                # Also when cancelled: a reconciler that swallows the cancellation must not start
                # another request.
                self._queue.shut_down()
                adding.cancel()
        log.info("controller_stopped", controller=self._name)

    def _start(self, watch: _Watch) -> _StartedWatch:
        return _StartedWatch(watch.informer, watch.informer.add_handler(self._enqueue_by(watch)))

    def _enqueue_by(self, watch: _Watch) -> Callable[[ObjectEvent[Any]], None]:
        def enqueue(change: ObjectEvent[Any]) -> None:
            if all(predicate(change) for predicate in watch.predicates):
                priority = INITIAL_PRIORITY if change.initial else 0
                self._add_all(iter(watch.handler(change)), priority)

        return enqueue

    def _add_all(self, requests: Iterator[Request | None], priority: int) -> None:
        """Add requests for some milliseconds; leave the remainder to `_add_remainders`."""
        began = self._clock.monotonic()
        for request in requests:
            if request is not None:
                self._queue.add(request, priority=priority)
            if self._clock.monotonic() - began > SLICE:
                self._unfinished.put_nowait(_Remainder(requests, priority))
                return

    async def _add_remainders(self) -> None:
        time_slices = TimeSlices(self._clock)
        while True:
            remainder = await self._unfinished.get()
            time_slices.begin()
            try:
                for request in remainder.requests:
                    if request is not None:
                        self._queue.add(request, priority=remainder.priority)
                    await time_slices.yield_if_due()
            except Exception:  # one failing handler must not block the others
                log.exception("event_handler_failed", controller=self._name)

    async def _synced(self, started: list[_StartedWatch], stop: asyncio.Event) -> bool:
        """Wait until all watches have synced; return False if stopped before that."""
        async with asyncio.TaskGroup() as group:
            syncing = group.create_task(self._missing_kinds(started))
            stopping = group.create_task(stop.wait())
            await asyncio.wait((syncing, stopping), return_when=asyncio.FIRST_COMPLETED)
            syncing.cancel()
            stopping.cancel()
        if syncing.cancelled():
            return False
        if missing := syncing.result():
            kinds = ", ".join(missing)
            raise NotSyncedError(
                f"the controller {self._name} has waited {self._sync_timeout:g} s for {kinds}: "
                "check that the kind is installed and that it may be listed and watched"
            )
        return True

    async def _missing_kinds(self, started: list[_StartedWatch]) -> list[str]:
        try:
            async with asyncio.timeout(self._sync_timeout):
                for each in started:
                    await each.completed()
        except TimeoutError:
            return [each.informer.resource.group_kind for each in started if not each.is_complete]
        return []

    async def _work(self) -> None:
        while True:
            try:
                request, priority = await self._queue.next()
            except QueueShutDownError:
                return
            try:
                await self._work_one(request, priority)
            finally:
                self._queue.done(request)
            # A reconcile without changes may never await: let other tasks run in between.
            await self._clock.sleep(0)

    async def _work_one(self, request: Request, priority: int) -> None:
        started = self._clock.monotonic()
        self._metrics.active(1)
        try:
            with bound_contextvars(
                controller=self._name,
                namespace=request.namespace,
                name=request.name,
                reconcileID=str(uuid4()),
            ):
                outcome = await self._reconcile(request)
                seconds = self._clock.monotonic() - started
                if isinstance(outcome, Result):
                    self._succeeded(request, priority, outcome, seconds)
                else:
                    self._failed(request, priority, outcome, seconds)
        finally:
            self._metrics.active(-1)

    async def _reconcile(self, request: Request) -> Result | Exception:
        deadline = asyncio.timeout(self._timeout)
        try:
            async with deadline:
                result: object = await self._reconciler.reconcile(request)
            # Not every reconciler is type-checked, and a missing `return` is a common mistake.
            return result if isinstance(result, Result) else TypeError(f"not a Result: {result!r}")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            cancelled = ReconcileCancelledError("an operation inside the reconcile was cancelled")
            cancelled.__cause__ = error
            return cancelled
        except Exception as error:  # noqa: BLE001  no error of a reconciler may end its worker
            return error
        finally:
            if deadline.expired():
                self._metrics.timed_out()

    def _succeeded(self, request: Request, priority: int, result: Result, seconds: float) -> None:
        if result.is_rate_limited:
            self._queue.add_rate_limited(request, priority=priority, max_delay=result.max_delay)
            self._metrics.reconciled("requeue", seconds)
        elif result.requeue_after is None:
            self._queue.forget(request)
            self._metrics.reconciled("success", seconds)
        else:
            self._queue.forget(request)
            self._queue.add(request, priority=priority, after=result.requeue_after)
            self._metrics.reconciled("requeue_after", seconds)
        log.debug(
            "reconcile_succeeded",
            seconds=seconds,
            requeue_after=result.requeue_after,
            requeue=result.is_rate_limited,
        )

    def _failed(self, request: Request, priority: int, error: Exception, seconds: float) -> None:
        self._metrics.reconciled("error", seconds)
        errors = list(leaf_errors(error))
        if any(isinstance(each, UNEXPECTED) for each in errors):
            self._metrics.panicked()
        if all(_is_terminal(each) for each in errors):
            self._metrics.terminal()
            log.error("reconcile_failed_terminally", seconds=seconds, exc_info=error)
            return
        max_delay, cause, is_reported = math.inf, dict[str, Any](exc_info=error), False
        if isinstance(error, ReconcileError):
            max_delay, cause = error.max_delay, {"error": str(error)}
            is_reported = error.is_reported
        self._queue.add_rate_limited(request, priority=priority, max_delay=max_delay)
        retries = self._queue.retries(request)
        write = log.debug if is_reported and retries > 1 else log.error
        write("reconcile_failed", seconds=seconds, retries=retries, **cause)


def _is_terminal(error: BaseException | None) -> bool:
    """Return whether the error is a TerminalError or was raised from one."""
    while error is not None and not isinstance(error, TerminalError):
        error = error.__cause__
    return error is not None
