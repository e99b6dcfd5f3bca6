from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kftrainer.kube.client.errors import (
    ExpiredError,
    MalformedStreamError,
    ServerError,
    TooManyRequestsError,
)
from kftrainer.kube.client.watch import (
    LONGEST_LINE,
    Bookmark,
    Deleted,
    LineSplitter,
    Upserted,
    WatchEvent,
    decode_events,
    events_in,
)

POD = {"metadata": {"name": "one", "resourceVersion": "7"}}


def line(kind: str, manifest: Any) -> bytes:
    return orjson.dumps({"type": kind, "object": manifest})


def decoded(*lines: bytes) -> list[WatchEvent]:
    return list(decode_events(list(lines)))


@given(st.lists(st.binary(max_size=20).map(lambda text: text.replace(b"\n", b" "))), st.data())
def test_lines_are_the_same_wherever_the_chunks_end(
    lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(each + b"\n" for each in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    splitter = LineSplitter()
    assert [each for chunk in chunks for each in splitter.feed(chunk)] == lines


def test_unterminated_data_is_not_a_line() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.feed(b"o") == []
    assert splitter.feed(b"\n") == [b"two"]


def test_a_line_without_end_is_an_error_before_memory_is_full() -> None:
    splitter = LineSplitter()
    chunk = b"x" * (LONGEST_LINE // 4)
    for _ in range(4):
        splitter.feed(chunk)
    with pytest.raises(MalformedStreamError, match="longer than 16777216 bytes"):
        splitter.feed(b"x")


def test_consecutive_long_lines_are_not_an_error() -> None:
    splitter = LineSplitter()
    half = b"x" * (LONGEST_LINE // 2)
    for _ in range(4):
        assert splitter.feed(half + b"\n") == [half]


def test_events_are_decoded_by_type() -> None:
    version = {"resourceVersion": "9"}
    bookmark = {"kind": "Pod", "metadata": version, "spec": None}
    end = {"metadata": {**version, "annotations": {"k8s.io/initial-events-end": "true"}}}
    assert decoded(
        line("ADDED", POD),
        line("MODIFIED", POD),
        line("DELETED", POD),
        line("BOOKMARK", bookmark),
        line("BOOKMARK", end),
    ) == [
        Upserted(POD, added=True),
        Upserted(POD, added=False),
        Deleted(POD),
        Bookmark("9", initial_events_end=False),
        Bookmark("9", initial_events_end=True),
    ]


def test_event_of_unknown_type_advances_the_watch() -> None:
    with capture_logs() as logs:
        assert decoded(line("MOVED", POD)) == [Bookmark("7", initial_events_end=False)]
    assert [each["event"] for each in logs] == ["watch_event_unknown"]


@pytest.mark.parametrize("manifest", [None, [], {}, {"metadata": None}, {"metadata": {}}])
def test_event_without_object_is_skipped(manifest: Any) -> None:
    with capture_logs() as logs:
        assert decoded(line("ADDED", manifest), line("ADDED", POD)) == [Upserted(POD, added=True)]
    assert [each["event"] for each in logs] == ["watch_event_without_metadata"]


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ({"code": 410, "reason": "Expired", "message": "too old"}, ExpiredError),
        ({"code": 429, "details": {"retryAfterSeconds": 3}}, TooManyRequestsError),
        ({"code": 500, "message": "no reason"}, ServerError),
        ({}, ServerError),
    ],
)
def test_error_is_raised_after_earlier_events(
    status: dict[str, Any], wanted: type[Exception]
) -> None:
    events = decode_events([line("ADDED", POD), line("ERROR", status)])
    assert next(events) == Upserted(POD, added=True)
    with pytest.raises(wanted):
        next(events)


@pytest.mark.parametrize(
    "text",
    [b"{", b"Too many requests", b"[]", b"3", b'{"type": "ADDED"}', line("ERROR", "no status")],
)
def test_invalid_event_is_an_error(text: bytes) -> None:
    with pytest.raises(MalformedStreamError, match="an invalid event"):
        decoded(text)


async def test_watch_truncated_in_a_line_delivers_earlier_lines() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield line("ADDED", POD) + b"\n" + line("DELETED", POD)[:10]

    assert [event async for event in events_in(chunks())] == [Upserted(POD, added=True)]
