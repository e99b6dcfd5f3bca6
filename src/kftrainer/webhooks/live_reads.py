"""Objects as they are now: a cache lags, and nobody should be refused for that."""

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
# Given the key of a TrainJob, and the kind and name of its runtime.
ReducedObjects = Callable[[ObjectKey, str, str], Iterable[Asked]]
# A verdict may hang on one of these; what else planning reads cannot make it worse.
DECISIVE = (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES, JOB_SETS, PRIORITY_CLASSES)
WITHIN = 2.0  # seconds for all reads together: somebody waits for the answer
MOST_READ = 8  # objects; there are hardly ever more than three
UNREADABLE: Final = object()


def nothing_reduced(_job: ObjectKey, _kind: str, _name: str) -> Iterable[Asked]:
    """Return no objects: for sources that hold all of them whole."""
    return ()


class Remembering:
    """Reads from what exists, and remembers the decisive objects as they were read."""

    def __init__(self, existing: ClusterReader) -> None:
        self._existing = existing
        self.asked: dict[Asked, object] = {}  # None if it does not exist, UNREADABLE if it failed

    def knows(self, resource: Resource[Any]) -> bool:
        """As what exists says."""
        return self._existing.knows(resource)

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """The object of this key."""
        if resource not in DECISIVE:
            return self._existing.get(resource, key)
        self.asked[resource, key] = UNREADABLE
        found = self._existing.get(resource, key)
        self.asked[resource, key] = found
        return found

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """All objects of the kind."""
        return self._existing.list(resource, namespace)

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """The same, each decoded when it is asked for."""
        return self._existing.iterate(resource, namespace)

    def outdated(self, live: Mapping[Asked, Manifest | None]) -> dict[Asked, Manifest | None]:
        """Return the live objects that differ from what was read."""
        return {
            each: manifest
            for each, manifest in live.items()
            if not _is_same(self.asked.get(each, UNREADABLE), manifest)
        }


def _is_same(known: Any, live: Manifest | None) -> bool:
    """Whether no rule can distinguish the live object from the known one.

    Of a runtime, rules read neither finalizers nor the status. Unknown versions are never the same.
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
    """What exists, with some objects as they were just read; None for those that are gone."""

    def __init__(self, existing: ClusterReader, live: Mapping[Asked, Manifest | None]) -> None:
        self._existing = existing
        self._live = dict(live)
        self._decoded: dict[Asked, Any] = {}

    def update(self, live: Mapping[Asked, Manifest | None]) -> None:
        """Use these objects, too, from now on; none of them was given before."""
        self._live.update(live)

    def knows(self, resource: Resource[Any]) -> bool:
        """As what exists says."""
        return self._existing.knows(resource)

    def get(self, resource: Resource[T], key: ObjectKey) -> T | None:
        """The object of this key, decoded once."""
        which = resource, key
        if which not in self._live:
            return self._existing.get(resource, key)
        if which not in self._decoded:
            live = self._live[which]
            self._decoded[which] = None if live is None else resource.decode(live)
        decoded: T | None = self._decoded[which]
        return decoded

    def list(self, resource: Resource[T], namespace: str | None = None) -> Sequence[T]:
        """All objects of the kind, as they were."""
        return self._existing.list(resource, namespace)

    def iterate(self, resource: Resource[T], namespace: str | None = None) -> Iterator[T]:
        """The same, each decoded when it is asked for."""
        return self._existing.iterate(resource, namespace)


async def read_now(
    client: Client, asked: Iterable[Asked], until: float
) -> dict[Asked, Manifest | None]:
    """The objects as they are now; those that cannot be read by then are left out.

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
