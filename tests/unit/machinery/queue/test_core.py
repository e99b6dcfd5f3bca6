"""The queue against a model of it, and each of its promises in a sentence."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.queue.core import PATIENCE, TURNS, QueueCore

A, B, C = (Request("ns", name) for name in "abc")
URGENT = Request("ns", "urgent")
requests = st.sampled_from([Request("ns", name) for name in "abcde"])
priorities = st.sampled_from([-100, -100, 0, 0, 10])


class Tally:
    """Counts the queue's events, as metrics do."""

    def __init__(self) -> None:
        self.depths: Counter[int] = Counter()
        self.adds = 0
        self.retries = 0
        self.waits: list[float] = []
        self.works: list[float] = []
        self.ages: Callable[[], Sequence[float]] = list

    def depth(self, priority: int, delta: int) -> None:
        self.depths[priority] += delta

    def added(self) -> None:
        self.adds += 1

    def handed_out(self, waited: float) -> None:
        self.waits.append(waited)

    def done(self, worked: float) -> None:
        self.works.append(worked)

    def retried(self) -> None:
        self.retries += 1

    def watch_unfinished(self, ages: Callable[[], Sequence[float]]) -> None:
        self.ages = ages


@dataclass
class Pending:
    """The model's state of a pending request."""

    priority: int
    at: float
    arrived: float = -1  # its place among those that are ready; none while it waits for its time


class QueueModel(RuleBasedStateMachine):
    """The queue behaves like a plain list of requests that is searched from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()
        self.queue = QueueCore(self.tally)
        self.now = 0.0
        self.arrivals = 0
        self.passed_over = 0
        self.taken = 0
        self.pending: dict[Request, Pending] = {}
        self.in_flight: dict[Request, float] = {}

    def add_ready(self, entry: Pending) -> None:
        self.arrivals += 1
        entry.arrived = self.arrivals

    def advance_to_next(self) -> None:
        due = [w for w in self.pending.values() if w.arrived < 0 and w.at <= self.now]
        for entry in sorted(due, key=lambda w: w.at):
            self.add_ready(entry)

    @rule(request=requests, priority=priorities, after=st.sampled_from([0.0, 0.0, -1.0, 1.0, 7.0]))
    def add(self, request: Request, priority: int, after: float) -> None:
        # Those that become ready at the same moment may do so in any order: let there be none.
        self.now += 0.001
        self.queue.add(request, self.now, priority=priority, after=after)
        self.advance_to_next()
        at = self.now + max(after, 0)
        entry = self.pending.get(request)
        if entry is None:
            entry = self.pending[request] = Pending(priority, at)
            if after <= 0:
                self.add_ready(entry)
            return
        if priority > entry.priority:
            entry.priority = priority
            if entry.arrived >= 0:
                self.add_ready(entry)
        if entry.arrived < 0 and at < entry.at:
            entry.at = at
            if after <= 0:
                self.add_ready(entry)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, PATIENCE + 1]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        self.advance_to_next()
        taken = self.queue.take(self.now)
        ready = [
            (request, entry)
            for request, entry in self.pending.items()
            if entry.arrived >= 0 and request not in self.in_flight
        ]
        if not ready:
            assert taken is None
            return
        request, entry = self.next_request(ready)
        assert taken == (request, entry.priority)
        del self.pending[request]
        self.in_flight[request] = self.now
        self.taken += 1
        assert self.tally.waits.pop() == pytest.approx(self.now - entry.at)

    def next_request(self, ready: list[tuple[Request, Pending]]) -> tuple[Request, Pending]:
        urgent = min(ready, key=lambda each: (-each[1].priority, each[1].arrived))
        oldest = min(ready, key=lambda each: (each[1].at, each[1].arrived))
        if oldest == urgent or self.now - oldest[1].at < PATIENCE:
            return urgent
        self.passed_over += 1
        return oldest if self.passed_over % TURNS == 0 else urgent

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        self.finish(data.draw(st.sampled_from(sorted(self.in_flight))))

    @rule(times=st.integers(1, TURNS))
    def process_urgent(self, times: int) -> None:
        for _ in range(times):
            before = set(self.in_flight)
            self.add(URGENT, 100, 0.0)
            self.take()
            for request in set(self.in_flight) - before:
                self.finish(request)

    def finish(self, request: Request) -> None:
        self.queue.done(request, self.now)
        started = self.in_flight.pop(request)
        assert self.tally.works.pop() == pytest.approx(self.now - started)

    @invariant()
    def the_numbers_are_true(self) -> None:
        self.queue.promote_due(self.now)
        self.advance_to_next()
        ready = [request for request, entry in self.pending.items() if entry.arrived >= 0]
        waiting = [entry.at for entry in self.pending.values() if entry.arrived < 0]
        assert len(self.queue) == len(ready)
        assert self.queue.takeable == len(set(ready) - set(self.in_flight))
        assert self.queue.in_flight == len(self.in_flight)
        assert self.queue.next_ready_at == min(waiting, default=None)
        assert +self.tally.depths == Counter(self.pending[request].priority for request in ready)
        assert self.tally.adds == len(ready) + self.taken


QueueModel.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestQueueModel = QueueModel.TestCase


def taken(queue: QueueCore, now: float = 0.0) -> Request | None:
    """What is handed out, without its priority."""
    answer = queue.take(now)
    return None if answer is None else answer[0]


def test_request_added_repeatedly_is_taken_once() -> None:
    queue = QueueCore()
    for _ in range(5):
        queue.add(A, 0)
    assert [taken(queue), taken(queue)] == [A, None]


def test_request_in_flight_is_not_given_to_a_second_worker() -> None:
    queue = QueueCore()
    queue.add(A, 0)
    assert taken(queue) == A
    queue.add(A, 0)
    assert (taken(queue), len(queue), queue.takeable) == (None, 1, 0)


def test_request_added_in_flight_is_taken_again_when_done() -> None:
    queue = QueueCore()
    queue.add(A, 0)
    taken(queue)
    queue.add(A, 0)
    queue.add(A, 0)
    queue.done(A, 0)
    assert taken(queue) == A
    queue.done(A, 0)
    assert taken(queue) is None


def test_request_added_in_flight_keeps_its_queue_position() -> None:
    queue = QueueCore()
    queue.add(A, 0)
    taken(queue)
    queue.add(A, 0)
    queue.add(B, 0)
    queue.done(A, 0)
    assert [taken(queue), taken(queue)] == [A, B]


def test_one_in_flight_does_not_hold_up_those_behind_it() -> None:
    queue = QueueCore()
    queue.add(A, 0)
    taken(queue)
    queue.add(A, 0)
    queue.add(B, 0)
    assert taken(queue) == B


def test_higher_priority_is_first_and_equal_priorities_are_fifo() -> None:
    queue = QueueCore()
    queue.add(A, 0, priority=-100)
    queue.add(B, 0)
    queue.add(C, 0)
    assert [queue.take(0), queue.take(0), queue.take(0)] == [(B, 0), (C, 0), (A, -100)]


def test_a_priority_is_raised_and_never_lowered() -> None:
    queue = QueueCore()
    queue.add(A, 0, priority=-100)
    queue.add(A, 0, priority=5)
    queue.add(A, 0, priority=0)
    assert queue.take(0) == (A, 5)


def test_raised_request_is_queued_after_those_of_the_same_priority() -> None:
    queue = QueueCore()
    queue.add(A, 0, priority=-100)
    queue.add(B, 0)
    queue.add(A, 0)
    assert [taken(queue), taken(queue)] == [B, A]


def test_a_delay_is_waited_for_and_not_longer() -> None:
    queue = QueueCore()
    queue.add(A, 0, after=5)
    assert (taken(queue, 4.9), queue.next_ready_at, len(queue)) == (None, 5, 0)
    assert (taken(queue, 5), queue.next_ready_at) == (A, None)


@pytest.mark.parametrize("delays", [(5, 9), (9, 5)])
def test_of_two_delays_the_earlier_time_wins(delays: tuple[float, float]) -> None:
    queue = QueueCore()
    for delay in delays:
        queue.add(A, 0, after=delay)
    assert (taken(queue, 4), taken(queue, 5)) == (None, A)
    queue.done(A, 5)
    assert taken(queue, 100) is None


def test_add_without_delay_replaces_the_delayed_add() -> None:
    queue = QueueCore()
    queue.add(A, 0, after=5)
    queue.add(A, 1)
    assert (taken(queue, 1), queue.next_ready_at) == (A, None)


def test_a_delay_that_ends_in_flight_waits_for_the_work_to_end() -> None:
    queue = QueueCore()
    queue.add(A, 0)
    taken(queue)
    queue.add(A, 0, after=5)
    assert taken(queue, 6) is None
    queue.done(A, 7)
    assert taken(queue, 7) == A


def test_due_requests_are_ordered_by_their_times() -> None:
    queue = QueueCore()
    queue.add(A, 0, after=2)
    queue.add(B, 0, after=1)
    queue.add(C, 3)
    assert [taken(queue, 3) for _ in range(3)] == [B, A, C]


def test_done_without_get_is_an_error() -> None:
    with pytest.raises(KeyError):
        QueueCore().done(A, 0)


def test_a_steady_stream_of_urgent_requests_does_not_starve_the_others() -> None:
    queue = QueueCore()
    low = [Request("low", str(n)) for n in range(50)]
    for request in low:
        queue.add(request, 0, priority=-100)
    handed_out = []
    for turn in range(600):
        now = PATIENCE + turn * 0.001
        queue.add(Request("live", str(turn)), now)
        handed_out.append(taken(queue, now))
    positions = [n for n, request in enumerate(handed_out) if request in low]
    assert [handed_out[n] for n in positions] == low
    assert positions == [TURNS * (n + 1) - 1 for n in range(50)]


def test_short_waiting_does_not_exceed_higher_priority() -> None:
    queue = QueueCore()
    queue.add(A, 0, priority=-100)
    for turn in range(10 * TURNS):
        queue.add(Request("live", str(turn)), PATIENCE - 0.1)
    handed_out = [taken(queue, PATIENCE - 0.1) for _ in range(10 * TURNS)]
    assert A not in handed_out


def test_repeatedly_delayed_request_does_not_leak_memory() -> None:
    queue = QueueCore()
    queue.add(B, 0, after=1e5)
    for n in range(10_000):
        queue.add(A, n, after=1e6)
        queue.add(A, n)
        assert taken(queue, n) == A
        queue.done(A, n)
    heaps = (queue._waiting, queue._by_urgency, queue._by_age)
    assert max(len(heap._items) for heap in heaps) < 100


def test_age_of_unfinished_work_is_reported() -> None:
    queue = QueueCore()
    queue.add(A, 0)
    queue.add(B, 0)
    taken(queue, 1)
    taken(queue, 3)
    assert sorted(queue.unfinished(10)) == [7, 9]
