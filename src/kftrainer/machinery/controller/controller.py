"""A controller: changes of the kinds it watches become requests, and workers reconcile them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import structlog
from structlog.contextvars import bound_contextvars

from kftrainer.kube.objects.resource import Resource
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.handlers import Handler
from kftrainer.machinery.controller.predicates import Predicate
from kftrainer.machinery.controller.reconcile import Reconciler, Request, Result, TerminalError
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.time_slices import SLICE, TimeSlices
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.queue.backoff import Backoff, Exponential
from kftrainer.machinery.queue.workqueue import QueueShutDownError, WorkQueue

log = structlog.get_logger(__name__)

# What was there before us can wait: what happens now comes first.
INITIAL_PRIORITY = -100

# Nobody raises these on purpose: they are mistakes in the reconciler, which Go would panic at.
MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    TypeError,
)


class NotSyncedError(Exception):
    """What a controller watches could not be read in time."""


class ReconcileCancelledError(Exception):
    """Something inside a reconcile was cancelled, though the reconcile itself was not."""


class Watchable(Protocol):
    """What a controller needs of an informer."""

    @property
    def resource(self) -> Resource[Any]:
        """The kind that it watches."""
        ...

    @property
    def has_synced(self) -> bool:
        """Whether all that was there at the start has been seen."""
        ...

    async def wait_synced(self) -> None:
        """Return when all that was there at the start has been seen."""
        ...

    def add_handler(self, handler: Callable[[ObjectEvent[Any]], None], /) -> asyncio.Event:
        """Tell the handler of all objects and then of changes; set when it knows what is here."""
        ...


@dataclass(frozen=True, slots=True)
class _Watch:
    informer: Watchable
    handler: Handler
    predicates: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A watch whose handler has been added."""

    informer: Watchable
    told: asyncio.Event

    @property
    def is_complete(self) -> bool:
        return self.informer.has_synced and self.told.is_set()

    async def completed(self) -> None:
        await self.informer.wait_synced()
        await self.told.wait()


@dataclass(frozen=True, slots=True)
class _Remainder:
    """Requests of one handler that are yet to be added."""

    requests: Iterator[Request | None]
    priority: int


class Controller:
    """Keeps the objects reconciled that its watches lead to; a service that runs once.

    When it is told to stop, the reconciles in flight are finished and nothing else is begun.
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
            raise ValueError(f"the controller {name} needs a worker")
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
        self._early: dict[Request, None] = {}  # each once, in the order in which they came
        self._unfinished: asyncio.Queue[_Remainder] = asyncio.Queue()  # requests yet to be added
        self._has_begun = False

    @property
    def name(self) -> str:
        """Unique in a process: metrics and logs are told apart by it."""
        return self._name

    @property
    def has_begun(self) -> bool:
        """Whether it runs, so that requests go to its queue."""
        return self._has_begun

    def watch(self, informer: Watchable, handler: Handler, *predicates: Predicate) -> None:
        """Let the handler make requests of those changes that pass all predicates.

        A watch that is added when the controller runs already begins at once; nobody waits for it.
        """
        watch = _Watch(informer, handler, predicates)
        self._watches.append(watch)
        if self._has_begun:
            self._begin(watch)

    def enqueue(self, request: Request, *, priority: int = 0) -> None:
        """Look at this object, though nothing that is watched has changed.

        Before the controller runs this is only noted: on a replica that does not lead, a queue that
        fills up would look like one that nobody comes to.
        """
        self.enqueue_all((request,), priority=priority)

    def enqueue_all(self, requests: Iterable[Request], *, priority: int = 0) -> None:
        """Look at all these objects; those that take longer to be added are added in small steps.

        Before the controller runs they are only noted, as with `enqueue`.
        """
        if self._has_begun:
            self._add_all(iter(requests), priority)
        else:
            self._early.update(dict.fromkeys(requests))

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Work until `stop` is set; ready when all that it watches has been read."""
        if not self._watches:
            raise ValueError(f"the controller {self._name} watches nothing")
        self._has_begun = True
        begun = [self._begin(watch) for watch in self._watches]
        early, self._early = self._early, {}
        self._add_all(iter(early), INITIAL_PRIORITY)
        if not await self._synced(begun, stop):
            return
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self._name}-{number}")
            adding = group.create_task(self._add_remainders(), name=f"{self._name}-adding")
            log.info("controller.started", controller=self._name, workers=self._workers)
            try:
                ready()
                await stop.wait()
            finally:
                # Also when cancelled: a reconciler that swallows that must not go on to the next.
                self._queue.shut_down()
                adding.cancel()
        log.info("controller.stopped", controller=self._name)

    def _begin(self, watch: _Watch) -> _Begun:
        return _Begun(watch.informer, watch.informer.add_handler(self._enqueue_by(watch)))

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
        breather = TimeSlices(self._clock)
        while True:
            remainder = await self._unfinished.get()
            breather.begin()
            try:
                for request in remainder.requests:
                    if request is not None:
                        self._queue.add(request, priority=remainder.priority)
                    await breather.breathe()
            except Exception:  # one handler must not take the others' requests
                log.exception("controller.handler_failed", controller=self._name)

    async def _synced(self, begun: list[_Begun], stop: asyncio.Event) -> bool:
        """Wait until all that is there has been told; False if it is told to stop before that."""
        async with asyncio.TaskGroup() as group:
            syncing = group.create_task(self._missing_kinds(begun))
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
                "is the kind installed, and may we list and watch it?"
            )
        return True

    async def _missing_kinds(self, begun: list[_Begun]) -> list[str]:
        try:
            async with asyncio.timeout(self._sync_timeout):
                for each in begun:
                    await each.completed()
        except TimeoutError:
            return [each.informer.resource.group_kind for each in begun if not each.is_complete]
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
            # A reconcile that finds nothing to do may never wait: let others run between two.
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
            # Not every reconciler is type-checked, and a forgotten `return` is soon written.
            return result if isinstance(result, Result) else TypeError(f"not a Result: {result!r}")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            cancelled = ReconcileCancelledError("something inside the reconcile was cancelled")
            cancelled.__cause__ = error
            return cancelled
        except Exception as error:  # noqa: BLE001  whatever a reconciler does, its worker lives
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
            "reconcile.succeeded",
            seconds=seconds,
            requeue_after=result.requeue_after,
            requeue=result.is_rate_limited,
        )

    def _failed(self, request: Request, priority: int, error: Exception, seconds: float) -> None:
        self._metrics.reconciled("error", seconds)
        errors = list(_within(error))
        if any(isinstance(each, MISTAKES) for each in errors):
            self._metrics.panicked()
        if all(_is_terminal(each) for each in errors):
            self._metrics.terminal()
            log.error("reconcile.gave_up", seconds=seconds, exc_info=error)
            return
        self._queue.add_rate_limited(request, priority=priority)
        retries = self._queue.retries(request)
        log.error("reconcile.failed", seconds=seconds, retries=retries, exc_info=error)


def _within(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, of which each one counts; or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _within(each)
    else:
        yield error


def _is_terminal(error: BaseException | None) -> bool:
    """Whether it is a TerminalError, or was raised from one."""
    while error is not None and not isinstance(error, TerminalError):
        error = error.__cause__
    return error is not None
