"""A thread that acts when the event loop has stalled: the loop cannot notice that by itself."""

import os
import threading
from collections.abc import Callable

from kftrainer.machinery.manager.clock import Clock


class Watchdog:
    """Acts once if it is not fed for too long while it is on guard."""

    def __init__(self, clock: Clock, patience: float, act: Callable[[], None]) -> None:
        self._clock = clock
        self._patience = patience
        self._act = act
        self._fed_at = 0.0
        self._dismissed: threading.Event | None = None

    def feed(self, at: float) -> None:
        """All was well at that time of the clock; go on guard if not there yet."""
        self._fed_at = at
        if self._dismissed is None:
            self._dismissed = threading.Event()
            threading.Thread(
                target=self._guard, args=(self._dismissed,), name="watchdog", daemon=True
            ).start()

    def dismiss(self) -> None:
        """Leave; can be fed again later."""
        if self._dismissed is not None:
            self._dismissed.set()
            self._dismissed = None

    def _guard(self, dismissed: threading.Event) -> None:
        while (left := self._fed_at + self._patience - self._clock.monotonic()) > 0:
            if dismissed.wait(left):
                return
        if not dismissed.is_set():
            self._act()


def end_process(why: str) -> None:
    """End at once: no cleanup, no flushing, no lock that the stalled thread might hold."""
    os.write(2, f'{{"level":"critical","event":"process.ended","why":"{why}"}}\n'.encode())
    os._exit(1)
