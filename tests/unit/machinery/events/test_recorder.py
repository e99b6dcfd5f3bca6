"""Which Events are written, and that recording them never hurts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.client.transport import Lane, Response
from kftrainer.machinery.events.correlator import Entry, EventCorrelator, Occurrence, cut
from kftrainer.machinery.events.recorder import EventRecorder, event_of, reference_to
from kftrainer.machinery.lru import Lru
from kftrainer.machinery.metrics.registry import Metrics
from tests.support.fake_clock import FakeClock, at_rest

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"namespace": "here", "name": "pi", "uid": "1234"},
}


def occurrence_of(message: str, reason: str = "Started") -> Occurrence:
    return Occurrence(reference_to(JOB), "Normal", reason, message)


class CorrelatorAtTime:
    """A correlator and the time."""

    def __init__(self) -> None:
        self.correlator = EventCorrelator()
        self.now = 0.0

    def __call__(self, message: str, reason: str = "Started") -> Entry | None:
        today = NOON + timedelta(seconds=self.now)
        return self.correlator.take(occurrence_of(message, reason), self.now, today)

    def record_now(self, message: str, reason: str = "Started") -> Entry:
        entry = self(message, reason)
        assert entry is not None
        return entry


@pytest.fixture
def correlator() -> CorrelatorAtTime:
    return CorrelatorAtTime()


def test_event_has_all_fields_that_clients_read(correlator: CorrelatorAtTime) -> None:
    event = event_of(correlator.record_now("off we go"), {"component": "trainer", "host": "pod-1"})
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "here", "name": "pi.1886999c36a18000"},
        "involvedObject": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": "here",
            "name": "pi",
            "uid": "1234",
        },
        "type": "Normal",
        "reason": "Started",
        "message": "off we go",
        "source": {"component": "trainer", "host": "pod-1"},
        "reportingComponent": "trainer",
        "reportingInstance": "pod-1",
        "firstTimestamp": "2026-01-01T12:00:00Z",
        "lastTimestamp": "2026-01-01T12:00:00Z",
        "count": 1,
    }


def test_an_event_about_no_namespace_is_in_the_default_one() -> None:
    about = reference_to({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    entry = EventCorrelator().take(Occurrence(about, "Normal", "Up", "up"), 0.0, NOON)
    assert entry is not None
    event = event_of(entry, {"component": "c", "host": "h"})
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}


def test_a_repeat_raises_the_count_of_the_first(correlator: CorrelatorAtTime) -> None:
    first = correlator.record_now("again")
    correlator.now = 5.0
    second = correlator.record_now("again")
    assert (second.name, second.first, second.count) == (first.name, first.first, 2)
    assert second.last == NOON + timedelta(seconds=5)


def test_another_message_is_another_event(correlator: CorrelatorAtTime) -> None:
    assert correlator.record_now("one").name != correlator.record_now("two").name


def test_the_tenth_message_and_all_after_it_become_one_event(correlator: CorrelatorAtTime) -> None:
    for number in range(9):
        assert correlator.record_now(f"message {number}").count == 1
    tenth = correlator.record_now("message 9")
    assert tenth.occurrence.message == "(combined from similar events): message 9"
    assert tenth.count == 1
    next_event = correlator.record_now("message 10")
    assert (next_event.name, next_event.count) == (tenth.name, 2)
    assert next_event.occurrence.message == "(combined from similar events): message 10"
    assert correlator.record_now("message 0", reason="Other").count == 1  # the reason is another


def test_messages_long_apart_are_not_similar(correlator: CorrelatorAtTime) -> None:
    for number in range(9):
        correlator.record_now(f"message {number}")
    correlator.now = 601.0
    assert correlator.record_now("message 9").occurrence.message == "message 9"


def test_repeated_message_counts_as_one(correlator: CorrelatorAtTime) -> None:
    for _ in range(20):
        entry = correlator.record_now("again")
    assert entry.occurrence.message == "again"


def test_after_a_burst_one_event_in_five_minutes_is_written(correlator: CorrelatorAtTime) -> None:
    assert [correlator("again") is not None for _ in range(27)] == [True] * 25 + [False] * 2
    correlator.now = 299.0
    assert correlator("again") is None
    correlator.now = 300.0
    assert correlator.record_now("again").count == 29  # those not written count as well
    assert correlator("again") is None


def test_tables_are_bounded_and_evict_least_recently_used() -> None:
    table: Lru[int, str] = Lru(2)
    table.put(1, "a")
    table.put(2, "b")
    table.get(1)
    table.put(3, "c")
    assert (table.get(1), table.get(2), table.get(3), len(table)) == ("a", None, "c", 2)


@given(st.text(st.characters(codec="utf-8"), max_size=30), st.integers(3, 60))
def test_a_message_is_cut_between_characters(message: str, longest: int) -> None:
    short = cut(message, longest)
    assert len(short.encode()) <= longest
    if len(message.encode()) <= longest:
        assert short == message
    else:
        assert short.endswith("…")
        assert message.startswith(short[:-1])


def test_messages_are_measured_in_bytes(correlator: CorrelatorAtTime) -> None:
    message = correlator.record_now("é" * 600).occurrence.message
    assert message == "é" * 510 + "…"


@pytest.mark.parametrize(
    ("name", "kept"),
    [("x" * 236, "x" * 236), ("x" * 253, "x" * 236), ("x" * 234 + "-." + "x" * 17, "x" * 234)],
    ids=["fits", "long", "cut-at-a-dot"],
)
def test_a_long_name_is_cut_so_that_the_event_has_a_valid_one(name: str, kept: str) -> None:
    about = reference_to({"metadata": {"name": name}})
    entry = EventCorrelator().take(Occurrence(about, "Normal", "Up", "up"), 0.0, NOON)
    assert entry is not None
    assert (entry.name, entry.occurrence.regarding.name) == (f"{kept}.1886999c36a18000", name)


class FakeTransport:
    """A Transport that keeps what it is sent, and responds as configured."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.answer: Callable[[str], int] = lambda _method: 200

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, **_: object
    ) -> Response:
        """Answer at once."""
        self.sent.append((method, orjson.loads(body or b"null")))
        return Response(self.answer(method), {}, b"{}")

    def stream(
        self, path: str, *, query: Mapping[str, str], timeout: float, lane: Lane = "watch"
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Watches are not served."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""


class Recording:
    """A recorder that runs during a block."""

    def __init__(self) -> None:
        self.wire, self.clock, self.metrics = FakeTransport(), FakeClock(), Metrics()
        self.recorder = EventRecorder(
            Client(self.wire),
            clock=self.clock,
            component="trainer",
            hostname="pod-1",
            metrics=self.metrics,
        )
        self._stop = asyncio.Event()
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> "Recording":
        await self._group.__aenter__()
        self._group.create_task(self.recorder.run(lambda: None, self._stop))
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._stop.set()
        await self._group.__aexit__(*error)

    def record(self, message: str) -> None:
        self.recorder.record(JOB, "Normal", "Started", message)

    def dropped(self, reason: str) -> float | None:
        name = "machinery_events_dropped_total"
        return self.metrics.registry.get_sample_value(name, {"reason": reason})


async def test_a_repeat_is_a_patch() -> None:
    async with Recording() as recording:
        recording.record("again")
        recording.record("again")
        await at_rest()
    (first, created), (second, patch) = recording.wire.sent
    assert (first, created["count"]) == ("POST", 1)
    assert (second, patch["count"], set(patch)) == (
        "PATCH",
        2,
        {"count", "lastTimestamp", "message"},
    )


async def test_event_expired_on_the_server_is_created_again() -> None:
    async with Recording() as recording:
        recording.record("again")
        await at_rest()
        recording.wire.answer = lambda method: 404 if method == "PATCH" else 200
        recording.record("again")
        await at_rest()
        recording.wire.answer = lambda _method: 200
        recording.record("again")
        await at_rest()
    methods = [method for method, _ in recording.wire.sent]
    assert methods == ["POST", "PATCH", "POST", "PATCH"]
    anew = recording.wire.sent[2][1]
    assert anew["count"] == 2
    assert anew["metadata"]["name"] != recording.wire.sent[0][1]["metadata"]["name"]


async def test_events_recorded_before_stop_are_written() -> None:
    async with Recording() as recording:
        recording.record("bye")
    assert [method for method, _ in recording.wire.sent] == ["POST"]


async def test_a_full_queue_drops_and_counts() -> None:
    recording = Recording()
    for number in range(1003):
        recording.record(f"message {number}")
    assert recording.recorder.dropped == 3
    assert recording.dropped("queue_full") == 3


async def test_an_unreachable_server_is_tried_twelve_times() -> None:
    def is_deleted(_method: str) -> int:
        raise TransportError("gone")

    async with Recording() as recording:
        recording.wire.answer = is_deleted
        recording.record("hello")
        await recording.clock.advance(200)
        assert len(recording.wire.sent) == 12
        assert recording.dropped("unreachable") == 1
        recording.wire.answer = lambda _method: 200
        recording.record("hello again")
        await at_rest()
        assert len(recording.wire.sent) == 13


async def test_events_rejected_by_the_server_are_not_retried() -> None:
    async with Recording() as recording:
        recording.wire.answer = lambda _method: 422
        recording.record("hello")
        await recording.clock.advance(200)
        assert len(recording.wire.sent) == 1
        assert recording.dropped("refused") == 1


async def test_invalid_event_is_ignored() -> None:
    async with Recording() as recording:
        recording.recorder.record({}, "Warning", "Odd", "half a character: \ud800")
        await at_rest()
    assert recording.wire.sent[0][1]["message"] == "half a character: ?"


async def test_an_event_that_cannot_be_sent_is_dropped_and_the_next_one_written() -> None:
    async with Recording() as recording:
        recording.recorder.record(JOB, "Warning", "half a character: \ud800", "odd")
        recording.record("hello")
        await at_rest()
        assert [sent["message"] for _, sent in recording.wire.sent] == ["hello"]
        assert (recording.recorder.dropped, recording.dropped("failed")) == (1, 1)
