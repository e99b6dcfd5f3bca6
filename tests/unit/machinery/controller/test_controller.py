import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from kftrainer.devcluster.waiting import until
from kftrainer.kube.objects.resource import ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.cache import NotSyncedError
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.handlers import enqueue_mapped, enqueue_self
from kftrainer.machinery.controller.reconcile import (
    DONE,
    ReconcileError,
    Request,
    Result,
    TerminalError,
)
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.queue.backoff import Exponential
from tests.support.fake_clock import FakeClock, at_rest

WIDGETS = Resource("example.com", "v1", "Widget", "widgets", namespaced=True, decode=unstructured)
GADGETS = Resource("example.com", "v1", "Gadget", "gadgets", namespaced=True, decode=unstructured)
A, B, C = (Request("ns", name) for name in "abc")

Behaviour = Callable[[Request], Awaitable[Result]]


@dataclass
class Object:
    """An object of which nothing matters here."""

    metadata: dict[str, Any] = field(default_factory=dict)
    object: Any = None


class Informer:
    """Calls its handlers with the events of a test."""

    def __init__(self, resource: Resource[Any] = WIDGETS, *, synced: bool = True) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self.handlers: list[Callable[[ObjectEvent[Any]], None]] = []
        self.synced_event = asyncio.Event()  # all handlers of all that was there before them
        self.synced_event.set()
        if synced:
            self.synced.set()

    @property
    def has_synced(self) -> bool:
        return self.synced.is_set()

    async def wait_synced(self) -> None:
        await self.synced.wait()

    def add_handler(self, handler: Callable[[ObjectEvent[Any]], None], /) -> asyncio.Event:
        self.handlers.append(handler)
        return self.synced_event

    def deliver(self, *keys: ObjectKey, initial: bool = False, content: Any = None) -> None:
        """There is a new object of each key."""
        for key in keys:
            for handler in self.handlers:
                handler(ObjectEvent(key, None, Object(object=content), initial=initial))


class Recording:
    """A reconciler that records its requests and returns the results of a test."""

    def __init__(self, clock: FakeClock, behaviour: Behaviour) -> None:
        self.clock = clock
        self.behaviour = behaviour
        self.calls: list[tuple[float, str]] = []
        self.contexts: list[dict[str, Any]] = []

    async def reconcile(self, request: Request) -> Result:
        self.calls.append((self.clock.monotonic(), request.name))
        self.contexts.append(structlog.contextvars.get_contextvars())
        return await self.behaviour(request)


async def succeed(_: Request) -> Result:
    return DONE


def raising(error: BaseException) -> Behaviour:
    async def behave(_: Request) -> Result:
        raise error

    return behave


class World:
    """A controller with all that it needs, and a look at what it did."""

    def __init__(self, behaviour: Behaviour, **options: Any) -> None:
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.informer = Informer()
        self.reconciler = Recording(self.clock, behaviour)
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.controller = Controller(
            "widget",
            self.reconciler,
            clock=self.clock,
            metrics=self.metrics,
            backoff=Exponential(base=1, cap=100),
            **options,
        )
        self.controller.watch(self.informer, enqueue_self)

    async def run(self) -> None:
        await self.controller.run(self.ready.set, self.stop)

    def counted(self, name: str, **labels: str) -> float | None:
        labels = {"controller": "widget", **labels}
        return self.metrics.registry.get_sample_value(f"controller_runtime_{name}", labels)

    def of_queue(self, name: str) -> float:
        """The value of a metric of the queue, over all priorities."""
        samples = (each for family in self.metrics.registry.collect() for each in family.samples)
        return sum(each.value for each in samples if each.name == f"workqueue_{name}")

    def results(self) -> dict[str, float]:
        """How many reconciles had which result, and what else was counted, if anything was."""
        names = ("reconcile_errors", "terminal_reconcile_errors", "reconcile_panics")
        counts = {name: self.counted(f"{name}_total") for name in (*names, "reconcile_timeouts")}
        for result in ("success", "error", "requeue_after", "requeue"):
            counts[result] = self.counted("reconcile_total", result=result)
        return {name: count for name, count in counts.items() if count}

    async def has_results(self) -> bool:
        return bool(self.results())


@asynccontextmanager
async def world(behaviour: Behaviour, **options: Any) -> AsyncIterator[World]:
    """The same, running; it is stopped at the end."""
    it = World(behaviour, **options)
    async with asyncio.TaskGroup() as group:
        group.create_task(it.run())
        await at_rest()
        yield it
        it.stop.set()


async def test_a_change_is_reconciled() -> None:
    async with world(succeed) as it:
        it.informer.deliver(A)
        await at_rest()
        assert (it.reconciler.calls, it.results()) == ([(0, "a")], {"success": 1})


async def test_nothing_is_reconciled_before_all_informers_have_synced() -> None:
    it = World(succeed)
    late = Informer(GADGETS, synced=False)
    it.controller.watch(late, enqueue_self)
    async with asyncio.TaskGroup() as group:
        group.create_task(it.run())
        await at_rest()
        it.informer.deliver(A)
        await at_rest()
        assert (it.reconciler.calls, it.ready.is_set()) == ([], False)
        late.synced.set()
        await at_rest()
        assert (it.reconciler.calls, it.ready.is_set()) == ([(0, "a")], True)
        it.stop.set()


async def test_nothing_is_reconciled_before_initial_objects_were_delivered() -> None:
    it = World(succeed)
    it.informer.synced_event.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(it.run())
        await at_rest()
        it.informer.deliver(A, initial=True)
        await at_rest()
        assert (it.reconciler.calls, it.ready.is_set()) == ([], False)
        it.informer.synced_event.set()
        await at_rest()
        assert (it.reconciler.calls, it.ready.is_set()) == ([(0, "a")], True)
        it.stop.set()


async def test_informer_that_does_not_sync_in_time_is_named() -> None:
    it = World(succeed, sync_timeout=0.01)
    it.informer.synced_event.clear()
    with pytest.raises(NotSyncedError, match=r"widget has waited 0.01 s for Widget.example.com:"):
        async with asyncio.timeout(10):
            await it.run()


async def test_watch_added_later_starts_at_once() -> None:
    async with world(succeed) as it:
        late = Informer(GADGETS)
        it.controller.watch(late, enqueue_self)
        late.deliver(A)
        await at_rest()
        assert it.reconciler.calls == [(0, "a")]


async def test_watch_added_before_the_start_is_started_once() -> None:
    async with world(succeed) as it:
        assert len(it.informer.handlers) == 1


async def test_start_does_not_wait_for_a_watch_added_during_it() -> None:
    it = World(succeed)
    it.informer.synced.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(it.run())
        await at_rest()
        late = Informer(GADGETS, synced=False)
        it.controller.watch(late, enqueue_self)
        it.informer.synced.set()
        await at_rest()
        assert (it.ready.is_set(), len(late.handlers)) == (True, 1)
        it.stop.set()


async def test_an_informer_that_does_not_sync_in_time_is_named() -> None:
    it = World(succeed, sync_timeout=0.01)
    it.controller.watch(Informer(GADGETS, synced=False), enqueue_self)
    with pytest.raises(NotSyncedError, match=r"widget has waited 0.01 s for Gadget.example.com:"):
        async with asyncio.timeout(10):
            await it.run()


async def test_a_controller_that_is_stopped_before_it_is_ready_returns() -> None:
    it = World(succeed)
    it.controller.watch(Informer(synced=False), enqueue_self)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(it.run())
        await at_rest()
        it.stop.set()
    assert not it.ready.is_set()


async def test_a_controller_that_watches_nothing_is_refused() -> None:
    controller = Controller("idle", Recording(FakeClock(), succeed), clock=FakeClock())
    with pytest.raises(ValueError, match="idle watches nothing"):
        await controller.run(lambda: None, asyncio.Event())


def test_a_controller_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="idle needs at least one worker"):
        Controller("idle", Recording(FakeClock(), succeed), clock=FakeClock(), workers=0)


async def test_initial_objects_have_lower_priority_than_events() -> None:
    held = asyncio.Event()

    async def block_first(request: Request) -> Result:
        if request == A:
            await held.wait()
        return DONE

    async with world(block_first) as it:
        it.informer.deliver(A)
        await at_rest()
        it.informer.deliver(B, initial=True)
        it.informer.deliver(C)
        held.set()
        await at_rest()
        assert [name for _, name in it.reconciler.calls] == ["a", "c", "b"]


async def test_requests_enqueued_before_the_start_are_buffered() -> None:
    it = World(succeed)
    for request in (A, B, A):
        it.controller.enqueue(request)
    await it.clock.advance(1000)  # on a replica that does not lead
    assert (it.of_queue("depth"), it.of_queue("adds_total")) == (0, 0)
    it.informer.synced_event.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(it.run())
        await at_rest()
        assert it.of_queue("depth") == 2
        it.controller.enqueue(C)
        it.informer.synced_event.set()
        await at_rest()
        assert it.reconciler.calls == [(1000, "c"), (1000, "a"), (1000, "b")]
        assert (it.of_queue("depth"), it.of_queue("queue_duration_seconds_sum")) == (0, 0)
        it.stop.set()


async def test_only_events_passing_all_predicates_are_handled() -> None:
    it = World(succeed)
    informer = Informer(GADGETS)
    to_both = enqueue_mapped(lambda names: [Request("ns", name) for name in names])
    it.controller.watch(informer, to_both, lambda change: change.key != A, lambda _: True)
    async with asyncio.TaskGroup() as group:
        group.create_task(it.run())
        await at_rest()
        informer.deliver(A, B, content=["x", "y"])
        await at_rest()
        assert [name for _, name in it.reconciler.calls] == ["x", "y"]
        it.stop.set()


async def test_failure_is_retried_with_backoff() -> None:
    async with world(raising(OSError("no network"))) as it:
        it.informer.deliver(A)
        await clock_runs(it, 10)
        assert it.reconciler.calls == [(0, "a"), (1, "a"), (3, "a"), (7, "a")]
        assert it.results() == {"error": 4, "reconcile_errors": 4}


async def clock_runs(it: World, seconds: float) -> None:
    """Let everyone act, then let time pass, and let everyone act."""
    await at_rest()
    await it.clock.advance(seconds)


async def test_success_resets_the_failure_count() -> None:
    outcomes = iter([OSError(), OSError(), None, OSError()])

    async def alternately(_: Request) -> Result:
        if error := next(outcomes, None):
            raise error
        return DONE

    async with world(alternately) as it:
        it.informer.deliver(A)
        await clock_runs(it, 10)
        it.informer.deliver(A)
        await clock_runs(it, 10)
        assert [at for at, _ in it.reconciler.calls] == [0, 1, 3, 10, 11]


async def test_a_failure_keeps_its_priority() -> None:
    async def fail_once(request: Request) -> Result:
        if request == A and len(it.reconciler.calls) == 1:
            raise OSError
        if request == B:
            await it.clock.sleep(5)
        return DONE

    async with world(fail_once) as it:
        it.informer.deliver(A, initial=True)
        await at_rest()
        it.informer.deliver(B)
        await clock_runs(it, 2)  # the retry of a is due, and its worker busy with b
        it.informer.deliver(C)
        await it.clock.advance(10)
        assert [name for _, name in it.reconciler.calls] == ["a", "b", "c", "a"]


async def test_requeue_after_is_scheduled() -> None:
    async def requeue(_: Request) -> Result:
        return Result(requeue_after=30)

    async with world(requeue) as it:
        it.informer.deliver(A)
        await clock_runs(it, 70)
        assert [at for at, _ in it.reconciler.calls] == [0, 30, 60]
        assert it.results() == {"requeue_after": 3}


async def test_requeue_resets_the_failure_count() -> None:
    outcomes: list[OSError | Result] = [OSError(), OSError(), Result(requeue_after=50), OSError()]

    async def alternately(_: Request) -> Result:
        outcome = outcomes.pop(0) if outcomes else DONE
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    async with world(alternately) as it:
        it.informer.deliver(A)
        await clock_runs(it, 100)
        assert [at for at, _ in it.reconciler.calls] == [0, 1, 3, 53, 54]


@pytest.mark.parametrize(
    "result", [Result(requeue=True), Result(requeue_after=0), Result(requeue_after=-1.5)], ids=repr
)
async def test_requeue_without_delay_is_rate_limited(
    result: Result,
) -> None:
    async def requeue(_: Request) -> Result:
        return result

    async with world(requeue) as it:
        it.informer.deliver(A)
        await clock_runs(it, 10)
        assert [at for at, _ in it.reconciler.calls] == [0, 1, 3, 7]
        assert it.results() == {"requeue": 4}


async def test_back_off_of_a_result_does_not_exceed_its_bound() -> None:
    async def requeue(_: Request) -> Result:
        return Result(requeue=True, max_delay=3)

    async with world(requeue) as it:
        it.informer.deliver(A)
        await clock_runs(it, 10)
        assert [at for at, _ in it.reconciler.calls] == [0, 1, 3, 6, 9]


async def test_reconcile_error_is_counted_and_retried_within_its_bound() -> None:
    with capture_logs() as logs:
        async with world(raising(ReconcileError("no answer", max_delay=3))) as it:
            it.informer.deliver(A)
            await clock_runs(it, 10)
            assert [at for at, _ in it.reconciler.calls] == [0, 1, 3, 6, 9]
            assert it.results() == {"error": 5, "reconcile_errors": 5}
    failed = [each for each in logs if each["log_level"] == "error"]
    assert [(each["error"], "exc_info" in each) for each in failed] == [("no answer", False)] * 5


async def test_repeated_error_that_the_status_reports_is_logged_once_as_an_error() -> None:
    with capture_logs() as logs:
        async with world(raising(ReconcileError("rejected", max_delay=3, is_reported=True))) as it:
            it.informer.deliver(A)
            await clock_runs(it, 10)
            assert it.results() == {"error": 5, "reconcile_errors": 5}
    failed = [each["log_level"] for each in logs if each["event"] == "reconcile_failed"]
    assert failed == ["error", *["debug"] * 4]


def test_there_is_a_series_of_requeues_before_the_first() -> None:
    assert World(succeed).counted("reconcile_total", result="requeue") == 0


def test_requeue_and_requeue_after_together_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"either requeue, or requeue_after=30: not both"):
        Result(requeue=True, requeue_after=30)


def test_requeue_with_zero_delay_is_rate_limited() -> None:
    assert Result(requeue=True, requeue_after=0).is_rate_limited


async def test_change_postpones_a_pending_requeue() -> None:
    async def requeue(_: Request) -> Result:
        return Result(requeue_after=30)

    async with world(requeue) as it:
        it.informer.deliver(A)
        await clock_runs(it, 10)
        it.informer.deliver(A)
        await clock_runs(it, 35)
        assert [at for at, _ in it.reconciler.calls] == [0, 10, 40]


def raised_from(cause: BaseException) -> Exception:
    error = ValueError("wrapped")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        TerminalError("never"),
        raised_from(TerminalError("never")),
        ExceptionGroup("all", [TerminalError("never"), raised_from(TerminalError("never"))]),
    ],
)
async def test_terminal_error_is_not_retried(error: Exception) -> None:
    async with world(raising(error)) as it:
        it.informer.deliver(A)
        await clock_runs(it, 1000)
        assert it.reconciler.calls == [(0, "a")]
        assert it.results() == {"error": 1, "reconcile_errors": 1, "terminal_reconcile_errors": 1}


async def test_mixed_error_group_is_retried() -> None:
    async with world(raising(ExceptionGroup("both", [TerminalError(), OSError()]))) as it:
        it.informer.deliver(A)
        await clock_runs(it, 1)
        assert it.results() == {"error": 2, "reconcile_errors": 2}


async def test_terminal_error_is_reconciled_again_after_a_change() -> None:
    async with world(raising(TerminalError())) as it:
        it.informer.deliver(A)
        await clock_runs(it, 10)
        it.informer.deliver(A)
        await at_rest()
        assert [at for at, _ in it.reconciler.calls] == [0, 10]


@pytest.mark.parametrize("error", [KeyError("x"), ExceptionGroup("all", [TypeError(), OSError()])])
async def test_reconciler_exception_is_counted_and_the_worker_continues(
    error: Exception,
) -> None:
    async with world(raising(error)) as it:
        it.informer.deliver(A)
        await clock_runs(it, 1)
        assert it.results() == {"error": 2, "reconcile_errors": 2, "reconcile_panics": 2}


async def test_reconciler_without_result_has_failed() -> None:
    async def forget(_: Request) -> Any:
        return None

    async with world(forget) as it:
        with capture_logs() as logs:
            it.informer.deliver(A)
            await at_rest()
        assert it.results() == {"error": 1, "reconcile_errors": 1, "reconcile_panics": 1}
        assert str(logs[-1]["exc_info"]) == "not a Result: None"


async def test_reconcile_timeout_is_counted_and_retried() -> None:
    first = True

    async def block_once(_: Request) -> Result:
        nonlocal first
        if first:
            first = False
            await asyncio.Event().wait()
        return DONE

    async with world(block_once, timeout=0.01) as it:
        it.informer.deliver(A)
        await until(it.has_results, within=10, what="a reconcile's end")
        await clock_runs(it, 1)
        assert it.results() == {
            "error": 1,
            "reconcile_errors": 1,
            "reconcile_timeouts": 1,
            "success": 1,
        }


async def test_timeout_inside_the_reconciler_is_not_counted_as_ours() -> None:
    async with world(raising(TimeoutError()), timeout=60) as it:
        it.informer.deliver(A)
        await at_rest()
        assert it.results() == {"error": 1, "reconcile_errors": 1}


async def test_cancellation_inside_the_reconciler_is_a_failure() -> None:
    async with world(raising(asyncio.CancelledError())) as it:
        it.informer.deliver(A)
        await clock_runs(it, 1)
        assert it.results() == {"error": 2, "reconcile_errors": 2}


async def test_one_object_is_never_reconciled_by_two_workers_at_once() -> None:
    at_work: list[str] = []
    most = 0

    async def slowly(request: Request) -> Result:
        nonlocal most
        assert request.name not in at_work
        at_work.append(request.name)
        most = max(most, len(at_work))
        await it.clock.sleep(1)
        at_work.remove(request.name)
        return DONE

    async with world(slowly, workers=3) as it:
        for _ in range(10):
            it.informer.deliver(A, B)
            await it.clock.advance(0.3)
        await it.clock.advance(10)
        assert most == 2
        assert it.results() == {"success": len(it.reconciler.calls)}


async def test_as_many_are_reconciled_at_once_as_there_are_workers() -> None:
    async def slowly(_: Request) -> Result:
        await it.clock.sleep(1)
        return DONE

    async with world(slowly, workers=2) as it:
        it.informer.deliver(A, B, C)
        await at_rest()
        assert it.counted("active_workers") == it.counted("max_concurrent_reconciles") == 2
        await it.clock.advance(5)
        assert it.reconciler.calls == [(0, "a"), (0, "b"), (1, "c")]
        assert it.counted("active_workers") == 0
        assert it.counted("reconcile_time_seconds_sum") == 3


async def test_every_reconcile_has_a_log_context_of_its_own() -> None:
    async with world(succeed, workers=2) as it:
        it.informer.deliver(A, B)
        await at_rest()
        first, second = it.reconciler.contexts
    ids = {context.pop("reconcileID") for context in (first, second)}
    assert len(ids) == 2
    assert [first, second] == [
        {"controller": "widget", "namespace": "ns", "name": "a"},
        {"controller": "widget", "namespace": "ns", "name": "b"},
    ]


async def test_stop_finishes_requests_in_flight_and_starts_no_others() -> None:
    ended: list[Request] = []

    async def slowly(request: Request) -> Result:
        await it.clock.sleep(5)
        ended.append(request)
        return DONE

    it = World(slowly, workers=2)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(it.run())
        await at_rest()
        it.informer.deliver(A, B, C)
        await at_rest()
        it.stop.set()
        await it.clock.advance(4)
        assert not running.done()
        await it.clock.advance(1)
    assert (ended, it.results()) == ([A, B], {"success": 2})


async def test_when_cancelled_it_ends_at_once() -> None:
    async def hang(_: Request) -> Result:
        await asyncio.Event().wait()
        return DONE

    it = World(hang)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        running = group.create_task(it.run())
        await at_rest()
        it.informer.deliver(A)
        await at_rest()
        running.cancel()
    assert running.cancelled()
    assert (it.results(), it.counted("active_workers")) == ({}, 0)


async def test_a_reconciler_that_swallows_the_cancellation_is_the_last_one_to_run() -> None:
    async def swallow_cancellation(_: Request) -> Result:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return DONE
        return DONE

    it = World(swallow_cancellation)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        running = group.create_task(it.run())
        await at_rest()
        it.informer.deliver(A, B)
        await at_rest()
        running.cancel()
    assert it.reconciler.calls == [(0, "a")]
