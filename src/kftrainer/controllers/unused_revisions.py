"""Deletes revisions of runtimes that no TrainJob records any more.

A TrainJob records its revision some time after the revision was created, and other TrainJobs may
begin with it at any time. A revision is therefore deleted only after it was unused for a while, if
a live list of the TrainJobs confirms that, and with its UID and version as preconditions. The time
is longer than the pauses between the attempts to create a rejected JobSet.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import structlog

from kftrainer.api.resources import CONTROLLER_REVISIONS, TRAIN_JOBS
from kftrainer.api.runtime_revisions import RuntimeRevision
from kftrainer.controllers.trainjob.runtime_revisions import RuntimeRevisions
from kftrainer.controllers.trainjob_index import INDEX_REVISION
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ConflictError, KubeError, NotFoundError
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Request, Result
from kftrainer.machinery.lru import Lru
from kftrainer.machinery.manager.clock import Clock
from kftrainer.runtime.revisions import recorded_revision_in

log = structlog.get_logger(__name__)

GRACE: Final = 60.0  # seconds for which a revision must be unused
CHECK_AGAIN: Final = Result(requeue_after=60.0)
MOST_DELETIONS: Final = 100  # in one reconcile
MOST_FAILURES: Final = 10  # in one reconcile
MOST_NAMESPACES: Final = 10_000
INDEX_COLLECTED: Final = "collected"


def _collected(seen: ObservedObject[Any]) -> Iterable[str]:
    """Index the revisions of a namespace.

    Controllers copy the labels of a pod template to their own ControllerRevisions, so tenants
    decide how many objects with our label exist. Those are not even read.
    """
    if seen.metadata.get("ownerReferences"):
        return ()
    try:
        is_usable = seen.object.is_usable
    except ValueError:  # not decodable
        return ()
    return (seen.metadata.get("namespace") or "",) if is_usable else ()


REVISION_INDEXES = {INDEX_COLLECTED: _collected}


def enqueue_namespace(change: ObjectEvent[Any]) -> Iterable[Request]:
    """Enqueue the namespace of the object; the requests of the collector are namespaces."""
    return (ObjectKey("", change.key.namespace),)


def is_deletion(change: ObjectEvent[Any]) -> bool:
    """Whether the object was deleted."""
    return change.new is None


class RevisionCollector:
    """Delete the unused revisions of a namespace."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        revisions: RuntimeRevisions,
        *,
        clock: Clock,
        grace: float = GRACE,
    ) -> None:
        self._client = client
        self._cache = cache
        self._revisions = revisions
        self._clock = clock
        self._grace = grace
        self._unused_since: dict[str, dict[ObjectKey, float]] = {}  # by namespace
        self._listed: Lru[str, float] = Lru(MOST_NAMESPACES)  # time of the last live list

    async def reconcile(self, request: Request) -> Result:
        """Delete the revisions that were unused for the grace period; enqueue for the others."""
        namespace = request.name
        if not self._cache.informer(TRAIN_JOBS).is_readable(namespace):
            return CHECK_AGAIN
        now = self._clock.monotonic()
        unused = self._update_unused(namespace, now)
        due = [key for key, since in unused.items() if now - since >= self._grace]
        due.sort(key=unused.__getitem__)
        try:
            checked = await self._collect(namespace, due[:MOST_DELETIONS])
        except WriteGuardError:
            return Result(requeue=True)
        except KubeError as error:
            raise ReconcileError(f"cannot list the TrainJobs of {namespace}: {error}") from error
        # Those that are in use after all or cannot be deleted are checked again like new ones.
        waiting = {
            key: now if key in checked else since
            for key, since in unused.items()
            if not checked.get(key)
        }
        if not waiting:
            self._unused_since.pop(namespace, None)
            return DONE
        self._unused_since[namespace] = waiting
        begin = max(min(waiting.values()), self._listed.get(namespace) or 0.0)
        return Result(requeue_after=max(begin + self._grace - self._clock.monotonic(), 1.0))

    def _update_unused(self, namespace: str, now: float) -> dict[ObjectKey, float]:
        """Return the revisions that no cached TrainJob records, and since when."""
        before = self._unused_since.pop(namespace, {})
        found = {
            key: before.get(key, now)
            for key in self._cache.index_keys(CONTROLLER_REVISIONS, INDEX_COLLECTED, namespace)
            if not self._is_recorded(key)
        }
        if found:
            self._unused_since[namespace] = found
        return found

    def _is_recorded(self, key: ObjectKey) -> bool:
        return self._cache.has_index(TRAIN_JOBS, INDEX_REVISION, str(key))

    def _was_listed(self, namespace: str) -> bool:
        """Whether TrainJobs were listed within the grace period: that costs the most."""
        last = self._listed.get(namespace)
        return last is not None and self._clock.monotonic() - last < self._grace

    async def _collect(self, namespace: str, due: Sequence[ObjectKey]) -> Mapping[ObjectKey, bool]:
        """Delete the given revisions; return those that were checked, and whether they are gone."""
        checked = {each: False for each in due if self._revisions.is_kept(each)}
        unused = [each for each in due if each not in checked]
        if not unused or self._was_listed(namespace):
            return checked
        self._listed.put(namespace, self._clock.monotonic())
        recorded = await self._recorded(namespace, unused)
        failures = 0
        for key in unused:
            try:
                checked[key] = key not in recorded and await self._delete(key)
            except WriteGuardError:
                raise
            except KubeError as error:
                log.warning("runtime_revision_not_deleted", object=str(key), error=str(error))
                checked[key] = False
                failures += 1
                if failures == MOST_FAILURES:
                    break
        return checked

    async def _recorded(
        self, namespace: str, candidates: Sequence[ObjectKey]
    ) -> Collection[ObjectKey]:
        """Return which candidates TrainJobs record, by a live list."""
        wanted, found = frozenset(candidates), set[ObjectKey]()
        async with aclosing(self._client.list_pages(TRAIN_JOBS, namespace=namespace)) as pages:
            async for page in pages:
                recorded = map(recorded_revision_in, page.items)
                found |= {each for each in recorded if each is not None and each in wanted}
                if found == wanted:
                    break
        return found

    async def _delete(self, key: ObjectKey) -> bool:
        """Delete the revision; return whether it is gone or an event will follow."""
        try:
            live = await self._client.get(CONTROLLER_REVISIONS, key)
        except NotFoundError:
            return True
        metadata = live["metadata"]
        if not RuntimeRevision.decode(live).is_usable:
            return True  # it was changed or is being deleted
        if self._revisions.is_kept(key) or self._is_recorded(key):
            return False
        with self._revisions.deleting(key, metadata["uid"]):
            try:
                await self._client.delete(
                    CONTROLLER_REVISIONS,
                    key,
                    uid=metadata["uid"],
                    resource_version=metadata["resourceVersion"],
                )
            except (ConflictError, NotFoundError):
                return True  # it was changed or deleted: an event follows
        log.info("runtime_revision_deleted", object=str(key))
        return True
