"""Timeouts that detect a stream whose connection was lost without notice."""

from random import Random

from kftrainer.kube.client.watch import Bookmark, WatchEvent

SHORTEST_WATCH, LONGEST_WATCH = 300, 600
GRACE = 30.0  # seconds that the server may take to end a watch after its timeout
# Servers send a bookmark every minute, but not all of them do so for idle resources.
LONGEST_SILENCE, LONGEST_SILENCE_WITH_BOOKMARKS = 120.0, 75.0


class Pulse:
    """Liveness of a stream: it has a deadline and a limit on silence."""

    def __init__(self, now: float, server_timeout: float) -> None:
        self.events = 0
        self._heard = now
        self._deadline = now + server_timeout + GRACE
        self._silence = LONGEST_SILENCE

    def heard(self, event: WatchEvent, now: float) -> None:
        """Record an event."""
        self.events += 1
        self._heard = now
        # The bookmark that ends a streamed list is always sent; any other one means that bookmarks
        # repeat every minute.
        if isinstance(event, Bookmark) and not event.initial_events_end:
            self._silence = LONGEST_SILENCE_WITH_BOOKMARKS

    def left(self, now: float) -> float:
        """Return the seconds until the next check; the stream is dead if not positive."""
        left = min(self._deadline, self._heard + self._silence) - now
        return min(left, LONGEST_SILENCE_WITH_BOOKMARKS)  # the first bookmark may shorten the limit


def server_timeout(rng: Random) -> int:
    """Return a random watch timeout in seconds, so that watches do not end together."""
    return rng.randrange(SHORTEST_WATCH, LONGEST_WATCH)
