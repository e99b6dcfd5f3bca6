"""Measures the lag of the event loop, which delays everything in the process."""

import asyncio
from collections.abc import Callable

from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause
from kftrainer.machinery.metrics.registry import Metrics

EVERY = 0.25


class LoopLag:
    """Continuously measures how late timers fire; a Runnable."""

    name = "event-loop-lag"

    def __init__(self, metrics: Metrics, *, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Measure until `stop` is set."""
        ready()
        due = self._clock.monotonic() + EVERY
        while not await pause(self._clock, EVERY, stop=stop):
            now = self._clock.monotonic()
            self._metrics.loop_lag(now - due)
            due = now + EVERY
