"""Progress reports on a terminal or in a log: only slow steps are shown."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

QUIET_FOR = 1.0  # seconds before a step is reported
TERMINAL_EVERY = 1.0
LOG_EVERY = 15.0
CLEAR_LINE = "\r\x1b[K"


class Stream(Protocol):
    """The output stream; sys.stderr is one."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


def duration(seconds: float) -> str:
    """Format seconds for people: 0.8 s, 42 s, 3 min 05 s."""
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class Step:
    """One step in progress; `note` sets its current detail."""

    def __init__(self, title: str, stream: Stream | None, loop: asyncio.AbstractEventLoop) -> None:
        self.title = title
        self.is_shown = False
        self._stream = stream
        self._loop = loop
        self._began = loop.time()
        self._detail = ""
        self._timer: asyncio.TimerHandle | None = None
        if stream is not None:
            self._timer = loop.call_later(QUIET_FOR, self._tick, stream)

    def note(self, detail: str) -> None:
        """Set the detail that is shown with the next report."""
        self._detail = detail

    def finish(self, outcome: str) -> None:
        """End the step; steps that were never reported stay silent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None and self.is_shown:
            took = duration(self._loop.time() - self._began)
            self._write(self._stream, f"{self.title}: {outcome} after {took}", last=True)

    def _tick(self, stream: Stream) -> None:
        every = TERMINAL_EVERY if stream.isatty() else LOG_EVERY
        self._timer = self._loop.call_later(every, self._tick, stream)
        aside = [duration(self._loop.time() - self._began)] if self.is_shown else []
        aside += [self._detail] if self._detail else []
        self.is_shown = True
        suffix = f" ({', '.join(aside)})" if aside else ""
        self._write(stream, f"{self.title} …{suffix}", last=False)

    def _write(self, stream: Stream, text: str, *, last: bool) -> None:
        if stream.isatty():
            stream.write(f"{CLEAR_LINE}{text}" + ("\n" if last else ""))
        else:
            stream.write(f"{text}\n")
        stream.flush()


class Progress:
    """Creates steps that report to one stream; silent without a stream."""

    def __init__(self, stream: Stream | None = None) -> None:
        self._stream = stream

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Report the block as one step; needs a running event loop."""
        step = Step(title, self._stream, asyncio.get_running_loop())
        try:
            yield step
        except BaseException:
            step.finish("failed")
            raise
        step.finish("done")


SILENT = Progress()
