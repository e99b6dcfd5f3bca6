"""When to give up on a stream that may have died without a word."""

from random import Random

from kftrainer.kube.client.watch import Bookmark, WatchEvent

SHORTEST_WATCH, LONGEST_WATCH = 300, 600
GRACE = 30.0  # that the server may take to end a watch whose time has come
# Servers send bookmarks every minute, but not all of them do so where nothing happens.
LONGEST_SILENCE, LONGEST_SILENCE_WITH_BOOKMARKS = 120.0, 75.0


class Pulse:
    """Whether a stream is still alive: it has a deadline, and must not be silent for long."""

    def __init__(self, now: float, server_timeout: float) -> None:
        self.events = 0
        self._heard = now
        self._deadline = now + server_timeout + GRACE
        self._silence = LONGEST_SILENCE

    def heard(self, event: WatchEvent, now: float) -> None:
        """An event came."""
        self.events += 1
        self._heard = now
        # The bookmark that ends a streamed list always comes; any other comes again in a minute.
        if isinstance(event, Bookmark) and not event.initial_events_end:
            self._silence = LONGEST_SILENCE_WITH_BOOKMARKS

    def left(self, now: float) -> float:
        """For how long it may go on at least; look again then."""
        left = min(self._deadline, self._heard + self._silence) - now
        return min(left, LONGEST_SILENCE_WITH_BOOKMARKS)  # the first bookmark may shorten it


def server_timeout(rng: Random) -> int:
    """How many seconds to ask a watch for, so that not all watches end together."""
    return rng.randrange(SHORTEST_WATCH, LONGEST_WATCH)
