"""A thread that acts when the event loop is blocked, which the loop cannot detect itself."""

import os
import threading
from collections.abc import Callable

from kftrainer.machinery.manager.clock import Clock


class Watchdog:
    """Calls `act` once if `feed` is not called for `patience` seconds while it is active."""

    def __init__(self, clock: Clock, patience: float, act: Callable[[], None]) -> None:
        self._clock = clock
        self._patience = patience
        self._act = act
        self._fed_at = 0.0
        self._stopped: threading.Event | None = None

    def feed(self, at: float) -> None:
        """Record that all was well at this time; start the thread if it does not run."""
        self._fed_at = at
        if self._stopped is None:
            self._stopped = threading.Event()
            threading.Thread(
                target=self._guard, args=(self._stopped,), name="watchdog", daemon=True
            ).start()

    def stop(self) -> None:
        """Stop the thread; `feed` starts it again."""
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def _guard(self, stopped: threading.Event) -> None:
        while (left := self._fed_at + self._patience - self._clock.monotonic()) > 0:
            if stopped.wait(left):
                return
        if not stopped.is_set():
            self._act()


def end_process(why: str) -> None:
    """End the process at once, without cleanup: a blocked thread might hold any lock."""
    os.write(2, f'{{"level":"critical","event":"process_ended","why":"{why}"}}\n'.encode())
    os._exit(1)
