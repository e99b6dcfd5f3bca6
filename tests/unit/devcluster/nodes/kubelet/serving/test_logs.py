import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kftrainer.devcluster.nodes.kubelet.serving.logs import (
    LogOptions,
    LogOptionsError,
    LogReader,
    parse_options,
)
from tests.support.fake_clock import FakeClock

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def line(number: int, text: str, *, stream: str = "stdout", tag: str = "F") -> str:
    return f"2026-01-01T00:00:{number:02}.123456789Z {stream} {tag} {text}\n"


async def read(log: Path, options: LogOptions) -> str:
    reader = LogReader(log, options, lambda: False, FakeClock())
    return b"".join([chunk async for chunk in reader.chunks()]).decode()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log that was rotated after two lines."""
    path = tmp_path / "0.log"
    path.with_name("0.log.1").write_text(line(1, "one") + line(2, "two"))
    path.write_text(line(3, "three", stream="stderr") + line(4, "fo", tag="P") + line(5, "ur"))
    return path


async def test_rotated_log_is_read_first_and_parts_are_joined(log: Path) -> None:
    assert await read(log, LogOptions()) == "one\ntwo\nthree\nfour\n"


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (0, ""),
        (2, "four\n"),
        (3, "three\nfour\n"),
        (4, "two\nthree\nfour\n"),
        (9, "one\ntwo\nthree\nfour\n"),
    ],
)
async def test_tail_counts_entries_of_both_files(log: Path, tail: int, expected: str) -> None:
    assert await read(log, LogOptions(tail=tail)) == expected


async def test_lines_are_selected_by_time_stream_and_size(log: Path) -> None:
    since = datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)
    printed = [
        await read(log, LogOptions(since=since)),
        await read(log, LogOptions(stream=b"stderr")),
        await read(log, LogOptions(limit=6)),
    ]
    assert printed == ["three\nfour\n", "three\n", "one\ntw"]


async def test_timestamp_is_printed_once_for_a_line_of_several_parts(log: Path) -> None:
    printed = await read(log, LogOptions(timestamps=True, tail=2))
    assert printed == "2026-01-01T00:00:04.123456789Z four\n"


async def test_invalid_and_incomplete_lines_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("nonsense\n" + line(1, "ok") + line(2, "begun").rstrip("\n"))
    assert await read(log, LogOptions()) == "ok\n"


async def test_followed_log_is_read_over_rotation_and_deletion(tmp_path: Path) -> None:
    log, clock, is_running, printed = tmp_path / "0.log", FakeClock(), True, []
    log.write_text(line(1, "one"))
    reader = LogReader(log, LogOptions(follow=True), lambda: is_running, clock)

    async def follow() -> None:
        printed.extend([chunk async for chunk in reader.chunks()])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        await clock.advance(1)
        with log.open("a") as file:
            file.write(line(2, "two"))
        log.rename(tmp_path / "0.log.1")
        log.write_text(line(3, "three"))
        await clock.advance(1)
        with log.open("a") as file:
            log.unlink()
            file.write(line(4, "four"))
        is_running = False
        await clock.advance(1)
    assert b"".join(printed) == b"one\ntwo\nthree\nfour\n"


def test_options_are_parsed() -> None:
    query = {"follow": "true", "tailLines": "5", "sinceSeconds": "3600", "stream": "Stderr"}
    assert parse_options(query, NOW) == LogOptions(
        follow=True, tail=5, since=datetime(2026, 1, 1, 11, tzinfo=UTC), stream=b"stderr"
    )


@pytest.mark.parametrize(
    "query",
    [{"tailLines": "x"}, {"limitBytes": "-1"}, {"sinceTime": "today"}, {"stream": "Both"}],
)
def test_invalid_options_are_rejected(query: dict[str, str]) -> None:
    with pytest.raises(LogOptionsError):
        parse_options(query, NOW)
