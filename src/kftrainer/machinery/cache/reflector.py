"""What to ask the API server next, so that a copy of its objects stays true: pure decisions.

A cycle begins with a list of everything, preferably as a stream (`sendInitialEvents`), and goes on
as a watch from there. A watch that ends is resumed where it was; only when the server has
forgotten that place, or fails otherwise, does a new cycle begin.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Literal, assert_never

from kftrainer.kube.client.errors import (
    ApiError,
    ExpiredError,
    ForbiddenError,
    KindNotFoundError,
    KubeError,
    MalformedStreamError,
    RequestTimeoutError,
    ResourceVersionTooNewError,
    TooManyRequestsError,
    TransportError,
)
from kftrainer.machinery.cache.store import is_older

FIRST_DELAY, LONGEST_DELAY, FORGIVEN_AFTER = 0.8, 30.0, 120.0
# A kind that was uninstalled is often reinstalled soon, and reading nothing costs little.
LONGEST_DELAY_OF_MISSING_KIND = 2.5
SHORT_WATCH = 1.0  # a watch that ends sooner, and without an event, is no success
SILENT_WATCH = 60.0  # one without an event for so long may be deaf
PAGE = 100  # objects, each of which may have a mebibyte
MOST_RECENT = ""

Reason = Literal["initial", "expired", "ahead", "short_watch", "error"]


@dataclass(frozen=True, slots=True)
class ListAsStream:
    """Watch with the objects that are there sent first, then go on watching."""

    resource_version: str  # not older than this; empty: the most recent
    reason: Reason


@dataclass(frozen=True, slots=True)
class ListInPages:
    """List everything."""

    resource_version: str
    reason: Reason
    page: int = PAGE


@dataclass(frozen=True, slots=True)
class Watch:
    """Resume watching after this version."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class AskVersion:
    """Ask for the server's own version: a watch from one that lies ahead would stay silent."""


Action = ListAsStream | ListInPages | Watch | AskVersion


@dataclass(frozen=True, slots=True)
class Step:
    """What to do, after how many seconds."""

    action: Action
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """A watch ended, or a streamed list after all objects had come."""

    lived: float
    events: int  # bookmarks among them
    error: KubeError | None = None


@dataclass(frozen=True, slots=True)
class StreamBroke:
    """A streamed list ended before all objects had come."""

    tried: ListAsStream
    lived: float
    error: KubeError | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """All pages came."""


@dataclass(frozen=True, slots=True)
class ListFailed:
    """A page did not come."""

    tried: ListInPages
    pages: int  # that had come before
    error: KubeError


@dataclass(frozen=True, slots=True)
class VersionTold:
    """The server's version, or why it was not told."""

    answer: str | KubeError


Outcome = WatchEnded | StreamBroke | Listed | ListFailed | VersionTold


@dataclass(slots=True)
class Delays:
    """How long to wait after each failure: 0.8 s doubling to 30 s, and up to as much again."""

    rng: Random
    longest: float = LONGEST_DELAY
    _base: float = 0.0
    _last: float = float("-inf")

    def next(self, now: float) -> float:
        """The delay of a failure that happens now."""
        forgiven = now - self._last > FORGIVEN_AFTER
        self._base = FIRST_DELAY if forgiven else min(self._base * 2, self.longest)
        self._last = now
        return self._base * (1.0 + self.rng.random())


class Reflector:
    """Decides on the next step from how the last one ended."""

    def __init__(self, rng: Random) -> None:
        self._delays = Delays(rng)
        self._delays_of_missing_kind = Delays(rng, LONGEST_DELAY_OF_MISSING_KIND)

    def start(self) -> Step:
        """The first step: the most recent state, never an old one that a server's cache has."""
        return Step(ListAsStream(MOST_RECENT, "initial"))

    def after(self, outcome: Outcome, version: str, now: float) -> Step:
        """The next step; `version` is how far the store has come."""
        match outcome:
            case WatchEnded():
                return self._after_watch(outcome, version, now)
            case StreamBroke():
                return self._after_broken_stream(outcome, now)
            case Listed():
                return Step(Watch(version))
            case ListFailed():
                return self._after_failed_list(outcome, now)
            case VersionTold():
                return self._after_version(outcome.answer, version, now)
            case _:
                assert_never(outcome)

    def _after_watch(self, ended: WatchEnded, version: str, now: float) -> Step:
        match ended.error:
            case TooManyRequestsError():
                return self._later(Watch(version), now, ended.error)
            case ExpiredError():
                return self._later(ListAsStream(version, "expired"), now, ended.error)
            case ResourceVersionTooNewError():
                return self._later(ListAsStream(MOST_RECENT, "ahead"), now, ended.error)
            case KindNotFoundError():
                return self._when_installed(now)
            case ApiError() | MalformedStreamError():  # a watch from here would end the same way
                return self._later(ListAsStream(version, "error"), now, ended.error)
            case _:
                return self._after_cut_watch(ended, version, now)

    def _after_cut_watch(self, ended: WatchEnded, version: str, now: float) -> Step:
        """The server ended it as it ends all, or the connection was lost: both are everyday."""
        if not ended.events and ended.lived >= SILENT_WATCH:
            return Step(AskVersion())
        if ended.events or ended.lived >= SHORT_WATCH:
            return Step(Watch(version))
        if ended.error is not None:  # nobody may be there at all: going on is cheaper than a list
            return self._later(Watch(version), now)
        return self._later(ListAsStream(version, "short_watch"), now)

    def _after_broken_stream(self, broke: StreamBroke, now: float) -> Step:
        if isinstance(broke.error, ApiError):
            return self._after_refused_stream(broke.tried, broke.error, now)
        tried = broke.tried
        in_pages = ListInPages(tried.resource_version, tried.reason)
        match broke.error:
            # Something on the way may not let streams through, or not as they are.
            case RequestTimeoutError() | MalformedStreamError():
                return self._later(in_pages, now)
            case TransportError() if broke.lived < SHORT_WATCH:
                return self._later(tried, now)
            case _:
                return self._later(in_pages, now)

    def _after_refused_stream(self, tried: ListAsStream, error: ApiError, now: float) -> Step:
        match error:
            # Where a watch is forbidden, a list would be of no use.
            case TooManyRequestsError() | ForbiddenError():
                return self._later(tried, now, error)
            case ExpiredError() | ResourceVersionTooNewError():
                return self._from_most_recent(tried, now, error)
            case KindNotFoundError():
                return self._when_installed(now)
            case _:  # it does not stream lists: this server never, or not now
                return Step(ListInPages(tried.resource_version, tried.reason))

    def _after_failed_list(self, failed: ListFailed, now: float) -> Step:
        tried = failed.tried
        match failed.error:
            # Never without pages: the objects may have more bytes than there is memory.
            case ExpiredError() | ResourceVersionTooNewError():
                return self._from_most_recent(tried, now, failed.error)
            case KindNotFoundError():
                return self._when_installed(now)
            case _:
                again = ListAsStream(tried.resource_version, tried.reason)
                return self._later(again, now, failed.error)

    def _from_most_recent(
        self, tried: ListAsStream | ListInPages, now: float, error: KubeError
    ) -> Step:
        again = replace(tried, resource_version=MOST_RECENT)
        # The most recent one cannot have expired: a server that says so is to be given time.
        return Step(again) if again != tried else self._later(again, now, error)

    def _after_version(self, answer: str | KubeError, version: str, now: float) -> Step:
        if isinstance(answer, KubeError):
            return self._later(Watch(version), now, answer)
        if is_older(answer, version):  # etcd was put back to an earlier state
            return Step(ListAsStream(MOST_RECENT, "ahead"))
        return Step(Watch(version))

    def _when_installed(self, now: float) -> Step:
        """List again soon, from the most recent state: a new definition starts its own history."""
        delay = self._delays_of_missing_kind.next(now)
        return Step(ListAsStream(MOST_RECENT, "error"), delay)

    def _later(self, action: Action, now: float, error: KubeError | None = None) -> Step:
        asked = error.retry_after if isinstance(error, ApiError) else None
        return Step(action, max(self._delays.next(now), asked or 0.0))
