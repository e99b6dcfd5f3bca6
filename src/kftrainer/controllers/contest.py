"""Back-off for reverting other clients' changes, so that two controllers do not race."""

from dataclasses import dataclass

from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.backoff import Backoff

CALM = 60.0  # seconds after which an earlier write is ignored
SWEEP_AT = 1_000  # number of stored writes at which those older than CALM are dropped


@dataclass(slots=True)
class _Act:
    what: str
    at: float
    repeats: int  # consecutive earlier writes of the same content
    due: float | None = None  # when it may be written again; None until it is found reverted

    def is_calm(self, now: float) -> bool:
        return now - max(self.at, self.due or 0.0) >= CALM


class Contest:
    """Record writes, and delay repeated writes of the same content.

    The first write and every write of different content are not delayed: a user who suspends,
    resumes and suspends a TrainJob does not wait. A lagging cache cannot be distinguished from a
    contest at first, and causes the same pause.
    """

    def __init__(self, clock: Clock, backoff: Backoff) -> None:
        self._clock = clock
        self._backoff = backoff
        self._acts: dict[Request, _Act] = {}

    def pause(self, request: Request, what: str = "") -> float:
        """Return the seconds to wait before writing this; 0 unless it was written recently."""
        now, last = self._clock.monotonic(), self._acts.get(request)
        if last is None:
            return 0.0
        if last.what != what or last.is_calm(now):
            self.forget(request)
            return 0.0
        if last.due is None:
            last.due = now + self._backoff.next_delay(request, now)
        return max(0.0, last.due - now)

    def acted(self, request: Request, what: str = "") -> bool:
        """Record the write; return whether it is the first repetition, which should be logged."""
        last = self._acts.get(request)
        repeats = last.repeats + 1 if last is not None and last.what == what else 0
        now = self._clock.monotonic()
        if len(self._acts) >= SWEEP_AT:
            for each in [key for key, act in self._acts.items() if act.is_calm(now)]:
                self.forget(each)
        self._acts[request] = _Act(what, now, repeats)
        return repeats == 1

    def forget(self, request: Request) -> None:
        """Drop the writes of an object, for example because it was deleted."""
        self._acts.pop(request, None)
        self._backoff.forget(request)

    def settled(self, request: Request) -> None:
        """Record that the object is as wanted; the pause starts when it is found reverted."""
        if (last := self._acts.get(request)) is not None:
            last.due = None
