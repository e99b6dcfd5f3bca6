"""Deletes revisions of runtimes that no TrainJob records any more.

A TrainJob records its revision some time after the revision was created, and other TrainJobs may
begin with it at any time. A revision is therefore deleted only after it was unused for a while, if
a live list of the TrainJobs confirms that, and with its UID and version as preconditions.
"""

from collections.abc import Collection, Iterable, Sequence
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
MOST_FOREIGN: Final = 10_000
INDEX_NAMESPACE: Final = "namespace"


def _namespace(seen: ObservedObject[Any]) -> Iterable[str]:
    return (seen.metadata.get("namespace") or "",)


REVISION_INDEXES = {INDEX_NAMESPACE: _namespace}


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
        self._foreign: Lru[ObjectKey, str] = Lru(MOST_FOREIGN)  # UIDs of objects that are not ours

    async def reconcile(self, request: Request) -> Result:
        """Delete the revisions that were unused for the grace period; enqueue for the others."""
        namespace = request.name
        if not self._cache.informer(TRAIN_JOBS).is_readable(namespace):
            return CHECK_AGAIN
        now = self._clock.monotonic()
        unused = self._update_unused(namespace, now)
        due = [key for key, since in unused.items() if now - since >= self._grace]
        due = due[:MOST_DELETIONS]
        try:
            deleted = await self._collect(namespace, due)
        except WriteGuardError:
            return Result(requeue=True)
        except KubeError as error:
            raise ReconcileError(f"cannot delete unused revisions: {error}") from error
        waiting = {key: since for key, since in unused.items() if key not in deleted}
        if not waiting:
            return DONE
        # Those that were due and are in use after all are checked again like new ones.
        self._unused_since[namespace] = {
            key: now if key in due else since for key, since in waiting.items()
        }
        oldest = min(self._unused_since[namespace].values())
        return Result(requeue_after=max(oldest + self._grace - self._clock.monotonic(), 1.0))

    def _update_unused(self, namespace: str, now: float) -> dict[ObjectKey, float]:
        """Return the revisions that no cached TrainJob records, and since when."""
        before = self._unused_since.pop(namespace, {})
        found = {
            key: before.get(key, now)
            for key in self._cache.index_keys(CONTROLLER_REVISIONS, INDEX_NAMESPACE, namespace)
            if not self._is_recorded(key) and not self._is_foreign(key)
        }
        if found:
            self._unused_since[namespace] = found
        return found

    def _is_recorded(self, key: ObjectKey) -> bool:
        return self._cache.has_index(TRAIN_JOBS, INDEX_REVISION, str(key))

    def _is_foreign(self, key: ObjectKey) -> bool:
        uid = self._foreign.get(key)
        if uid is None:
            return False
        found = self._cache.informer(CONTROLLER_REVISIONS).cached_object(key)
        return found is not None and found.metadata.get("uid") == uid

    async def _collect(self, namespace: str, due: Sequence[ObjectKey]) -> Collection[ObjectKey]:
        """Delete the given revisions; return those that need not be checked again."""
        unused = [each for each in due if not self._revisions.was_used_within(each, self._grace)]
        if not unused:
            return ()
        recorded = await self._recorded(namespace, unused)
        done = set[ObjectKey]()
        for key in unused:
            if key not in recorded and await self._delete(key):
                done.add(key)
        return done

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
        """Delete the revision; return whether it need not be checked again."""
        try:
            live = await self._client.get(CONTROLLER_REVISIONS, key)
        except NotFoundError:
            return True
        metadata = live["metadata"]
        if not RuntimeRevision.decode(live).is_usable:
            # Another client's object, or one that is being deleted.
            if "deletionTimestamp" not in metadata:
                self._foreign.put(key, metadata["uid"])
            return True
        if self._revisions.was_used_within(key, self._grace) or self._is_recorded(key):
            return False
        with self._revisions.deleting(key):
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
