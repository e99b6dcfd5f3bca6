"""List and watch decisions: which request keeps a local copy current. Pure.

A cycle starts with a full list, preferably streamed (`sendInitialEvents`), and continues with a
watch from there. A watch that ends is resumed at the last resourceVersion. A new cycle starts only
if the server no longer has that version (410 Gone) or fails in another way. The resourceVersion,
also that of bookmarks, is in `store`; `source` sets the parameters of the requests.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Literal, assert_never

from kftrainer.kube.client.client import PAGE_SIZE
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

FIRST_DELAY, LONGEST_DELAY, RESET_AFTER = 0.8, 30.0, 120.0
# An uninstalled kind is often reinstalled soon, and listing it costs little.
LONGEST_DELAY_OF_MISSING_KIND = 2.5
SHORT_WATCH = 1.0  # seconds; a watch that ends sooner without an event counts as failed
SILENT_WATCH = 60.0  # seconds without an event after which the watch may be stuck
MOST_RECENT = ""

Reason = Literal["initial", "expired", "ahead", "short_watch", "error"]


@dataclass(frozen=True, slots=True)
class ListAsStream:
    """Watch with the existing objects sent first (`sendInitialEvents`)."""

    resource_version: str  # minimum version; empty for the most recent
    reason: Reason


@dataclass(frozen=True, slots=True)
class ListInPages:
    """List all objects in pages."""

    resource_version: str
    reason: Reason
    page: int = PAGE_SIZE


@dataclass(frozen=True, slots=True)
class Watch:
    """Resume watching after this resourceVersion."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class ReadVersion:
    """Read the server's current resourceVersion.

    A watch from a version newer than the server's own would stay silent.
    """


Action = ListAsStream | ListInPages | Watch | ReadVersion


@dataclass(frozen=True, slots=True)
class Step:
    """The next action and the delay in seconds before it."""

    action: Action
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """A watch ended, or a streamed list ended after all objects were received."""

    seconds: float
    events: int  # including bookmarks
    error: KubeError | None = None


@dataclass(frozen=True, slots=True)
class StreamBroke:
    """A streamed list ended before all objects were received."""

    tried: ListAsStream
    seconds: float
    error: KubeError | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """All pages were received."""


@dataclass(frozen=True, slots=True)
class ListFailed:
    """A page could not be read."""

    tried: ListInPages
    pages: int  # received before the failure
    error: KubeError


@dataclass(frozen=True, slots=True)
class VersionRead:
    """The server's resourceVersion, or the error of the request."""

    result: str | KubeError


Outcome = WatchEnded | StreamBroke | Listed | ListFailed | VersionRead


@dataclass(slots=True)
class Delays:
    """Retry delays: 0.8 s doubling to `longest`, plus a jitter of up to 100 %."""

    rng: Random
    longest: float = LONGEST_DELAY
    _base: float = 0.0
    _last: float = float("-inf")

    def next(self, now: float) -> float:
        """Return the delay after a failure at this time."""
        is_reset = now - self._last > RESET_AFTER
        self._base = FIRST_DELAY if is_reset else min(self._base * 2, self.longest)
        self._last = now
        return self._base * (1.0 + self.rng.random())


class Reflector:
    """Decides on the next list or watch request from the outcome of the last one."""

    def __init__(self, rng: Random) -> None:
        self._delays = Delays(rng)
        self._delays_of_missing_kind = Delays(rng, LONGEST_DELAY_OF_MISSING_KIND)

    def start(self) -> Step:
        """Return the first step: list the most recent state, not a server's stale cache."""
        return Step(ListAsStream(MOST_RECENT, "initial"))

    def after(self, outcome: Outcome, version: str, now: float) -> Step:
        """Return the next step; `version` is the store's resourceVersion."""
        match outcome:
            case WatchEnded():
                return self._after_watch(outcome, version, now)
            case StreamBroke():
                return self._after_broken_stream(outcome, now)
            case Listed():
                return Step(Watch(version))
            case ListFailed():
                return self._after_failed_list(outcome, now)
            case VersionRead():
                return self._after_version(outcome.result, version, now)
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
            case ApiError() | MalformedStreamError():  # resuming would fail in the same way
                return self._later(ListAsStream(version, "error"), now, ended.error)
            case _:
                return self._after_cut_watch(ended, version, now)

    def _after_cut_watch(self, ended: WatchEnded, version: str, now: float) -> Step:
        """Return the step after a regular end of the watch or a lost connection."""
        if not ended.events and ended.seconds >= SILENT_WATCH:
            return Step(ReadVersion())
        if ended.events or ended.seconds >= SHORT_WATCH:
            return Step(Watch(version))
        if ended.error is not None:  # the server may be down: resuming is cheaper than a list
            return self._later(Watch(version), now)
        return self._later(ListAsStream(version, "short_watch"), now)

    def _after_broken_stream(self, broke: StreamBroke, now: float) -> Step:
        if isinstance(broke.error, ApiError):
            return self._after_refused_stream(broke.tried, broke.error, now)
        tried = broke.tried
        in_pages = ListInPages(tried.resource_version, tried.reason)
        match broke.error:
            # A proxy in between may block or alter streams.
            case RequestTimeoutError() | MalformedStreamError():
                return self._later(in_pages, now)
            case TransportError() if broke.seconds < SHORT_WATCH:
                return self._later(tried, now)
            case _:
                return self._later(in_pages, now)

    def _after_refused_stream(self, tried: ListAsStream, error: ApiError, now: float) -> Step:
        match error:
            # If the watch is forbidden, a list does not help.
            case TooManyRequestsError() | ForbiddenError():
                return self._later(tried, now, error)
            case ExpiredError() | ResourceVersionTooNewError():
                return self._from_most_recent(tried, now, error)
            case KindNotFoundError():
                return self._when_installed(now)
            case _:  # this server does not support streamed lists, or not now
                return Step(ListInPages(tried.resource_version, tried.reason))

    def _after_failed_list(self, failed: ListFailed, now: float) -> Step:
        tried = failed.tried
        match failed.error:
            # Always in pages: all objects at once may not fit into memory.
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
        # The most recent version cannot have expired, so back off if the server reports that.
        return Step(again) if again != tried else self._later(again, now, error)

    def _after_version(self, result: str | KubeError, version: str, now: float) -> Step:
        if isinstance(result, KubeError):
            return self._later(Watch(version), now, result)
        if is_older(result, version):  # etcd was restored to an earlier state
            return Step(ListAsStream(MOST_RECENT, "ahead"))
        return Step(Watch(version))

    def _when_installed(self, now: float) -> Step:
        """Return a list of the most recent state: a reinstalled CRD starts a new history."""
        delay = self._delays_of_missing_kind.next(now)
        return Step(ListAsStream(MOST_RECENT, "error"), delay)

    def _later(self, action: Action, now: float, error: KubeError | None = None) -> Step:
        retry_after = error.retry_after if isinstance(error, ApiError) else None
        return Step(action, max(self._delays.next(now), retry_after or 0.0))
