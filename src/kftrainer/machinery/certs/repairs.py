"""Backoff for repairs that another writer keeps reverting. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

FIRST_WAIT, LONGEST_WAIT = 0.1, 300.0
DOUBLINGS = 12  # enough to exceed LONGEST_WAIT
# Reverts less frequent than this do not delay the next repair: repairing costs little, and a
# missing certificate costs more.
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
        """The time after which the repair counts as undisputed."""
        return self.last + max(2 * self.wait, SHORTEST_QUIET)


class Repairs:
    """Repairs by object; each consecutive repair doubles the wait before the next one."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def is_due(self, what: str, now: float) -> bool:
        """Return whether the object may be repaired now."""
        past = self._past.get(what)
        return past is None or now >= past.last + past.wait

    def made(self, what: str, now: float) -> None:
        """Record a repair."""
        self._forget(now)
        past = self._past.get(what)
        self._past[what] = _Past(past.times + 1 if past is not None else 1, now)

    def contested(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield the objects that another writer keeps reverting, and describe the backoff."""
        self._forget(now)
        for what, past in self._past.items():
            if past.times >= CONTESTED_AFTER:
                yield what, f"repaired {past.times} times, the next time after {past.wait:.0f} s"

    def changes_in(self, now: float) -> float | None:
        """Return the seconds until an object is no longer contested; None if there is none."""
        ends = [past.over - now for past in self._past.values() if past.times >= CONTESTED_AFTER]
        return max(min(ends), 0.0) if ends else None

    def _forget(self, now: float) -> None:
        """Forget repairs that have not been reverted for long enough."""
        self._past = {what: past for what, past in self._past.items() if now < past.over}
