import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.queue.backoff import Exponential
from kftrainer.machinery.queue.workqueue import QueueShutDownError, WorkQueue
from tests.support.fake_clock import FakeClock, at_rest

A, B, C = (Request("ns", name) for name in "abc")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue:
    return WorkQueue(clock, Exponential(base=1, cap=100))


class Workers:
    """Take requests from a queue for ever, and keep the order in which they got them."""

    def __init__(self, queue: WorkQueue, clock: FakeClock, seconds: float) -> None:
        self.queue = queue
        self.clock = clock
        self.seconds = seconds
        self.got: list[tuple[float, Request]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def work(self) -> None:
        while True:
            request, _ = await self.queue.next()
            self.got.append((self.clock.monotonic(), request))
            try:
                await self.clock.sleep(self.seconds)
            finally:
                self.queue.done(request)


@asynccontextmanager
async def workers(
    queue: WorkQueue, clock: FakeClock, count: int, seconds: float = 0.0
) -> AsyncIterator[Workers]:
    """A number of workers, each of which processes a request for a number of seconds."""
    team = Workers(queue, clock, seconds)
    async with asyncio.TaskGroup() as group:
        team.tasks = [group.create_task(team.work()) for _ in range(count)]
        await at_rest()
        yield team
        for task in team.tasks:
            task.cancel()


async def test_worker_gets_a_queued_request_with_its_priority(queue: WorkQueue) -> None:
    queue.add(A, priority=-100)
    assert await queue.next() == (A, -100)


async def test_waiting_worker_gets_an_added_request(queue: WorkQueue, clock: FakeClock) -> None:
    async with workers(queue, clock, 1) as team:
        queue.add(A)
        await at_rest()
        assert team.got == [(0, A)]


async def test_a_delayed_request_is_handed_out_at_its_time(
    queue: WorkQueue, clock: FakeClock
) -> None:
    async with workers(queue, clock, 3) as team:
        queue.add(A, after=5)
        queue.add(B, after=2)
        queue.add(C, after=9)
        await clock.advance(10)
        assert team.got == [(2, B), (5, A), (9, C)]


async def test_only_one_worker_watches_the_time(queue: WorkQueue, clock: FakeClock) -> None:
    async with workers(queue, clock, 4):
        queue.add(A, after=5)
        queue.add(B, after=2)
        await at_rest()
        assert clock.sleeping == [2]
        await clock.advance(3)
        assert clock.sleeping == [5]


async def test_earlier_deadline_wakes_the_timing_worker(queue: WorkQueue, clock: FakeClock) -> None:
    async with workers(queue, clock, 1) as team:
        queue.add(A, after=5)
        await at_rest()
        queue.add(B, after=2)
        await clock.advance(2)
        assert team.got == [(2, B)]


async def test_another_worker_takes_over_the_timer_while_the_first_is_busy(
    queue: WorkQueue, clock: FakeClock
) -> None:
    async with workers(queue, clock, 2, seconds=10) as team:
        queue.add(A, after=2)
        queue.add(B, after=3)
        await clock.advance(3)
        assert team.got == [(2, A), (3, B)]


async def test_request_added_in_flight_is_given_to_a_waiting_worker_when_done(
    queue: WorkQueue, clock: FakeClock
) -> None:
    queue.add(A)
    await queue.next()
    async with workers(queue, clock, 1) as team:
        queue.add(A)
        await at_rest()
        assert team.got == []
        queue.done(A)
        await at_rest()
        assert team.got == [(0, A)]


async def test_timing_worker_takes_requests_added_concurrently(
    queue: WorkQueue, clock: FakeClock
) -> None:
    async with workers(queue, clock, 1) as team:
        queue.add(A, after=5)
        await at_rest()
        queue.add(B)
        await clock.advance(6)
        assert team.got == [(0, B), (5, A)]


async def test_when_the_watcher_of_the_time_is_cancelled_another_one_watches(
    queue: WorkQueue, clock: FakeClock
) -> None:
    async with workers(queue, clock, 2) as team:
        queue.add(A, after=5)
        await at_rest()
        team.tasks[0].cancel()  # the first in the line was the first to look at the time
        await clock.advance(5)
        assert team.got == [(5, A)]


class WatchedClock(FakeClock):
    """A clock that counts how often it is read."""

    reads = 0

    def monotonic(self) -> float:
        self.reads += 1
        return super().monotonic()


async def test_no_more_workers_wake_than_there_are_items() -> None:
    clock = WatchedClock()
    queue = WorkQueue(clock, Exponential())

    async def wait_once() -> None:
        with suppress(QueueShutDownError):
            await queue.next()

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(wait_once())
        await at_rest()
        before = clock.reads
        for request in (A, A, B):
            queue.add(request)
        await at_rest()
        assert clock.reads - before == 3 + 2  # three adds, and two who come to the queue
        queue.shut_down()


async def test_request_of_a_cancelled_worker_is_given_to_another(
    queue: WorkQueue, clock: FakeClock
) -> None:
    async with workers(queue, clock, 2) as team:
        queue.add(A)
        team.tasks[0].cancel()  # has been woken by now, and has not run yet
        await at_rest()
        assert team.got == [(0, A)]


async def test_worker_cancelled_while_waiting_takes_no_request(
    queue: WorkQueue, clock: FakeClock
) -> None:
    async with workers(queue, clock, 1) as team:
        team.tasks[0].cancel()
        queue.add(A)
        await at_rest()
        assert team.got == []
    assert await queue.next() == (A, 0)


async def test_failure_delay_grows_until_it_is_reset(queue: WorkQueue, clock: FakeClock) -> None:
    async with workers(queue, clock, 1) as team:
        for _ in range(3):
            queue.add_rate_limited(A)
            await clock.advance(10)
        assert queue.retries(A) == 3
        queue.forget(A)
        assert queue.retries(A) == 0
        queue.add_rate_limited(A)
        await clock.advance(10)
        assert team.got == [(1, A), (12, A), (24, A), (31, A)]


async def test_shutting_down_the_queue_stops_all_workers(
    queue: WorkQueue, clock: FakeClock
) -> None:
    async def work() -> None:
        with pytest.raises(QueueShutDownError):
            await queue.next()

    queue.add(A, after=5)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(work())
        await at_rest()
        assert clock.sleeping == [5]
        queue.shut_down()
    assert clock.sleeping == []


async def test_queue_that_is_shut_down_accepts_and_returns_nothing(
    queue: WorkQueue,
) -> None:
    queue.add(A)
    queue.shut_down()
    queue.add(B)
    assert len(queue) == 1
    with pytest.raises(QueueShutDownError):
        await queue.next()


async def test_a_queue_is_drained_when_the_last_work_has_ended(queue: WorkQueue) -> None:
    queue.add(A)
    queue.add(B)
    await queue.next()
    await queue.next()
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(queue.drained())
        queue.done(A)
        await at_rest()
        queue.shut_down()
        await at_rest()
        assert not draining.done()
        queue.done(B)


async def test_an_idle_queue_is_drained_at_once(queue: WorkQueue) -> None:
    queue.shut_down()
    await queue.drained()


async def test_an_open_queue_is_not_drained_though_nothing_is_in_work(queue: WorkQueue) -> None:
    queue.add(A)
    await queue.next()
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(queue.drained())
        queue.done(A)
        await at_rest()
        assert not draining.done()
        queue.shut_down()


async def test_real_clock_wakes_a_worker() -> None:
    queue = WorkQueue(SystemClock(), Exponential())
    queue.add(A, after=0.01)
    async with asyncio.timeout(10):
        assert await queue.next() == (A, 0)


async def test_queue_operations_are_counted_in_metrics(clock: FakeClock) -> None:
    metrics = Metrics()
    queue = WorkQueue(clock, Exponential(base=1, cap=100), metrics.for_queue("q"))

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"name": "q", "controller": "q", **labels})

    queue.add(A, priority=-100)
    queue.add(A)
    queue.add(B, priority=-100)
    queue.add_rate_limited(C)
    assert [value("workqueue_depth", priority=each) for each in ("0", "-100")] == [1, 1]
    await clock.advance(2)
    await queue.next()
    await clock.advance(3)
    assert value("workqueue_unfinished_work_seconds") == 3
    queue.done(A)
    assert {
        name: value(f"workqueue_{name}")
        for name in (
            "adds_total",
            "retries_total",
            "queue_duration_seconds_sum",
            "work_duration_seconds_sum",
            "longest_running_processor_seconds",
        )
    } == {
        "adds_total": 3,
        "retries_total": 1,
        "queue_duration_seconds_sum": 2,
        "work_duration_seconds_sum": 3,
        "longest_running_processor_seconds": 0,
    }


delays = st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0])
steps = st.one_of(
    st.tuples(st.just("add"), st.dictionaries(st.sampled_from([A, B, C]), delays, min_size=1)),
    st.tuples(st.just("cancel"), st.integers(0, 3)),
    st.tuples(st.just("advance"), st.sampled_from([0, 0.5, 1])),
)


@given(script=st.lists(steps, max_size=30))
def test_each_request_is_taken_once_and_in_time_under_random_cancellation(
    script: list[tuple[str, Any]],
) -> None:
    asyncio.run(_each_request_is_handed_out_in_time(script))


async def _each_request_is_handed_out_in_time(script: list[tuple[str, Any]]) -> None:
    clock = FakeClock()
    queue = WorkQueue(clock, Exponential())
    wanted: list[tuple[float, Request]] = []
    pending: dict[Request, float] = {}
    async with workers(queue, clock, 5) as team:  # the fifth is never cancelled
        for step, what in [*script, ("advance", 3)]:
            if step == "cancel":
                team.tasks[what].cancel()
                continue
            await at_rest()
            until = clock.monotonic() + (what if step == "advance" else 0)
            for request, due in list(pending.items()):
                if due <= until:
                    wanted.append((pending.pop(request), request))
            if step == "advance":
                await clock.advance(what)
                continue
            for request, after in what.items():
                queue.add(request, after=after)
                pending[request] = min(pending.get(request, inf), clock.monotonic() + after)
        assert sorted(team.got) == sorted(wanted)
        assert clock.sleeping == []
