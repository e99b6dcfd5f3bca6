import asyncio
from collections.abc import Callable
from io import StringIO
from typing import Any, cast

import pytest

from kftrainer.devcluster.progress import CLEAR_LINE, Progress, Step, duration


class Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """As much of an event loop as a step needs, with a clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Timer, Callable[..., object], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[..., object], *args: Any) -> Timer:
        timer = Timer()
        self.timers.append((self.now + delay, timer, call, args))
        return timer

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [entry for entry in self.timers if entry[0] <= until]:
            entry = min(due, key=lambda each: each[0])
            self.timers.remove(entry)
            self.now = entry[0]
            if not entry[1].cancelled:
                entry[2](*entry[3])
        self.now = until


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def step(stream: StringIO, loop: Loop) -> Step:
    return Step("building etcd", stream, cast("asyncio.AbstractEventLoop", loop))


def test_quick_step_is_not_printed() -> None:
    stream, loop = StringIO(), Loop()
    quick = step(stream, loop)
    loop.pass_time(0.9)
    quick.finish("done")
    loop.pass_time(60)
    assert stream.getvalue() == ""


def test_a_slow_step_in_a_log_has_a_line_now_and_then() -> None:
    stream, loop = StringIO(), Loop()
    slow = step(stream, loop)
    loop.pass_time(2)
    slow.note("12 packages")
    loop.pass_time(18)
    slow.finish("done")
    assert stream.getvalue().splitlines() == [
        "building etcd …",
        "building etcd … (16 s, 12 packages)",
        "building etcd: done after 20 s",
    ]


def test_on_a_terminal_one_line_is_kept_up_to_date() -> None:
    stream, loop = Terminal(), Loop()
    slow = step(stream, loop)
    loop.pass_time(2.5)
    slow.finish("failed")
    assert stream.getvalue().split(CLEAR_LINE) == [
        "",
        "building etcd …",
        "building etcd … (2.0 s)",
        "building etcd: failed after 2.5 s\n",
    ]


def test_finished_step_prints_no_more() -> None:
    stream, loop = StringIO(), Loop()
    slow = step(stream, loop)
    loop.pass_time(2)
    slow.finish("failed")
    output = stream.getvalue()
    loop.pass_time(600)
    assert stream.getvalue() == output


async def test_failed_step_is_printed_and_its_error_propagated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kftrainer.devcluster.progress.QUIET_FOR", 0)
    stream = StringIO()

    async def fail() -> None:
        with Progress(stream).step("trying"):
            await asyncio.sleep(0.01)  # lets the step's timer run
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fail()
    assert stream.getvalue().splitlines()[-1].startswith("trying: failed after ")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.81, "0.8 s"), (42.4, "42 s"), (185, "3 min 05 s"), (59.7, "1 min 00 s")],
)
def test_durations_are_formatted_readably(seconds: float, words: str) -> None:
    assert duration(seconds) == words
