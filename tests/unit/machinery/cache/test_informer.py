"""The informer with a fake clock and a fake transport."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ApiError, error_from_status
from kftrainer.kube.client.transport import Lane, Response
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject
from kftrainer.machinery.metrics.registry import Metrics
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.informers import RecordingHandler, running

THINGS: Resource[Manifest] = Resource(
    "", "v1", "Thing", "things", namespaced=True, decode=unstructured
)
ALL_SENT = {"k8s.io/initial-events-end": "true"}


def event(kind: str, name: str, version: int, **metadata: Any) -> bytes:
    fields = {"name": name, "resourceVersion": str(version), **metadata}
    return orjson.dumps({"type": kind, "object": {"metadata": fields}}) + b"\n"


def bookmark(version: int, **metadata: Any) -> bytes:
    fields = {"resourceVersion": str(version), **metadata}
    return orjson.dumps({"type": "BOOKMARK", "object": {"metadata": fields}}) + b"\n"


def all_sent(version: int) -> bytes:
    return bookmark(version, annotations=ALL_SENT)


class FakeTransport:
    """A transport whose streams deliver what a test puts into them."""

    def __init__(self) -> None:
        self.queries: list[Mapping[str, str]] = []
        self.streams: list[asyncio.Queue[bytes | None]] = []
        self.lists: deque[Response] = deque()
        self._refusal: ApiError | None = None

    def refuse(self, code: int) -> None:
        """Refuse new streams with this code from now on."""
        self._refusal = error_from_status({"code": code, "message": f"refused with {code}"})

    def permit(self) -> None:
        """Refuse no more."""
        self._refusal = None

    async def request(self, method: str, path: str, **options: Any) -> Response:
        self.queries.append(options["query"])
        return self.lists.popleft()

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        accept: str,
        timeout: float,  # noqa: ASYNC109  as the transport has it
        lane: Lane = "watch",
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.queries.append(query)
        if self._refusal is not None:
            raise self._refusal
        self.streams.append(asyncio.Queue())
        yield self._chunks(self.streams[-1])

    async def _chunks(self, queue: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
        while (chunk := await queue.get()) is not None:
            yield chunk

    async def send(self, *chunks: bytes | None) -> None:
        """On the newest stream, once there is one."""
        await at_rest()
        for chunk in chunks:
            self.streams[-1].put_nowait(chunk)
        await at_rest()

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def wire() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
def informer(wire: FakeTransport, clock: FakeClock) -> Informer[Manifest]:
    return Informer(Client(wire), THINGS, clock=clock)


async def test_informer_has_synced_when_all_initial_objects_were_delivered(
    wire: FakeTransport, informer: Informer[Manifest]
) -> None:
    witness = RecordingHandler()
    informer.add_handler(witness)
    async with running(informer):
        await wire.send(event("ADDED", "a", 3), event("ADDED", "b", 2))
        assert (informer.list(), informer.has_synced, witness.events) == ([], False, [])
        await wire.send(all_sent(5))
        assert informer.has_synced
        assert len(witness.events) == 2
        assert informer.resource_version == informer.version_in("anywhere") == "5"


async def test_watch_timeout_is_five_to_ten_minutes_and_resumes_after_the_last_event(
    wire: FakeTransport, informer: Informer[Manifest]
) -> None:
    async with running(informer):
        await wire.send(all_sent(5), event("ADDED", "a", 7), bookmark(9), None)
        await wire.send()
    first, second = wire.queries
    assert all(300 <= int(each["timeoutSeconds"]) < 600 for each in wire.queries)
    assert first["sendInitialEvents"] == "true"
    assert (second["resourceVersion"], "sendInitialEvents" in second) == ("9", False)


async def test_objects_that_are_sent_first_do_not_move_the_place_to_resume_at(
    wire: FakeTransport, informer: Informer[Manifest], clock: FakeClock
) -> None:
    async with running(informer):
        await wire.send(event("ADDED", "a", 50), None)
        assert informer.resource_version == ""
        wire.lists.append(Response(500, {}, b""))
        await clock.advance(120)
        assert "resourceVersion" not in wire.queries[-1]


@pytest.mark.parametrize(
    ("bookmarks", "patience"), [((), 120), ((bookmark(6),), 75)], ids=["no-bookmarks", "bookmarks"]
)
async def test_silent_watch_times_out_earlier_with_bookmarks(
    wire: FakeTransport,
    informer: Informer[Manifest],
    clock: FakeClock,
    bookmarks: tuple[bytes, ...],
    patience: float,
) -> None:
    async with running(informer):
        await wire.send(all_sent(5), *bookmarks)
        await clock.advance(patience - 0.1)
        assert len(wire.streams) == 1
        await clock.advance(0.2)
        assert len(wire.streams) == 2
        assert wire.queries[-1]["resourceVersion"] == informer.resource_version


async def test_watch_beyond_its_timeout_is_closed(
    wire: FakeTransport, informer: Informer[Manifest], clock: FakeClock
) -> None:
    async with running(informer):
        await wire.send(all_sent(5))
        limit = int(wire.queries[0]["timeoutSeconds"]) + 30
        for version in range(6, 6 + limit - 1):
            await clock.advance(1)
            await wire.send(bookmark(version))
        assert len(wire.streams) == 1
        await clock.advance(1)
        assert len(wire.streams) == 2


async def test_a_watch_from_a_version_that_the_server_has_not_reached_is_found_out(
    wire: FakeTransport, informer: Informer[Manifest], clock: FakeClock
) -> None:
    witness = RecordingHandler()
    informer.add_handler(witness)
    restored = {"metadata": {"resourceVersion": "40"}, "items": []}
    wire.lists.append(Response(200, {}, orjson.dumps(restored)))
    async with running(informer):
        await wire.send(event("ADDED", "a", 90), all_sent(90), None)
        await wire.send()
        await clock.advance(120)
        assert "resourceVersion" not in wire.queries[-1]
        await wire.send(event("ADDED", "a", 30), all_sent(41))
        assert informer.cached_object(ObjectKey("", "a")).metadata["resourceVersion"] == "30"  # type: ignore[union-attr]
        assert informer.resource_version == "41"


async def test_failing_handler_is_counted_and_other_handlers_are_called(
    wire: FakeTransport, clock: FakeClock
) -> None:
    metrics, witness = Metrics(), RecordingHandler()
    informer = Informer(Client(wire), THINGS, clock=clock, metrics=metrics.for_informer("Thing"))

    def failing(change: ObjectEvent[Manifest]) -> None:
        raise ZeroDivisionError

    informer.add_handler(failing)
    informer.add_handler(witness)
    async with running(informer):
        await wire.send(event("ADDED", "a", 1), all_sent(5))
        assert len(witness.events) == 1
    value = metrics.registry.get_sample_value
    prefix, kind = "machinery_informer", {"kind": "Thing"}
    assert value(f"{prefix}_events_total", {**kind, "type": "handler_failed"}) == 1
    assert value(f"{prefix}_events_total", {**kind, "type": "ADDED"}) == 1
    assert value(f"{prefix}_relists_total", {**kind, "reason": "initial"}) == 1
    assert value(f"{prefix}_objects", kind) == 1


class BusyClock(FakeClock):
    """Each look at it shows a later time, so that all work seems to take long."""

    def monotonic(self) -> float:
        self._time += 0.006
        return self._time


async def test_handler_added_during_a_list_gets_each_object_once(wire: FakeTransport) -> None:
    informer = Informer(Client(wire), THINGS, clock=BusyClock())
    early, late = RecordingHandler(), RecordingHandler()
    informer.add_handler(early)
    names, half = [f"n-{n}" for n in range(20)], asyncio.Event()

    def count(change: object) -> None:
        if len(early.events) == 10:
            half.set()

    informer.add_handler(count)
    async with running(informer):
        await wire.send()
        for name in names:
            wire.streams[-1].put_nowait(event("ADDED", name, 1))
        wire.streams[-1].put_nowait(all_sent(5))
        await half.wait()  # others run between one object and the next
        assert not informer.has_synced
        informer.add_handler(late)
        await at_rest()
        assert informer.has_synced
    assert [each.key.name for each in early.events] == names
    assert [each.key.name for each in late.events] == names
    assert (early.inconsistencies, late.inconsistencies) == ([], [])


async def test_late_handler_gets_existing_objects_in_slices_and_then_events(
    wire: FakeTransport,
) -> None:
    informer = Informer(Client(wire), THINGS, clock=BusyClock())
    async with running(informer):
        initial = [event("ADDED", f"n-{n}", 1) for n in range(20)]
        await wire.send(*initial, all_sent(5))
        late = RecordingHandler()
        synced = informer.add_handler(late)
        assert (late.events, synced.is_set()) == ([], False)
        changes = (("MODIFIED", "n-19"), ("DELETED", "n-0"), ("ADDED", "new"))
        for version, (kind, name) in enumerate(changes, start=6):
            wire.streams[-1].put_nowait(event(kind, name, version))
        other_turns = 0
        while not synced.is_set():
            await asyncio.sleep(0)
            other_turns += 1
        await at_rest()
    assert other_turns >= 20
    assert all(each.initial for each in late.events[:20])
    assert [each.key.name for each in late.events] == [
        *(f"n-{n}" for n in range(20)),
        *("n-19", "n-0", "new"),
    ]
    assert late.inconsistencies == []


async def test_handler_added_at_any_time_misses_no_object(wire: FakeTransport) -> None:
    informer = Informer(Client(wire), THINGS, clock=BusyClock())
    late = [RecordingHandler() for _ in range(30)]
    async with running(informer):
        await wire.send(*(event("ADDED", f"n-{n}", n + 1) for n in range(10)), all_sent(20))
        for version, witness in enumerate(late, start=21):  # each at another moment
            informer.add_handler(witness)
            kind, name = ("DELETED", f"n-{version % 10}") if version % 3 else ("ADDED", "again")
            wire.streams[-1].put_nowait(event(kind, name, version))
            for _ in range(version % 7):
                await asyncio.sleep(0)
        await at_rest()
        listed = {ObjectKey("", each["metadata"]["name"]) for each in informer.list()}
    assert [(set(each.known), each.inconsistencies) for each in late] == [(listed, [])] * 30


async def test_handler_added_to_an_empty_informer_is_synced_immediately(
    informer: Informer[Manifest],
) -> None:
    assert informer.add_handler(RecordingHandler()).is_set()


async def test_received_events_are_processed_before_the_watch_resumes(wire: FakeTransport) -> None:
    informer = Informer(Client(wire), THINGS, clock=BusyClock())
    async with running(informer):
        initial = [event("ADDED", f"n-{n}", 1) for n in range(50)]
        await wire.send(*initial, all_sent(5), event("ADDED", "late", 7), None)
        await at_rest()
    assert wire.queries[1]["resourceVersion"] == "7"


async def test_a_failing_index_function_ends_the_informer(
    wire: FakeTransport, clock: FakeClock
) -> None:
    informer = Informer(
        Client(wire), THINGS, clock=clock, indexes={"x": lambda seen: seen.object["x"]}
    )
    with pytest.raises(ExceptionGroup) as raised:
        async with running(informer):
            await wire.send(event("ADDED", "a", 1))
    assert raised.group_contains(KeyError)


def is_red(manifest: Manifest) -> bool:
    return manifest["metadata"].get("color") == "red"


@pytest.fixture
def red_ones(wire: FakeTransport, clock: FakeClock) -> Informer[Manifest]:
    """Which would fail if a transform or an index function came to see one of another color."""

    def strip(manifest: Manifest) -> Manifest:
        assert is_red(manifest)
        return manifest

    def color(seen: ObservedObject[Manifest]) -> list[str]:
        assert seen.metadata["color"] == "red"
        return ["red"]

    indexes = {"color": color}
    return Informer(
        Client(wire), THINGS, clock=clock, keep=is_red, transform=strip, indexes=indexes
    )


async def test_filtered_object_is_not_cached_and_the_watch_advances(
    wire: FakeTransport, red_ones: Informer[Manifest]
) -> None:
    witness = RecordingHandler()
    red_ones.add_handler(witness)
    async with running(red_ones):
        await wire.send(event("ADDED", "a", 1), event("ADDED", "b", 2, color="red"), all_sent(5))
        await wire.send(event("ADDED", "c", 6), event("MODIFIED", "c", 7), event("DELETED", "a", 8))
        assert [each["metadata"]["name"] for each in red_ones.list()] == ["b"]
        assert [each.key.name for each in witness.events] == ["b"]
        await wire.send(None)
        await wire.send()
    assert wire.queries[-1]["resourceVersion"] == "8"


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
async def test_object_that_stops_matching_the_filter_is_delivered_as_deleted_with_its_last_state(
    wire: FakeTransport, red_ones: Informer[Manifest], kind: str
) -> None:
    witness = RecordingHandler()
    red_ones.add_handler(witness)
    async with running(red_ones):
        await wire.send(all_sent(5), event("ADDED", "a", 6, color="red"))
        await wire.send(event(kind, "a", 7, color="blue"))
        assert (red_ones.list(), red_ones.by_index("color", "red")) == ([], [])
        last = witness.events[-1]
        assert last.old is not None
        assert (last.old.metadata["color"], last.new) == ("red", None)
        await wire.send(event("MODIFIED", "a", 8, color="red"))
        assert (witness.events[-1].old, len(red_ones.list())) == (None, 1)
    assert witness.inconsistencies == []


async def test_objects_changed_during_the_initial_list_have_their_final_state(
    wire: FakeTransport, red_ones: Informer[Manifest]
) -> None:
    async with running(red_ones):
        await wire.send(event("ADDED", "a", 1, color="red"), event("ADDED", "b", 2))
        await wire.send(event("MODIFIED", "a", 6), event("MODIFIED", "b", 7, color="red"))
        await wire.send(all_sent(8))
        assert [each["metadata"]["name"] for each in red_ones.list()] == ["b"]


async def test_a_keep_that_fails_ends_the_informer(wire: FakeTransport, clock: FakeClock) -> None:
    informer = Informer(Client(wire), THINGS, clock=clock, keep=lambda it: it["metadata"]["color"])
    with pytest.raises(ExceptionGroup) as raised:
        async with running(informer):
            await wire.send(event("ADDED", "a", 1))
    assert raised.group_contains(KeyError)


async def test_informers_of_one_kind_are_counted_together(clock: FakeClock) -> None:
    metrics, wires = Metrics(), (FakeTransport(), FakeTransport())
    one, other = (
        Informer(Client(each), THINGS, clock=clock, metrics=metrics.for_informer("Thing"))
        for each in wires
    )
    async with running(one), running(other):
        await wires[0].send(event("ADDED", "a", 1), event("ADDED", "b", 2), all_sent(5))
        await wires[1].send(event("ADDED", "c", 3), all_sent(5))
        await wires[0].send(event("DELETED", "a", 6))
    value = metrics.registry.get_sample_value
    sizes = [each._store.contents.bytes_held for each in (one, other)]
    assert value("machinery_informer_objects", {"kind": "Thing"}) == 2
    assert value("machinery_informer_bytes", {"kind": "Thing"}) == sum(sizes)


async def test_an_object_that_cannot_be_decoded_does_not_hide_the_others(
    wire: FakeTransport, clock: FakeClock
) -> None:
    def decode(manifest: Manifest) -> str:
        if manifest["metadata"]["name"] == "odd":
            raise ValueError("odd")
        return str(manifest["metadata"]["name"])

    words = Resource("", "v1", "Word", "words", namespaced=True, decode=decode)
    indexes = {"all": lambda _seen: ("all",)}
    informer = Informer(Client(wire), words, clock=clock, indexes=indexes)
    async with running(informer):
        await wire.send(event("ADDED", "odd", 1), event("ADDED", "even", 2), all_sent(3))
        assert informer.list() == informer.by_index("all", "all") == ["even"]
        with pytest.raises(ValueError, match="odd"):
            informer.get(ObjectKey("", "odd"))
