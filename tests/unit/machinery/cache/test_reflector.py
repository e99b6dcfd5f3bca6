"""The next request of the reflector after every kind of event."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.client.errors import (
    ExpiredError,
    ForbiddenError,
    KindNotFoundError,
    KubeError,
    MalformedStreamError,
    RequestTimeoutError,
    ResourceVersionTooNewError,
    ServerError,
    TooManyRequestsError,
    TransportError,
)
from kftrainer.machinery.cache.reflector import (
    Action,
    Delays,
    ListAsStream,
    Listed,
    ListFailed,
    ListInPages,
    Outcome,
    ReadVersion,
    Reflector,
    StreamBroke,
    VersionRead,
    Watch,
    WatchEnded,
)

EXPIRED = ExpiredError(410, "Expired", "too old")
AHEAD = ResourceVersionTooNewError(504, "Timeout", "too large")
BROKEN = ServerError(500, "InternalError", "")
FORBIDDEN = ForbiddenError(403, "Forbidden", "")
MISSING = KindNotFoundError(404, "", "404 page not found")
BUSY = TooManyRequestsError(429, "", "", retry_after=7.0)
LOST = TransportError("reset")
MALFORMED = MalformedStreamError("no event")
SILENT = RequestTimeoutError("silent")
FIRST = ListAsStream("", "initial")
AGAIN = ListAsStream("9", "expired")


def after(outcome: Outcome, version: str = "9") -> tuple[Action, bool]:
    """The next action, and whether it comes later."""
    step = Reflector(Random(1)).after(outcome, version, 0.0)  # noqa: S311
    return step.action, step.delay > 0


def test_start_streams_the_most_recent_state() -> None:
    step = Reflector(Random(1)).start()  # noqa: S311
    assert (step.action, step.delay) == (FIRST, 0.0)


@pytest.mark.parametrize(
    ("ended", "then"),
    [
        (WatchEnded(300, 5), (Watch("9"), False)),
        (WatchEnded(0.1, 1), (Watch("9"), False)),
        (WatchEnded(1.0, 0), (Watch("9"), False)),
        (WatchEnded(0.9, 0), (ListAsStream("9", "short_watch"), True)),
        (WatchEnded(300, 5, LOST), (Watch("9"), False)),
        (WatchEnded(0.0, 0, LOST), (Watch("9"), True)),
        (WatchEnded(300, 5, BUSY), (Watch("9"), True)),
        (WatchEnded(300, 5, EXPIRED), (ListAsStream("9", "expired"), True)),
        (WatchEnded(300, 5, AHEAD), (ListAsStream("", "ahead"), True)),
        (WatchEnded(300, 5, BROKEN), (ListAsStream("9", "error"), True)),
        (WatchEnded(0.0, 0, FORBIDDEN), (ListAsStream("9", "error"), True)),
        (WatchEnded(0.0, 0, MISSING), (ListAsStream("", "error"), True)),
        (WatchEnded(300, 5, MALFORMED), (ListAsStream("9", "error"), True)),
        (WatchEnded(0.0, 0, MALFORMED), (ListAsStream("9", "error"), True)),
        (WatchEnded(120, 0, MALFORMED), (ListAsStream("9", "error"), True)),
        (WatchEnded(120, 0, SILENT), (ReadVersion(), False)),
        (WatchEnded(300, 0), (ReadVersion(), False)),
    ],
)
def test_after_a_watch(ended: WatchEnded, then: tuple[Action, bool]) -> None:
    assert after(ended) == then


@pytest.mark.parametrize(
    ("stream_error", "then"),
    [
        (StreamBroke(FIRST, 0.0, LOST), (FIRST, True)),
        (StreamBroke(FIRST, 5.0, LOST), (ListInPages("", "initial"), True)),
        (StreamBroke(FIRST, 0.0, SILENT), (ListInPages("", "initial"), True)),
        (StreamBroke(FIRST, 0.0, MALFORMED), (ListInPages("", "initial"), True)),
        (StreamBroke(FIRST, 5.0), (ListInPages("", "initial"), True)),
        (StreamBroke(FIRST, 0.0, BUSY), (FIRST, True)),
        (StreamBroke(FIRST, 0.0, BROKEN), (ListInPages("", "initial"), False)),
        (StreamBroke(FIRST, 0.0, EXPIRED), (FIRST, True)),
        (StreamBroke(FIRST, 0.0, FORBIDDEN), (FIRST, True)),
        (StreamBroke(AGAIN, 0.0, FORBIDDEN), (AGAIN, True)),
        (StreamBroke(AGAIN, 0.0, MISSING), (ListAsStream("", "error"), True)),
        (StreamBroke(AGAIN, 0.0, BROKEN), (ListInPages("9", "expired"), False)),
        (StreamBroke(AGAIN, 0.0, EXPIRED), (ListAsStream("", "expired"), False)),
        (StreamBroke(AGAIN, 3.0, AHEAD), (ListAsStream("", "expired"), False)),
    ],
)
def test_after_a_streamed_list_that_broke(
    stream_error: StreamBroke, then: tuple[Action, bool]
) -> None:
    assert after(stream_error) == then


PAGES = ListInPages("9", "error")


@pytest.mark.parametrize(
    ("failed", "then"),
    [
        (ListFailed(PAGES, 0, LOST), (ListAsStream("9", "error"), True)),
        (ListFailed(PAGES, 1, BROKEN), (ListAsStream("9", "error"), True)),
        (ListFailed(PAGES, 0, BUSY), (ListAsStream("9", "error"), True)),
        (ListFailed(PAGES, 0, FORBIDDEN), (ListAsStream("9", "error"), True)),
        (ListFailed(PAGES, 0, MISSING), (ListAsStream("", "error"), True)),
        (ListFailed(PAGES, 0, EXPIRED), (ListInPages("", "error"), False)),
        (ListFailed(PAGES, 0, AHEAD), (ListInPages("", "error"), False)),
        (ListFailed(PAGES, 2, EXPIRED), (ListInPages("", "error"), False)),
        (ListFailed(ListInPages("", "error"), 1, EXPIRED), (ListInPages("", "error"), True)),
    ],
)
def test_after_a_list_that_failed(failed: ListFailed, then: tuple[Action, bool]) -> None:
    assert after(failed) == then


def test_after_a_list_it_watches_from_there() -> None:
    assert after(Listed()) == (Watch("9"), False)


@pytest.mark.parametrize(
    ("received", "then"),
    [
        ("9", (Watch("9"), False)),
        ("10", (Watch("9"), False)),
        ("8", (ListAsStream("", "ahead"), False)),
        (LOST, (Watch("9"), True)),
    ],
)
def test_server_with_an_older_resource_version_is_relisted(
    received: str | KubeError, then: tuple[Action, bool]
) -> None:
    assert after(VersionRead(received)) == then


def test_retry_after_is_the_minimum_delay() -> None:
    reflector = Reflector(Random(1))  # noqa: S311
    assert reflector.after(WatchEnded(300, 5, BUSY), "9", 0.0).delay == 7.0


def test_delays_double_up_to_half_a_minute_and_reset_after_two_error_free_ones() -> None:
    class NoJitter(Random):
        def random(self) -> float:
            return 0.0

    delays = Delays(NoJitter())
    assert [delays.next(float(now)) for now in range(8)] == [
        *(0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0)
    ]
    assert delays.next(7.0 + 120.0) == 30.0
    assert delays.next(127.0 + 120.1) == 0.8


def test_a_kind_that_is_not_installed_is_looked_for_every_few_seconds() -> None:
    reflector, now = Reflector(Random(1)), 0.0  # noqa: S311
    for _ in range(20):
        step = reflector.after(StreamBroke(FIRST, 0.0, MISSING), "9", now)
        assert 0.8 <= step.delay <= 5.0
        now += step.delay


ERRORS = st.sampled_from([None, EXPIRED, AHEAD, BROKEN, FORBIDDEN, BUSY, LOST, MALFORMED, SILENT])


def failure_of(action: Action, error: KubeError | None) -> Outcome:
    """How this fails at once with this error, or without one."""
    match action:
        case ListAsStream():
            return StreamBroke(action, 0.0, error)
        case ListInPages():
            return ListFailed(action, 1, error or LOST)
        case Watch():
            return WatchEnded(0.0, 0, error)
        case ReadVersion():
            return VersionRead(error or LOST)


@given(st.lists(ERRORS, min_size=30, max_size=60), st.integers())
def test_delays_have_a_minimum_for_any_sequence_of_errors(
    errors: list[KubeError | None], seed: int
) -> None:
    """Nothing ever works: among any four steps one waits, and the waits grow."""
    reflector = Reflector(Random(seed))  # noqa: S311
    step, now, delays = reflector.start(), 0.0, []
    for error in errors:
        now += step.delay
        delays.append(step.delay)
        step_failed = failure_of(step.action, error)
        step = reflector.after(step_failed, "9", now)
    assert all(any(delays[at : at + 4]) for at in range(1, len(delays) - 4))
    waits = [each for each in delays if each]
    assert all(0.8 <= each < 60 for each in waits)
    assert sum(waits[:6]) >= 0.8 + 1.6 + 3.2 + 6.4 + 12.8
