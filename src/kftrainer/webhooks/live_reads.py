"""Reads objects from the API server where a stale cache could cause a wrong denial."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import structlog

from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CONTROLLER_REVISIONS,
    JOB_SETS,
    PRIORITY_CLASSES,
    TRAINING_RUNTIMES,
)
from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.runtime.cluster_reader import ClusterReader, DerivedReader
from kftrainer.runtime.runtimes import RuntimeKey

log = structlog.get_logger(__name__)

T = TypeVar("T")

ObjectRef = tuple[Resource[Any], ObjectKey]
LiveObjects = Mapping[ObjectRef, Manifest | None]  # None if the object does not exist
# Takes the key of a TrainJob, its runtime, which is None if its kind is not supported, and the
# revision that its status records, if there is one.
ReducedObjects = Callable[[ObjectKey, RuntimeKey | None, ObjectKey | None], Iterable[ObjectRef]]
# A denial may depend on one of these; other kinds that planning reads cannot cause one.
DECISIVE = (
    TRAINING_RUNTIMES,
    CLUSTER_TRAINING_RUNTIMES,
    CONTROLLER_REVISIONS,
    JOB_SETS,
    PRIORITY_CLASSES,
)
READ_TIMEOUT = 2.0  # seconds for all reads together, as the client waits for the response
MOST_READS = 8  # objects; more than three are rare
UNDECODABLE: Final = object()


class UnreadableError(Exception):
    """A response depends on an object that could not be read from the API server in time."""


def nothing_reduced(
    _job: ObjectKey, _runtime: RuntimeKey | None, _revision: ObjectKey | None
) -> Iterable[ObjectRef]:
    """Return no objects; for sources that hold complete objects only."""
    return ()


class LiveReader(DerivedReader):
    """ClusterReader over a cache, with objects replaced by live ones; records decisive reads."""

    def __init__(self, cache: ClusterReader, live: LiveObjects) -> None:
        super().__init__(cache)
        self._live = dict(live)
        self._decoded: dict[ObjectRef, Any] = {}
        # What `get` has returned since it was cleared; UNDECODABLE if decoding has failed.
        self.reads: dict[ObjectRef, object] = {}

    def update(self, live: LiveObjects) -> None:
        """Use these live objects as well; none of them may have been given before."""
        self._live.update(live)

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object with this key and record it if it is decisive."""
        if resource not in DECISIVE:
            return self._get(resource, key)
        self.reads[resource, key] = UNDECODABLE
        found = self._get(resource, key)
        self.reads[resource, key] = found
        return found

    def _get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        reference = resource, key
        if reference not in self._live:
            return super().get(resource, key)
        if reference not in self._decoded:
            live = self._live[reference]
            self._decoded[reference] = None if live is None else resource.decode(live)
        decoded: T | None = self._decoded[reference]
        return decoded

    def outdated(self, live: LiveObjects) -> dict[ObjectRef, Manifest | None]:
        """Return the live objects that differ from what was read."""
        return {
            reference: manifest
            for reference, manifest in live.items()
            if not _is_same(self.reads.get(reference, UNDECODABLE), manifest)
        }


def _is_same(known: Any, live: Manifest | None) -> bool:
    """Return whether the rules cannot distinguish the live object from the known one.

    Rules read neither finalizers nor the status of a runtime. Unknown versions are never the same.
    """
    if known is UNDECODABLE or known is None or live is None:
        return known is live
    metadata = live["metadata"]
    if isinstance(known, Mapping):
        before = known["metadata"]
        return _version(before) == _version(metadata) is not None
    before = known.metadata
    return (before.uid, before.generation) == (
        metadata.get("uid"),
        metadata.get("generation"),
    ) and (
        before.generation is not None
        and (before.labels or {}) == (metadata.get("labels") or {})
        and (before.annotations or {}) == (metadata.get("annotations") or {})
    )


def _version(metadata: Mapping[str, Any]) -> tuple[str, str] | None:
    version = metadata.get("resourceVersion")
    return (metadata.get("uid", ""), version) if version else None


async def read_live(
    client: Client, references: Iterable[ObjectRef], until: float
) -> dict[ObjectRef, Manifest | None]:
    """Read objects from the API server; omit those that cannot be read in time.

    `until` is a time of the event loop's clock.
    """
    wanted = list(references)[:MOST_READS]
    live: dict[ObjectRef, Manifest | None] = {}

    async def read_one(resource: Resource[Any], key: ObjectKey) -> None:
        try:
            found = await get_or_none(client, resource, key, kind_may_be_missing=True)
            live[resource, key] = found
        except KubeError as error:
            text = str(error)
            log.warning("admission_read_failed", kind=resource.kind, object=str(key), error=text)

    try:
        async with asyncio.timeout_at(until), asyncio.TaskGroup() as reads:
            for resource, key in wanted:
                reads.create_task(read_one(resource, key), name=f"read {resource.kind} {key}")
    except TimeoutError:
        late = [f"{each.kind} {key}" for each, key in wanted if (each, key) not in live]
        log.warning("admission_read_timeout", objects=late, seconds=READ_TIMEOUT)
    return live
