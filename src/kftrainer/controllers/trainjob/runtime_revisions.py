"""Keeps the content of runtimes in ControllerRevisions, one for all TrainJobs that begin with it.

The order of writes is: the revision, the objects of the TrainJob, the status with the JobSet's UID
and the revision's name. A manager that dies in between leaves at most a revision that no TrainJob
records, which is deleted later; the next manager begins the TrainJob anew or adopts its JobSet.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog

from kftrainer.api import names
from kftrainer.api.resources import CONTROLLER_REVISIONS, TRAIN_JOBS
from kftrainer.api.runtime_revisions import (
    RuntimeRevision,
    content_of,
    other_names,
    revision_manifest,
)
from kftrainer.api.trainjob import TrainJob, TrainJobStatus
from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.controllers.trainjob.apply import ForeignObjectError
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ConflictError,
    KubeError,
    NotFoundError,
)
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.lru import Lru
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.repair_backoff import RepairBackoff
from kftrainer.runtime.info import AnyRuntime, key_of_job, recorded_job_set
from kftrainer.runtime.revisions import name_of, recorded_revision, recorded_revision_in

log = structlog.get_logger(__name__)

NO_STATUS: Final = TrainJobStatus()
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0  # seconds before a deleted revision is created again
HTTP_CONFLICT: Final = 409
SWEEP_AT: Final = 10_000  # uses at which those that are old are dropped
USED: Final = 60.0  # seconds after its last use in which a revision is not deleted
# The same after the JobSet was rejected: it is tried again after up to 300 seconds.
REMEMBERED: Final = 600.0
MOST_VERIFIED: Final = 10_000
MOST_DELETED: Final = 10_000
LOST_MESSAGE: Final = (
    "the ControllerRevision with the spec of the runtime that this TrainJob began with does not "
    "exist or has different content, and the runtime has changed since. The existing JobSet is "
    "kept; only its mutable fields follow the runtime. If the JobSet is deleted, it cannot be "
    "created again"
)
NAMES_TAKEN: Final = (
    "ControllerRevision {} and its alternative names already exist with other content or without "
    "the label {}: they are not used and not modified. Delete them"
)


@dataclass(frozen=True, slots=True)
class _Begun:
    """The revision of a TrainJob whose stored status may not record it yet."""

    owner: str | None  # UID of the TrainJob
    name: str
    is_certain: bool = False  # the JobSet was created; otherwise its request may have failed


@dataclass(slots=True)
class _Lock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class RuntimeRevisions:
    """The ControllerRevisions of this manager, and those that its TrainJobs are about to record."""

    def __init__(self, client: Client, view: OverlayCache, *, clock: Clock) -> None:
        self._client = client
        self._view = view
        self._clock = clock
        self._begun: dict[Request, _Begun] = {}
        self._lost: dict[Request, str] = {}  # revisions whose loss was reported
        self._kept_until: dict[ObjectKey, float] = {}
        self._deleting: set[ObjectKey] = set()
        self._deleted: Lru[ObjectKey, str] = Lru(MOST_DELETED)  # UIDs; they may still be cached
        self._locks: dict[ObjectKey, _Lock] = {}
        self._verified: Lru[str, str] = Lru(MOST_VERIFIED)  # names of large revisions, by UID
        self._restores = RepairBackoff[ObjectKey](clock, first=FIRST_PAUSE, longest=LONGEST_PAUSE)

    # TrainJobs whose status does not record the revision yet.

    def with_newest(self, stored: TrainJob) -> TrainJob:
        """Return the TrainJob with the revision that it has begun with, or may have."""
        found = self._begun.get(key_of_job(stored))
        if found is None or recorded_revision(stored) is not None:
            return stored
        if found.owner != stored.metadata.uid:
            del self._begun[key_of_job(stored)]
            return stored
        return _with_revision(stored, found.name)

    def begun_with(self, request: Request) -> ObjectKey | None:
        """Return the revision that the TrainJob has begun with, or may have, if not yet stored."""
        found = self._begun.get(request)
        return None if found is None else ObjectKey(request.namespace, found.name)

    def drop_if_stored(self, request: Request) -> None:
        """Drop the revision of a TrainJob whose stored status records it."""
        if request in self._begun:
            manifest = self._view.cached_part(TRAIN_JOBS, request)
            if manifest is not None and recorded_revision_in(manifest) is not None:
                del self._begun[request]

    def with_begun(self, stored: TrainJob, job: TrainJob) -> TrainJob:
        """Return the TrainJob with the revision that its status should record.

        It is recorded only together with the JobSet: a TrainJob whose JobSet was rejected begins
        with the runtime as it is when the JobSet is created.
        """
        recorded = recorded_revision(stored)
        found = self._begun.get(key_of_job(stored))
        is_begun = found is not None and found.is_certain and recorded_job_set(job)
        name = recorded.name if recorded is not None else None
        return _with_revision(job, found.name if found is not None and is_begun else name)

    def begin(self, job: TrainJob, name: str) -> None:
        """Register the revision of a TrainJob before its JobSet is created."""
        self._begun[key_of_job(job)] = _Begun(job.metadata.uid, name)

    def begun(self, job: TrainJob) -> None:
        """Register that the JobSet was created or adopted."""
        found = self._begun.get(key_of_job(job))
        if found is not None:
            self._begun[key_of_job(job)] = _Begun(found.owner, found.name, is_certain=True)

    def abandon(self, job: TrainJob) -> None:
        """Register that the JobSet was certainly not created."""
        found = self._begun.get(key_of_job(job))
        if found is not None and not found.is_certain:
            del self._begun[key_of_job(job)]
            self._keep(key_of_job(job, found.name), REMEMBERED)

    def forget(self, request: Request) -> None:
        """Drop a TrainJob that was deleted."""
        self._begun.pop(request, None)
        self._lost.pop(request, None)

    def is_newly_lost(self, job: TrainJob) -> bool:
        """Whether the loss of the recorded revision was not reported before; it is now."""
        request, name = key_of_job(job), str(recorded_revision(job))
        if self._lost.get(request) == name:
            return False
        self._lost[request] = name
        return True

    # ControllerRevisions.

    async def ensure(self, job: TrainJob, runtime: AnyRuntime) -> str:
        """Return the name of the revision with the runtime's content; create it if necessary.

        Raises KubeError, and ForeignObjectError if other objects have all of its names.
        """
        first = name_of(runtime)
        for name in (first, *other_names(first)):
            key = key_of_job(job, name)
            async with self._locked(key):
                if await self._is_usable(key) or await self._create(key, runtime):
                    return name
        raise ForeignObjectError(
            NAMES_TAKEN.format(key_of_job(job, first), names.LABEL_RUNTIME_KIND)
        )

    async def restore(self, job: TrainJob, runtime: AnyRuntime) -> float | None:
        """Create the recorded revision again if it was deleted and the runtime is unchanged.

        Returns the seconds until the next attempt if there is still no revision. The TrainJob does
        not need it while the runtime is unchanged, so a failed request is only logged.
        """
        key = recorded_revision(job)
        if key is None or self._view.cached_part(CONTROLLER_REVISIONS, key) is not None:
            return None
        try:
            async with self._locked(key):
                return await self._restore(key, runtime)
        except WriteGuardError:
            raise
        except KubeError as error:
            log.warning("runtime_revision_not_restored", object=str(key), error=str(error))
            self._restores.record_write(key)
            return self._restores.pause(key)

    async def _restore(self, key: ObjectKey, runtime: AnyRuntime) -> float | None:
        if self._view.cached_part(CONTROLLER_REVISIONS, key) is not None:
            return None
        if pause := self._restores.pause(key):
            return pause
        is_created = await self._create(key, runtime)
        self._restores.record_write(key)
        if is_created:
            log.warning("runtime_revision_restored", object=str(key))
            return None
        log.warning("runtime_revision_name_taken", object=str(key))
        return self._restores.pause(key)

    async def _is_usable(self, key: ObjectKey) -> bool:
        """Whether the cached object has the content that its name stands for."""
        if self._is_deleted(key):
            return False
        if self._view.is_reduced(CONTROLLER_REVISIONS, key):
            return await self._is_usable_large(key)
        found = self._view.get(CONTROLLER_REVISIONS, key)
        return found is not None and found.is_usable

    def _is_deleted(self, key: ObjectKey) -> bool:
        """Whether the cache still has the object that the collector deleted."""
        uid = self._deleted.get(key)
        if uid is None:
            return False
        part = self._view.cached_part(CONTROLLER_REVISIONS, key)
        return part is not None and part["metadata"].get("uid") == uid

    async def _is_usable_large(self, key: ObjectKey) -> bool:
        """Read a large revision once to verify its content, which is immutable."""
        part = self._view.cached_part(CONTROLLER_REVISIONS, key)
        metadata = {} if part is None else part["metadata"]
        is_kept = "deletionTimestamp" not in metadata
        if self._verified.get(metadata.get("uid", "")) == key.name:
            return is_kept
        try:
            live = await self._client.get(CONTROLLER_REVISIONS, key)
        except NotFoundError:
            return False
        if not RuntimeRevision.decode(live).is_usable:
            return False
        self._verified.put(live["metadata"]["uid"], key.name)
        return True

    async def _create(self, key: ObjectKey, runtime: AnyRuntime) -> bool:
        """Create the revision; False if the name is taken by an object that cannot be used."""
        number = runtime.metadata.generation or 1
        manifest = revision_manifest(content_of(runtime), key.namespace, key.name, number)
        try:
            live = await self._client.create(
                CONTROLLER_REVISIONS, manifest, field_manager=names.FIELD_MANAGER
            )
            log.info("runtime_revision_created", object=str(key))
        except AlreadyExistsError:
            try:
                live = await self._client.get(CONTROLLER_REVISIONS, key)
            except NotFoundError:
                message = f"ControllerRevision {key} was deleted meanwhile"
                raise ConflictError(HTTP_CONFLICT, "Conflict", message) from None
        if not RuntimeRevision.decode(live).is_usable:
            return False
        self._verified.put(live["metadata"]["uid"], key.name)
        self._deleted.drop(key)
        self._view.record(CONTROLLER_REVISIONS, live)
        return True

    @asynccontextmanager
    async def _locked(self, key: ObjectKey) -> AsyncIterator[None]:
        """Use a revision, one caller at a time, so that only one of them creates it.

        It is marked as used first: from then on it is not deleted for a while.
        """
        if key in self._deleting:
            message = f"ControllerRevision {key} is being deleted"
            raise ConflictError(HTTP_CONFLICT, "Conflict", message)
        self._keep(key, USED)
        entry = self._locks.setdefault(key, _Lock())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[key]

    def _keep(self, key: ObjectKey, seconds: float) -> None:
        now = self._clock.monotonic()
        if len(self._kept_until) >= SWEEP_AT:
            self._kept_until = {each: at for each, at in self._kept_until.items() if at > now}
        self._kept_until[key] = max(self._kept_until.get(key, 0.0), now + seconds)

    # Deletion, by the collector.

    def is_kept(self, key: ObjectKey) -> bool:
        """Whether a TrainJob began with the revision recently, or is about to record it."""
        if self._clock.monotonic() < self._kept_until.get(key, 0.0):
            return True
        pending: Mapping[Request, _Begun] = self._begun
        return any(
            each.name == key.name and request.namespace == key.namespace
            for request, each in pending.items()
        )

    @contextmanager
    def deleting(self, key: ObjectKey, uid: str) -> Iterator[None]:
        """Prevent TrainJobs from beginning with the revision while it is deleted.

        Afterwards they do not begin with the object with this UID until it was read again: the
        cache may still have it, and a request that failed may have been processed.
        """
        self._deleting.add(key)
        self._deleted.put(key, uid)
        try:
            yield
        finally:
            self._deleting.discard(key)
            self._kept_until.pop(key, None)


def _with_revision(job: TrainJob, name: str | None) -> TrainJob:
    present = None if job.status is None else job.status.runtime_revision
    if present == name:
        return job
    status = (job.status or NO_STATUS).model_copy(update={"runtime_revision": name})
    return job.model_copy(update={"status": status})
