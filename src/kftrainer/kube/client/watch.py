"""Watch events: lines of JSON, decoded one by one."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from kftrainer.kube.client.errors import MalformedStreamError, error_from_status
from kftrainer.kube.objects.deep_json import decode_json
from kftrainer.kube.objects.resource import Manifest, unstructured

LONGEST_LINE = 16 * 2**20  # bytes, as in client-go
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Upserted:
    """An object was added to the watch or has changed."""

    manifest: Manifest
    added: bool


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object was deleted or is no longer selected; the manifest is its last state."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Bookmark:
    """All changes up to this resourceVersion have been sent."""

    resource_version: str
    initial_events_end: bool  # all objects that existed when the watch started have been sent


WatchEvent = Upserted | Deleted | Bookmark
Transform = Callable[[dict[str, Any]], Manifest]


class LineSplitter:
    """Joins chunks into lines."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []  # joined once, because a long line arrives in many chunks
        self._length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without line ends."""
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
            raise MalformedStreamError(f"the watch sent a line longer than {LONGEST_LINE} bytes")
        if part:
            self._begun.append(part)


async def events_in(
    chunks: AsyncIterator[bytes], transform: Transform = unstructured
) -> AsyncGenerator[WatchEvent, None]:
    """Yield the events of a watch; an incomplete last line is ignored.

    `transform` is applied to each object.
    """
    lines = LineSplitter()
    async for chunk in chunks:
        for event in decode_events(lines.feed(chunk), transform):
            yield event


def decode_events(lines: list[bytes], transform: Transform = unstructured) -> Iterator[WatchEvent]:
    """Yield the events in these lines; an ERROR event is raised as the corresponding error."""
    for line in lines:
        if line and (event := _decode(line, transform)) is not None:
            yield event


def _decode(line: bytes, transform: Transform) -> WatchEvent | None:
    try:
        event = decode_json(line)
        kind, manifest = event["type"], event["object"]
    except (orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise _malformed(line) from error
    if kind == "ERROR":
        if not isinstance(manifest, dict):
            raise _malformed(line)
        # For example, an expired resourceVersion may be reported here instead of by HTTP status.
        raise error_from_status(manifest)
    if not isinstance(manifest, dict) or not (manifest.get("metadata") or {}).get(
        "resourceVersion"
    ):
        log.warning("watch_event_without_metadata", type=kind)
        return None
    return _event(kind, transform(manifest))


def _malformed(line: bytes) -> MalformedStreamError:
    return MalformedStreamError(f"the watch sent an invalid event: {line[:200]!r}")


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
            log.warning("watch_event_unknown", type=kind)
            # Skip the unknown event, but resume the watch after it.
            return _bookmark({"resourceVersion": manifest["metadata"]["resourceVersion"]})


def _bookmark(metadata: dict[str, Any]) -> Bookmark:
    annotations = metadata.get("annotations") or {}
    ends = annotations.get(INITIAL_EVENTS_END) == "true"
    return Bookmark(metadata["resourceVersion"], initial_events_end=ends)
