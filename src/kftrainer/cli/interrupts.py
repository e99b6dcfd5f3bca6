"""Handling of Ctrl-C before a command has started its work.

This module imports only the smallest modules of the standard library: importing the rest of a
command takes a second, in which a KeyboardInterrupt would end in a traceback.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130


@contextmanager
def exiting_on_interrupt(program: str) -> Iterator[None]:
    """Exit with one line and code 130 on SIGINT while the block runs.

    The block must not start anything that needs cleanup. A SIGINT that is ignored or already
    handled is not changed.
    """

    def leave(_signum: int, _frame: FrameType | None) -> None:
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, _line(program).encode())
        os._exit(INTERRUPTED)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def report_interrupt(program: str) -> int:
    """Print that the program was interrupted; return the exit code."""
    sys.stderr.write(_line(program))
    return INTERRUPTED


def _line(program: str) -> str:
    return f"{program}: interrupted.\n"
