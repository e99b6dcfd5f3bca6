"""Reads the logs of containers, which are in the format of CRI."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from kftrainer.machinery.manager.clock import Clock

ROTATED = ".1"
BLOCK = 65_536
POLL_EVERY = 0.1  # seconds between looks at a log that is followed
PART_TAG, FIELDS = b"P", 4
STREAMS = {"All": None, "Stdout": b"stdout", "Stderr": b"stderr"}


class LogOptionsError(Exception):
    """An option of the request is not valid."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which part of a log is read."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None  # lines
    since: datetime | None = None
    limit: int | None = None  # bytes
    stream: bytes | None = None


def parse_options(query: Mapping[str, str], now: datetime) -> LogOptions:
    """Return the options in the query of a request, which the API server has checked."""
    try:
        since = None
        if "sinceSeconds" in query:
            since = now - timedelta(seconds=int(query["sinceSeconds"]))
        elif "sinceTime" in query:
            since = parse_time(query["sinceTime"].encode())
        return LogOptions(
            follow=_flag(query, "follow"),
            previous=_flag(query, "previous"),
            timestamps=_flag(query, "timestamps"),
            tail=_count(query, "tailLines"),
            since=since,
            limit=_count(query, "limitBytes"),
            stream=STREAMS[query.get("stream", "All")],
        )
    except (ValueError, KeyError, OverflowError) as error:
        raise LogOptionsError(f"invalid option of a log: {error}") from error


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("true", "1")


def _count(query: Mapping[str, str], name: str) -> int | None:
    if name not in query:
        return None
    value = int(query[name])
    if value < 0:
        raise ValueError(f"{name} must not be negative")
    return value


def parse_time(text: bytes) -> datetime:
    """Parse RFC 3339 with up to nine decimal places, of which six are used."""
    whole, dot, rest = text.decode().rstrip("Z").partition(".")
    if not dot:
        return datetime.fromisoformat(text.decode().replace("Z", "+00:00")).astimezone(UTC)
    return datetime.fromisoformat(f"{whole}.{rest[:6]:0<6}+00:00")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log in the format of CRI; a part has no line end."""

    time: bytes
    stream: bytes
    is_part: bool
    text: bytes


def parse_line(line: bytes) -> Line | None:
    """Return the fields of a complete line; None if it is not in the format."""
    fields = line.rstrip(b"\n").split(b" ", FIELDS - 1)
    if len(fields) != FIELDS:
        return None
    time, stream, tag, text = fields
    return Line(time, stream, tag.split(b":")[0] == PART_TAG, text)


class Formatter:
    """Selects and prints lines; keeps the number of bytes that may still be printed."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._left = options.limit
        self._in_line: dict[bytes, bool] = {}  # by stream: its last line was a part

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def output(self, raw: bytes) -> bytes:
        """Return what is printed for a line of the log."""
        line = parse_line(raw)
        if line is None or self._is_skipped(line):
            return b""
        begins = not self._in_line.get(line.stream, False)
        self._in_line[line.stream] = line.is_part
        stamp = line.time + b" " if self._options.timestamps and begins else b""
        text = stamp + line.text + (b"" if line.is_part else b"\n")
        if self._left is None:
            return text
        text = text[: self._left]
        self._left -= len(text)
        return text

    def _is_skipped(self, line: Line) -> bool:
        if self._options.stream is not None and line.stream != self._options.stream:
            return True
        try:
            return self._options.since is not None and parse_time(line.time) < self._options.since
        except ValueError:
            return True


def last_lines_offset(file: IO[bytes], lines: int) -> tuple[int, int]:
    """Return where the last lines of a file start, and how many of them are missing in it."""
    position = end = file.seek(0, 2)
    if lines == 0:
        return end, 0
    found, offset = 0, 0
    while position > 0:
        start = max(0, position - BLOCK)
        file.seek(start)
        block = file.read(position - start)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            if start + at == end - 1:
                continue  # the end of the last line
            found += 1
            if found == lines:
                return start + at + 1, 0
        position = start
    return offset, lines - found - (1 if end else 0)


def files_of(log: Path, tail: int | None, stack: ExitStack) -> list[tuple[IO[bytes], int]]:
    """Return the open files of a log in order, and where to start to read each.

    The log is opened before the rotated one, so that no line is missed when it is rotated now.
    """
    paths = (log, log.with_name(log.name + ROTATED))
    opened = [stack.enter_context(path.open("rb")) for path in paths if path.exists()]
    missing, starts = tail, []
    for file in opened:
        offset = 0
        if missing is not None:
            offset, missing = last_lines_offset(file, max(0, missing))
        starts.append(offset)
    return [*reversed([*zip(opened, starts, strict=True)])]


class LogReader:
    """Reads one log, and continues while its container runs if it is followed.

    The file stays open, so the rest can be read after it was rotated or deleted.
    """

    def __init__(
        self, log: Path, options: LogOptions, is_running: Callable[[], bool], clock: Clock
    ) -> None:
        self._log = log
        self._options = options
        self._is_running = is_running
        self._clock = clock
        self._formatter = Formatter(options)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield what is printed, until the end of the log or the limit."""
        with ExitStack() as stack:
            file: IO[bytes] | None = None
            for each, start in files_of(self._log, self._options.tail, stack):
                each.seek(start)
                file = each
                for chunk in _printed(each, self._formatter):
                    yield chunk
                    await asyncio.sleep(0)
            if self._options.follow:
                async for chunk in self._followed(file, stack):
                    yield chunk

    async def _followed(self, file: IO[bytes] | None, stack: ExitStack) -> AsyncIterator[bytes]:
        """Yield what is added to the log, also after it was rotated."""
        while not self._formatter.is_full:
            is_running = self._is_running()  # before reading: the rest is read after the end
            for chunk in _printed(file, self._formatter) if file else ():
                yield chunk
            newer = self._newer_than(file)
            if newer is not None:
                file = stack.enter_context(newer)
            elif not is_running:
                return
            else:
                await self._clock.sleep(POLL_EVERY)

    def _newer_than(self, file: IO[bytes] | None) -> IO[bytes] | None:
        """Open the log if it is another file than this one."""
        try:
            newer = self._log.open("rb")
        except FileNotFoundError:
            return None
        if file is None or not os.path.sameopenfile(newer.fileno(), file.fileno()):
            return newer
        newer.close()
        return None


def _printed(file: IO[bytes], formatter: Formatter) -> Iterator[bytes]:
    """Yield what is printed of the complete lines; the file is left at the first incomplete one."""
    pending: list[bytes] = []
    size = 0
    while not formatter.is_full:
        position = file.tell()
        raw = file.readline()
        if not raw.endswith(b"\n"):
            file.seek(position)
            break
        text = formatter.output(raw)
        pending.append(text)
        size += len(text)
        if size >= BLOCK:
            yield b"".join(pending)
            pending, size = [], 0
    if size:
        yield b"".join(pending)
