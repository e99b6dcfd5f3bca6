"""How soon the same thing may be done to an object again: somebody else may be undoing it."""

from dataclasses import dataclass

from kftrainer.machinery.backoff import Backoff
from kftrainer.machinery.clock import Clock
from kftrainer.machinery.reconcile import Request

CALM = 60.0  # seconds after which what was done before does not matter


@dataclass(slots=True)
class _Act:
    at: float
    repeats: int  # how often it was done before, with no calm in between
    due: float | None = None  # when it may be done again, as it seems to be undone


class Contest:
    """Remembers what was done, so that two who want different things are slow at it.

    A cache that lags looks the same at first, and is given the same pause.
    """

    def __init__(self, clock: Clock, backoff: Backoff) -> None:
        self._clock = clock
        self._backoff = backoff
        self._acts: dict[Request, _Act] = {}

    def pause(self, request: Request) -> float:
        """Seconds to wait before it is done; none if it was not done within the last minute."""
        now, last = self._clock.monotonic(), self._acts.get(request)
        if last is None:
            return 0.0
        if last.due is None:
            if now - last.at >= CALM:
                del self._acts[request]
                self._backoff.forget(request)
                return 0.0
            last.due = now + self._backoff.next_delay(request, now)
        return max(0.0, last.due - now)

    def acted(self, request: Request) -> bool:
        """It was done; whether that makes it a contest, which is said once until it is calm."""
        last = self._acts.get(request)
        repeats = 0 if last is None else last.repeats + 1
        self._acts[request] = _Act(self._clock.monotonic(), repeats)
        return repeats == 1

    def settled(self, request: Request) -> None:
        """It is as it was wanted; should it be undone, the pause begins then."""
        if (last := self._acts.get(request)) is not None:
            last.due = None
