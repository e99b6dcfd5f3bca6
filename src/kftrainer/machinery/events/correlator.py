"""Correlation of Events by client-go's rules: aggregate, count and rate limit. Pure.

Identical Events raise the count of the existing Event. From the tenth different message on, Events
about one object with the same reason are combined into one. Too many Events about one object are
dropped for a while.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from kftrainer.kube.client.ratelimit import TokenBucket
from kftrainer.machinery.lru import Lru

EventType = Literal["Normal", "Warning"]

SIMILAR_ENOUGH = 10
SIMILAR_WITHIN = 600.0
COMBINED = "(combined from similar events): "
SPAM_BURST = 25
SPAM_REFILL = 300.0  # seconds per token
REMEMBERED = 4096
LONGEST_MESSAGE = 1024  # bytes
LONGEST_NAME = 253
ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    field_path: str = ""  # the part of the object, for example a container


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened to an object."""

    regarding: Reference
    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An Event as it is to be stored in the API server."""

    key: tuple[object, ...]
    name: str
    occurrence: Occurrence
    first: datetime
    last: datetime
    count: int


@dataclass(slots=True)
class _Similar:
    messages: OrderedDict[str, None]
    last: float


def cut(message: str, longest: int = LONGEST_MESSAGE) -> str:
    """Truncate the message to a number of UTF-8 bytes, without splitting a character."""
    encoded = message.encode(errors="replace")
    if len(encoded) <= longest:
        return encoded.decode()
    room = longest - len(ELLIPSIS.encode())
    return encoded[:room].decode(errors="ignore") + ELLIPSIS


class EventCorrelator:
    """Keeps the recent Events, to detect repeats, similar Events and floods."""

    def __init__(self) -> None:
        self._similar: Lru[tuple[object, ...], _Similar] = Lru(REMEMBERED)
        self._entries: Lru[tuple[object, ...], Entry] = Lru(REMEMBERED)
        self._buckets: Lru[tuple[object, ...], TokenBucket] = Lru(REMEMBERED)
        self._last_stamp = 0

    def take(self, occurrence: Occurrence, now: float, today: datetime) -> Entry | None:
        """Return the Event to write, or None if the rate limit drops it.

        A count of 1 means a new Event, a higher one a repeat.
        """
        key, occurrence = self._combined(replace(occurrence, message=cut(occurrence.message)), now)
        before = self._entries.get(key)
        if before is None:
            entry = Entry(key, self._new_name(occurrence, today), occurrence, today, today, 1)
        else:
            entry = replace(before, occurrence=occurrence, last=today, count=before.count + 1)
        self._entries.put(key, entry)
        return entry if self._is_within_rate(occurrence, now) else None

    def written(self, entry: Entry) -> None:
        """Record the name under which the Event was written."""
        known = self._entries.get(entry.key)
        if known is not None:
            self._entries.put(entry.key, replace(known, name=entry.name))

    def renamed(self, entry: Entry, today: datetime) -> Entry:
        """Return the entry with a new name, because the earlier Event no longer exists."""
        return replace(entry, name=self._new_name(entry.occurrence, today))

    def _combined(
        self, occurrence: Occurrence, now: float
    ) -> tuple[tuple[object, ...], Occurrence]:
        group = (occurrence.regarding, occurrence.type, occurrence.reason)
        similar = self._similar.get(group)
        if similar is None or now - similar.last > SIMILAR_WITHIN:
            similar = _Similar(OrderedDict(), now)
            self._similar.put(group, similar)
        similar.messages[occurrence.message] = None
        similar.last = now
        if len(similar.messages) < SIMILAR_ENOUGH:
            return (*group, occurrence.message), occurrence
        similar.messages.popitem(last=False)  # so that it does not grow
        return group, replace(occurrence, message=cut(COMBINED + occurrence.message))

    def _is_within_rate(self, occurrence: Occurrence, now: float) -> bool:
        key = (occurrence.regarding, occurrence.type)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = TokenBucket(1 / SPAM_REFILL, SPAM_BURST, now)
            self._buckets.put(key, bucket)
        return bucket.try_take(now)

    def _new_name(self, occurrence: Occurrence, today: datetime) -> str:
        """Return the object's name with a unique time in nanoseconds."""
        since_epoch = today - datetime(1970, 1, 1, tzinfo=UTC)
        stamp = (since_epoch.days * 86_400 + since_epoch.seconds) * 10**9
        stamp += since_epoch.microseconds * 1000
        self._last_stamp = max(stamp, self._last_stamp + 1)
        ending = f".{self._last_stamp:x}"
        # No part of a name between dots may end with a hyphen or be empty.
        return occurrence.regarding.name[: LONGEST_NAME - len(ending)].rstrip("-.") + ending
