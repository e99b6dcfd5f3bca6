"""Long work in small slices, so that the event loop is never blocked for long."""

from kftrainer.machinery.manager.clock import Clock

SLICE = 0.005


class TimeSlices:
    """Lets others run when the work has gone on for some milliseconds; call it often."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    def begin(self) -> None:
        """Work begins, after a time of waiting."""
        self._since = self._clock.monotonic()

    async def breathe(self) -> None:
        """Let others run if it is time to."""
        if self._clock.monotonic() - self._since > SLICE:
            await self._clock.sleep(0)
            self.begin()
