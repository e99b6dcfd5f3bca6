"""Backoff for repairs that another client keeps reverting, so that two controllers do not race."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kftrainer.machinery.manager.clock import Clock

RESET_AFTER = 60.0  # seconds: the shortest time after which an earlier write is ignored
SWEEP_AT = 1_000  # number of stored writes at which those that are ignored are dropped

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often the same content was written in a row."""

    times: int
    next_pause: float  # seconds to wait if it is reverted again
    resets_in: float  # seconds until these writes are ignored if it is not


@dataclass(slots=True)
class _Write:
    content: str
    at: float
    times: int  # consecutive writes of the same content
    next_pause: float
    due: float | None = None  # when it may be written again; None until it is found reverted

    def resets_in(self, now: float) -> float:
        """Return the seconds until the write is ignored.

        The time grows with the pauses: a client that pauses for as long as we do is still there.
        """
        return max(self.at, self.due or 0.0) + max(RESET_AFTER, 2 * self.next_pause) - now


class RepairBackoff(Generic[Key]):
    """Records writes, and delays repeated writes of the same content.

    The first write and every write of different content are not delayed: a user who suspends,
    resumes and suspends a TrainJob does not wait. A lagging cache cannot be distinguished from
    another client's change at first, and causes the same pause.
    """

    def __init__(self, clock: Clock, *, first: float, longest: float) -> None:
        self._clock = clock
        self._first = first
        self._longest = longest
        self._writes: dict[Key, _Write] = {}

    def pause(self, key: Key, content: str = "") -> float:
        """Return the seconds to wait before writing this; 0 unless it was written recently."""
        now, last = self._clock.monotonic(), self._writes.get(key)
        if last is None:
            return 0.0
        if last.content != content or last.resets_in(now) <= 0:
            self.forget(key)
            return 0.0
        if last.due is None:
            last.due = now + last.next_pause
            last.next_pause = min(2 * last.next_pause, self._longest)
        return max(0.0, last.due - now)

    def record_write(self, key: Key, content: str = "") -> bool:
        """Record a write; return whether it is the first repetition, which should be logged."""
        now, last = self._clock.monotonic(), self._writes.get(key)
        if len(self._writes) >= SWEEP_AT:
            for each in [each for each, write in self._writes.items() if write.resets_in(now) <= 0]:
                self.forget(each)
        if last is not None and last.content == content:
            times, next_pause = last.times + 1, last.next_pause
        else:
            times, next_pause = 1, self._first
        self._writes[key] = _Write(content, now, times, next_pause)
        return times == 2  # noqa: PLR2004  once, and once more

    def record_unchanged(self, key: Key) -> None:
        """Record that the object is as wanted; the pause starts when it is found reverted."""
        if (last := self._writes.get(key)) is not None:
            last.due = None

    def forget(self, key: Key) -> None:
        """Drop the writes of an object, for example because it was deleted."""
        self._writes.pop(key, None)

    def repeated(self, at_least: int) -> dict[Key, Repeats]:
        """Return the objects that were written so often in a row that another client competes."""
        now = self._clock.monotonic()
        return {
            key: Repeats(last.times, last.next_pause, resets_in)
            for key, last in self._writes.items()
            if last.times >= at_least and (resets_in := last.resets_in(now)) > 0
        }
