"""Reads objects from the API server where a stale cache could cause a wrong denial."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import structlog

from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    JOB_SETS,
    PRIORITY_CLASSES,
    TRAINING_RUNTIMES,
)
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError, NotFoundError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.runtime.cluster_reader import ClusterReader

log = structlog.get_logger(__name__)

T = TypeVar("T")

Asked = tuple[Resource[Any], ObjectKey]
# Takes the key of a TrainJob, and the kind and name of its runtime.
ReducedObjects = Callable[[ObjectKey, str, str], Iterable[Asked]]
# A denial may depend on one of these; other kinds that planning reads cannot cause one.
DECISIVE = (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES, JOB_SETS, PRIORITY_CLASSES)
WITHIN = 2.0  # seconds for all reads together, as the client waits for the response
MOST_READ = 8  # objects; more than three are rare
UNREADABLE: Final = object()


def nothing_reduced(_job: ObjectKey, _kind: str, _name: str) -> Iterable[Asked]:
    """Return no objects; for sources that hold complete objects only."""
    return ()


class Remembering:
    """A ClusterReader that records the decisive objects it returned."""

    def __init__(self, existing: ClusterReader) -> None:
        self._existing = existing
        self.asked: dict[Asked, object] = {}  # None if it does not exist, or UNREADABLE

    def knows(self, resource: Resource[Any]) -> bool:
        """Return whether the kind can be read."""
        return self._existing.knows(resource)

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object with this key and record it if it is decisive."""
        if resource not in DECISIVE:
            return self._existing.get(resource, key)
        self.asked[resource, key] = UNREADABLE
        found = self._existing.get(resource, key)
        self.asked[resource, key] = found
        return found

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """Return all objects of the kind."""
        return self._existing.list(resource, namespace)

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Iterate over all objects of the kind, each decoded on demand."""
        return self._existing.iterate(resource, namespace)

    def outdated(self, live: Mapping[Asked, Manifest | None]) -> dict[Asked, Manifest | None]:
        """Return the live objects that differ from what was read."""
        return {
            each: manifest
            for each, manifest in live.items()
            if not _is_same(self.asked.get(each, UNREADABLE), manifest)
        }


def _is_same(known: Any, live: Manifest | None) -> bool:
    """Return whether the rules cannot distinguish the live object from the known one.

    Rules read neither finalizers nor the status of a runtime. Unknown versions are never the same.
    """
    if known is UNREADABLE or known is None or live is None:
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


class Refreshed:
    """A ClusterReader with some objects replaced by live ones; None marks a deleted object."""

    def __init__(self, existing: ClusterReader, live: Mapping[Asked, Manifest | None]) -> None:
        self._existing = existing
        self._live = dict(live)
        self._decoded: dict[Asked, Any] = {}

    def update(self, live: Mapping[Asked, Manifest | None]) -> None:
        """Use these live objects as well; none of them may have been given before."""
        self._live.update(live)

    def knows(self, resource: Resource[Any]) -> bool:
        """Return whether the kind can be read."""
        return self._existing.knows(resource)

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """Return the object with this key, decoded once."""
        which = resource, key
        if which not in self._live:
            return self._existing.get(resource, key)
        if which not in self._decoded:
            live = self._live[which]
            self._decoded[which] = None if live is None else resource.decode(live)
        decoded: T | None = self._decoded[which]
        return decoded

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """Return all objects of the kind from the underlying reader."""
        return self._existing.list(resource, namespace)

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """Iterate over the objects of the underlying reader, each decoded on demand."""
        return self._existing.iterate(resource, namespace)


async def read_now(
    client: Client, asked: Iterable[Asked], until: float
) -> dict[Asked, Manifest | None]:
    """Read objects from the API server; omit those that cannot be read in time.

    `until` is a time of the event loop's clock.
    """
    wanted = list(asked)[:MOST_READ]
    read: dict[Asked, Manifest | None] = {}

    async def read_one(resource: Resource[Any], key: ObjectKey) -> None:
        try:
            read[resource, key] = await client.get(resource, key)
        except NotFoundError:
            read[resource, key] = None
        except KubeError as error:
            log.warning("admission.not_read", kind=resource.kind, object=str(key), error=str(error))

    try:
        async with asyncio.timeout_at(until), asyncio.TaskGroup() as reads:
            for resource, key in wanted:
                reads.create_task(read_one(resource, key), name=f"read {resource.kind} {key}")
    except TimeoutError:
        late = [f"{each.kind} {key}" for each, key in wanted if (each, key) not in read]
        log.warning("admission.not_read_in_time", objects=late, seconds=WITHIN)
    return read
