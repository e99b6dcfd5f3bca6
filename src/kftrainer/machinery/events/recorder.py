"""Kubernetes Events about objects, as shown by `kubectl describe`."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from random import Random, SystemRandom
from typing import Any

import structlog

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ApiError, KubeError, NotFoundError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.events.correlator import (
    Entry,
    EventCorrelator,
    EventType,
    Occurrence,
    Reference,
)
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.metrics.registry import Metrics

log = structlog.get_logger(__name__)

EVENTS: Resource[Manifest] = Resource(
    "", "v1", "Event", "events", namespaced=True, decode=unstructured
)
QUEUE = 1000
TRIES = 12
RETRY_AFTER = 10.0
FLUSH_WITHIN = 2.0
NAMESPACE_FOR_CLUSTER_SCOPED = "default"  # of Events about cluster-scoped objects


class EventRecorder:
    """Writes Events in the background; a Runnable that should stop after those that use it."""

    name = "events"

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock,
        component: str,
        hostname: str,
        metrics: Metrics | None = None,
        rng: Random | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._source = {"component": component, "host": hostname}
        self._metrics = metrics
        self._rng = rng if rng is not None else SystemRandom()
        self._correlator = EventCorrelator()
        self._queue: asyncio.Queue[tuple[Occurrence, datetime]] = asyncio.Queue(QUEUE)
        self.dropped = 0

    def record(
        self,
        regarding: Manifest,
        type: EventType,  # noqa: A002  the field's name in an Event
        reason: str,
        message: str,
        field_path: str = "",
    ) -> None:
        """Queue an Event; it is written soon, or dropped if the queue is full."""
        about = replace(reference_to(regarding), field_path=field_path)
        occurrence = Occurrence(about, type, reason, message)
        try:
            self._queue.put_nowait((occurrence, self._clock.now()))
        except asyncio.QueueFull:
            self._drop("queue_full")

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Write Events until `stop` is set, then flush the queue for a short time."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self._write_forever(), name="events-writer")
            ready()
            await stop.wait()
            await self._flush()
            writer.cancel()

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_WITHIN):
                await self._queue.join()
        except TimeoutError:
            log.warning("events_not_flushed", left=self._queue.qsize())

    async def _write_forever(self) -> None:
        while True:
            occurrence, at = await self._queue.get()
            try:
                await self._take(occurrence, at)
            except Exception:
                # One malformed Event must not block the others. Its reason is logged as ASCII,
                # because what cannot be sent may not be loggable either.
                log.exception("event_not_recorded", reason=ascii(occurrence.reason))
                self._drop("failed")
            finally:
                self._queue.task_done()

    async def _take(self, occurrence: Occurrence, at: datetime) -> None:
        entry = self._correlator.take(occurrence, self._clock.monotonic(), at)
        if entry is None:
            self._drop("spam")
        else:
            await self._write(entry)

    async def _write(self, entry: Entry) -> None:
        """Write the Event; retry for two minutes if the server is unreachable, drop if refused."""
        for attempt in range(TRIES):
            try:
                self._correlator.written(await self._send(entry))
            except ApiError as error:
                # For example a terminating namespace, or an Event that was created by an earlier
                # attempt.
                log.info("event_rejected", event_name=entry.name, error=str(error))
                self._drop("refused")
                return
            except KubeError as error:
                log.warning("event_not_sent", event_name=entry.name, error=str(error))
            else:
                return
            # All controllers of a cluster lose the server at the same time; spread their retries.
            part = self._rng.random() if attempt == 0 else 1.0
            await self._clock.sleep(RETRY_AFTER * part)
        self._drop("unreachable")

    async def _send(self, entry: Entry) -> Entry:
        if entry.count > 1:
            try:
                await self._client.merge_patch(EVENTS, _key(entry), repeat_of(entry))
            except NotFoundError:  # by default the API server deletes Events after an hour
                entry = self._correlator.renamed(entry, self._clock.now())
            else:
                return entry
        await self._client.create(EVENTS, event_of(entry, self._source))
        return entry

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if self._metrics is not None:
            self._metrics.event_dropped(why)


def reference_to(manifest: Manifest) -> Reference:
    """Return a reference to the object; fields that are missing stay empty."""
    metadata: Mapping[str, Any] = manifest.get("metadata") or {}
    return Reference(
        api_version=manifest.get("apiVersion", ""),
        kind=manifest.get("kind", ""),
        namespace=metadata.get("namespace") or "",
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
    )


def event_of(entry: Entry, source: Mapping[str, str]) -> Manifest:
    """Return the Event as a manifest."""
    occurrence, about = entry.occurrence, entry.occurrence.regarding
    involved = {
        "apiVersion": about.api_version,
        "kind": about.kind,
        "namespace": about.namespace,
        "name": about.name,
        "uid": about.uid,
        "fieldPath": about.field_path,
    }
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": _key(entry).namespace, "name": entry.name},
        "involvedObject": {name: value for name, value in involved.items() if value},
        "type": occurrence.type,
        "reason": occurrence.reason,
        "message": occurrence.message,
        "source": source,
        "reportingComponent": source["component"],
        "reportingInstance": source["host"],
        "firstTimestamp": _time(entry.first),
        "lastTimestamp": _time(entry.last),
        "count": entry.count,
    }


def repeat_of(entry: Entry) -> Manifest:
    """Return the patch for a repeated Event; a combined one shows the latest message."""
    return {
        "count": entry.count,
        "lastTimestamp": _time(entry.last),
        "message": entry.occurrence.message,
    }


def _key(entry: Entry) -> ObjectKey:
    return ObjectKey(
        entry.occurrence.regarding.namespace or NAMESPACE_FOR_CLUSTER_SCOPED, entry.name
    )


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
