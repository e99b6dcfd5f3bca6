"""What the server tells on a watch: lines of JSON, decoded one by one."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from kftrainer.kube.client.errors import MalformedStreamError, error_from_status
from kftrainer.kube.objects.resource import Manifest, as_it_is

LONGEST_LINE = 16 * 2**20  # bytes, as in client-go
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Upserted:
    """An object is new to the watch, or has changed."""

    manifest: Manifest
    added: bool


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object is gone, or no longer selected; the manifest is its last state."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Bookmark:
    """All that happened up to this resourceVersion has been told."""

    resource_version: str
    initial_events_end: bool  # every object that was there when the watch began has been told


WatchEvent = Upserted | Deleted | Bookmark
Amend = Callable[[dict[str, Any]], Manifest]


class LineSplitter:
    """Makes lines of chunks that end anywhere."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []  # joined once, as a long line comes in many chunks
        self._length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their ends."""
        *ends, rest = chunk.split(b"\n")
        if not ends:
            self._keep(rest)
            return []
        self._keep(ends[0])
        ends[0] = b"".join(self._begun)
        self._begun.clear()
        self._length = 0
        self._keep(rest)
        return ends

    def _keep(self, part: bytes) -> None:
        self._length += len(part)
        if self._length > LONGEST_LINE:
            raise MalformedStreamError(f"A watch sent a line longer than {LONGEST_LINE} bytes.")
        if part:
            self._begun.append(part)


async def events_in(
    chunks: AsyncIterator[bytes], amend: Amend = as_it_is
) -> AsyncGenerator[WatchEvent, None]:
    """The events of a whole watch; a line that was cut off at its end has told nothing.

    Objects are told as `amend` makes them.
    """
    lines = LineSplitter()
    async for chunk in chunks:
        for event in decode_events(lines.feed(chunk), amend):
            yield event


def decode_events(lines: list[bytes], amend: Amend = as_it_is) -> Iterator[WatchEvent]:
    """The events in these lines; an ERROR event is raised as the error that it tells of."""
    for line in lines:
        if line and (event := _decode(line, amend)) is not None:
            yield event


def _decode(line: bytes, amend: Amend) -> WatchEvent | None:
    try:
        told = orjson.loads(line)
        kind, manifest = told["type"], told["object"]
    except (orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise _malformed(line) from error
    if kind == "ERROR":
        if not isinstance(manifest, dict):
            raise _malformed(line)
        # An expired resourceVersion, for one, may be told here and not by the HTTP status.
        raise error_from_status(manifest)
    if not isinstance(manifest, dict) or not (manifest.get("metadata") or {}).get(
        "resourceVersion"
    ):
        log.warning("watch.event_without_metadata", type=kind)
        return None
    return _event(kind, amend(manifest))


def _malformed(line: bytes) -> MalformedStreamError:
    return MalformedStreamError(f"A watch sent what is no event: {line[:200]!r}")


def _event(kind: str, manifest: Manifest) -> WatchEvent:
    match kind:
        case "ADDED":
            return Upserted(manifest, added=True)
        case "MODIFIED":
            return Upserted(manifest, added=False)
        case "DELETED":
            return Deleted(manifest)
        case "BOOKMARK":
            return _bookmark(manifest["metadata"])
        case _:
            log.warning("watch.unknown_event", type=kind)
            # Not understood, but past: the watch is to be resumed behind it.
            return _bookmark({"resourceVersion": manifest["metadata"]["resourceVersion"]})


def _bookmark(metadata: dict[str, Any]) -> Bookmark:
    annotations = metadata.get("annotations") or {}
    ends = annotations.get(INITIAL_EVENTS_END) == "true"
    return Bookmark(metadata["resourceVersion"], initial_events_end=ends)
