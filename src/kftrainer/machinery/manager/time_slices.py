"""Time slices for long work, so that the event loop is never blocked for long."""

from kftrainer.machinery.manager.clock import Clock

SLICE = 0.005


class TimeSlices:
    """Yields to the event loop after some milliseconds of work; call `yield_if_due` often."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    def begin(self) -> None:
        """Start a new slice, after waiting."""
        self._since = self._clock.monotonic()

    async def yield_if_due(self) -> None:
        """Yield to the event loop if the slice is used up."""
        if self._clock.monotonic() - self._since > SLICE:
            await self._clock.sleep(0)
            self.begin()
