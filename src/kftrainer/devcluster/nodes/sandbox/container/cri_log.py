"""The log of a container in the format of the container runtime interface.

    2026-01-02T03:04:05.678901234Z stdout F a complete line
    2026-01-02T03:04:05.678901234Z stderr P the first 16 KiB of a long line

Standard library only.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import gmtime, strftime

LONGEST_LINE = 16 * 1024
MOST_BYTES = 10 * 1024 * 1024
NANOSECONDS = 1_000_000_000

Line = tuple[bytes, bool]  # without its end, and whether it is complete


class LineSplitter:
    """Splits the output of one stream into lines of limited length."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Line]:
        """Return the lines that `data` completes."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from self._chunks(line)
        while len(rest) > self._longest:
            yield rest[: self._longest], False
            rest = rest[self._longest :]
        self._rest = rest

    def _chunks(self, line: bytes) -> Iterator[Line]:
        while len(line) > self._longest:
            yield line[: self._longest], False
            line = line[self._longest :]
        yield line, True

    def end(self) -> Iterator[Line]:
        """Return the last line if it has no end."""
        if self._rest:
            yield self._rest, False
        self._rest = b""


def timestamp(nanoseconds: int) -> str:
    """Return a time in the format RFC3339Nano, always with nine digits."""
    seconds, rest = divmod(nanoseconds, NANOSECONDS)
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(seconds)) + f".{rest:09}Z"


class LogFile:
    """A log file that is rotated to `<path>.1`; while the disk is full, lines are dropped."""

    def __init__(
        self, path: str, clock: Callable[[], int], report: Callable[[str], None], most: int
    ) -> None:
        self._path = path
        self._clock = clock
        self._report = report
        self._most = most
        self._reported = False
        self._file = self._open()
        self._size = os.fstat(self._file).st_size

    def _open(self) -> int:
        return os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o640)

    def _rotate(self) -> None:
        os.rename(self._path, f"{self._path}.1")
        try:
            file = self._open()
        except OSError:
            os.rename(f"{self._path}.1", self._path)
            raise
        os.close(self._file)
        self._file = file
        self._size = 0

    def _append(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._most:
            self._rotate()
        written = os.write(self._file, data)
        if written < len(data):
            raise OSError(f"wrote {written} of {len(data)} bytes")
        self._size += written

    def write(self, stream: str, lines: Iterator[Line]) -> None:
        """Append lines with the time, the name of the stream and a tag."""
        now = timestamp(self._clock())
        for line, complete in lines:
            entry = f"{now} {stream} {'F' if complete else 'P'} ".encode() + line + b"\n"
            try:
                self._append(entry)
            except OSError as error:
                with suppress(OSError):  # no half line
                    os.ftruncate(self._file, self._size)
                if not self._reported:
                    self._report(f"output is dropped, writing {self._path} failed: {error}")
                self._reported = True

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
