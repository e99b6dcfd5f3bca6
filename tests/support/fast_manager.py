"""A manager whose clock runs faster; `tests.support.managers.FAST` starts it.

Back-off, pauses and deadlines that are measured with the manager's clock take a fraction of their
time; requests do not.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from kftrainer.cli import main
from kftrainer.cli.manager_setup import assembly
from kftrainer.machinery.manager.clock import SystemClock
from tests.support.fast_clock import FastClock


class _FastClock(FastClock):
    """Starts at the present time, so that timestamps of the API server are never in the future."""

    def __init__(self, times: float) -> None:
        super().__init__(times)
        self._start = SystemClock().now()

    def now(self) -> datetime:
        """The time of day, as it counts."""
        return self._start + timedelta(seconds=self.monotonic())


def run(arguments: Sequence[str]) -> int:
    """Run the command that follows the number in the arguments, with a clock so much faster."""
    times, *command = arguments
    assembly.SystemClock = lambda: _FastClock(float(times))  # type: ignore[assignment,misc]
    return main.main(command)
