"""How soon to repair again what somebody else keeps undoing. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

FIRST_WAIT, LONGEST_WAIT = 0.1, 300.0
DOUBLINGS = 12  # to more than the longest wait
# Who undoes something less often than this is not waited for: it costs little to repair it, and
# much to be without it.
SHORTEST_QUIET = 60.0
CONTESTED_AFTER = 5


@dataclass(frozen=True, slots=True)
class _Past:
    times: int
    last: float

    @property
    def wait(self) -> float:
        return min(FIRST_WAIT * 2.0 ** min(self.times - 1, DOUBLINGS), LONGEST_WAIT)

    @property
    def over(self) -> float:
        """When it will have been quiet for long enough."""
        return self.last + max(2 * self.wait, SHORTEST_QUIET)


class Repairs:
    """What was repaired how often: each time in a row, the next one has to wait twice as long."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def is_due(self, what: str, now: float) -> bool:
        """Whether it may be repaired now."""
        past = self._past.get(what)
        return past is None or now >= past.last + past.wait

    def made(self, what: str, now: float) -> None:
        """It was repaired."""
        self._forget(now)
        past = self._past.get(what)
        self._past[what] = _Past(past.times + 1 if past is not None else 1, now)

    def contested(self, now: float) -> Iterator[tuple[str, str]]:
        """What somebody else keeps undoing, and what we do about it."""
        self._forget(now)
        for what, past in self._past.items():
            if past.times >= CONTESTED_AFTER:
                yield what, f"repaired {past.times} times, the next time after {past.wait:.0f} s"

    def changes_in(self, now: float) -> float | None:
        """Seconds until something is contested no more."""
        ends = [past.over - now for past in self._past.values() if past.times >= CONTESTED_AFTER]
        return max(min(ends), 0.0) if ends else None

    def _forget(self, now: float) -> None:
        """All that nobody has undone for a while."""
        self._past = {what: past for what, past in self._past.items() if now < past.over}
