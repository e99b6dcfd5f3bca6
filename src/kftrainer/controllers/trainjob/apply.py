"""Applies the planned objects of a TrainJob where the live ones differ from the plan.

This is a server-side apply with the field manager `trainer` (`names.FIELD_MANAGER`) and with force,
which is the default of `kube.client.client.Client.apply`. Objects that do not belong to the
TrainJob are never modified.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import structlog

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS, SECRETS, TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.client.errors import ConflictError, InvalidError, NotFoundError
from kftrainer.kube.objects.resource import (
    Manifest,
    ObjectKey,
    Resource,
    controller_of,
    is_controlled_by,
    key_of,
)
from kftrainer.machinery.lru import Lru
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.repair_backoff import RepairBackoff
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.info import own_job_set, recorded_job_set
from kftrainer.runtime.planned_object import PlannedObject

log = structlog.get_logger(__name__)

ANNOTATION_PLAN = names.ANNOTATION_APPLIED_PLAN
# An apply with a resourceVersion is rejected if the object exists with another one, and creates
# the object if it does not exist. With a version that no object has, it can only create.
NO_VERSION = "1"
# Seconds to wait before reverting the same change by another client again.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
# Capacity for generated objects that are known to exist; the others are looked up again.
MOST_GENERATED = 50_000
SHORTEST_NAME = 20  # minimum length to which names of dry-run objects are cut
HTTP_CONFLICT = 409
NULL = 'Invalid value: "null"'  # in messages of the API server
INDEX = re.compile(r"\[(\d+)\]")  # in paths of errors


class ForeignObjectError(PlanningError):
    """The name of an object that the TrainJob needs is in use by another owner's object."""

    reason = names.REASON_NAME_TAKEN


class ForeignJobSetError(ForeignObjectError):
    """A JobSet names the TrainJob as its owner but was not created by this controller."""

    reason = names.REASON_FOREIGN_JOB_SET

    def __init__(self, job_set: Manifest) -> None:
        super().__init__(
            f"JobSet {key_of(job_set)} (UID {job_set['metadata']['uid']}) was not created by this "
            "controller, although its owner reference names this TrainJob: it is not resumed and "
            "its status is ignored. Delete the JobSet: a new one is then created from the TrainJob"
        )


class PendingDeletionError(PlanningError):
    """An object that the TrainJob needs cannot be created before its predecessor is deleted."""

    reason = names.REASON_WAITING_FOR_DELETION

    def __init__(self, message: str, since: datetime | None) -> None:
        super().__init__(message)
        self.since = since


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of applying one object."""

    wrote: bool = False
    retry_after: float | None = None  # seconds; another client keeps changing the object back
    is_reverted: bool = False  # the same was written a moment ago, and another client undid it
    created: str | None = None  # UID of the object, if it was created


UNCHANGED = Applied()


@dataclass(frozen=True, slots=True)
class Created:
    """The object was created by this request."""

    uid: str


class ObjectApplier:
    """Apply the planned objects of TrainJobs."""

    def __init__(self, client: Client, view: OverlayCache, *, clock: Clock) -> None:
        self._client = client
        self._view = view
        self._clock = clock
        self._backoffs: dict[Resource[Any], RepairBackoff[ObjectKey]] = {}
        # Separate from those of plans: a rejected apply is tried before each suspension.
        self._suspensions = self._new_backoff()
        self._generated: Lru[tuple[Resource[Any], ObjectKey], str] = Lru(MOST_GENERATED)

    async def apply(self, job: TrainJob, planned: PlannedObject) -> Applied:
        """Create or change the object if it differs from the plan.

        A change that another client undoes is applied again with growing pauses.
        """
        if planned.generate is not None and not self._view.watches(planned.resource):
            return await self._ensure_generated(job, planned)
        return await self._ensure(job, planned)

    async def _ensure(self, job: TrainJob, planned: PlannedObject) -> Applied:
        key, what = key_of(planned.manifest), digest(planned.manifest)
        backoff = self._backoff(planned.resource)
        live = await self._read(planned.resource, key)
        if live is None:
            if pause := backoff.pause(key, what):
                return Applied(retry_after=pause)
            created = await self._create(planned)
            if isinstance(created, Created):
                is_reverted = backoff.record_write(key, what)
                return Applied(wrote=True, is_reverted=is_reverted, created=created.uid)
            live = created
        self._check_owner(job, planned.resource, live)
        if planned.generate is not None or is_settled(planned.manifest, live):
            backoff.record_unchanged(key)
            return UNCHANGED
        if "deletionTimestamp" in live["metadata"]:
            return UNCHANGED  # the deletion event enqueues the TrainJob, which creates a new one
        if pause := backoff.pause(key, what):
            return Applied(retry_after=pause)
        await self._update(planned, live)
        return Applied(wrote=True, is_reverted=backoff.record_write(key, what))

    async def _ensure_generated(self, job: TrainJob, planned: PlannedObject) -> Applied:
        """Create an object with random content unless it exists; its kind is not watched.

        The object is looked up once per state of the JobSet, because pods that cannot start
        without it change that state.
        """
        key, what = key_of(planned.manifest), digest(planned.manifest)
        job_set = own_job_set(job, self._view)
        state = digest({"job": job.metadata.uid, "jobSet": (job_set or {}).get("status") or {}})
        if self._generated.get((planned.resource, key)) == state:
            return UNCHANGED
        backoff, applied = self._backoff(planned.resource), UNCHANGED
        live = None if job_set is None else await self._probe(planned.resource, key)
        if live is None:
            if pause := backoff.pause(key, what):
                return Applied(retry_after=pause)
            created = await self._create(planned)
            if isinstance(created, Created):
                applied = Applied(wrote=True, is_reverted=backoff.record_write(key, what))
            else:
                live = created
        if live is not None:
            self._check_owner(job, planned.resource, live)
        self._generated.put((planned.resource, key), state)
        return applied

    async def _probe(self, resource: Resource[Any], key: ObjectKey) -> Manifest | None:
        """Return the live metadata; needs no permission to read the object."""
        try:
            return await self._client.probe(resource, key)
        except NotFoundError:
            return None
        except InvalidError:  # from the chart's admission policy: no TrainJob owns the object
            raise ForeignObjectError(_taken(f"{resource.kind} {key}", None)) from None

    def _check_owner(self, job: TrainJob, resource: Resource[Any], live: Manifest) -> None:
        """Raise an error if the live object does not belong to the TrainJob."""
        if not is_controlled_by(live["metadata"], job.metadata.uid):
            raise name_in_use(job, resource, live)
        if resource is JOB_SETS and live["metadata"]["uid"] != recorded_job_set(job):
            # It was created after the reconcile began; the next reconcile determines its owner.
            self._view.record(JOB_SETS, live)
            message = f"JobSet {key_of(live)} was created by another client"
            raise ConflictError(HTTP_CONFLICT, "Conflict", message)

    async def suspend(self, job_set: Manifest) -> Applied:
        """Suspend the JobSet and change nothing else, which JobSet always accepts."""
        key, metadata = key_of(job_set), job_set["metadata"]
        if "deletionTimestamp" in metadata:
            return UNCHANGED
        if pause := self._suspensions.pause(key, metadata["uid"]):
            return Applied(retry_after=pause)
        patch = {"metadata": {"uid": metadata["uid"]}, "spec": {"suspend": True}}
        patched = await self._client.merge_patch(
            JOB_SETS, key, patch, field_manager=names.FIELD_MANAGER
        )
        self._view.record(JOB_SETS, patched)
        log.info("jobset_suspended", object=str(key))
        is_reverted = self._suspensions.record_write(key, metadata["uid"])
        return Applied(wrote=True, is_reverted=is_reverted)

    def _backoff(self, resource: Resource[Any]) -> RepairBackoff[ObjectKey]:
        if resource not in self._backoffs:
            self._backoffs[resource] = self._new_backoff()
        return self._backoffs[resource]

    def _new_backoff(self) -> RepairBackoff[ObjectKey]:
        return RepairBackoff(self._clock, first=FIRST_PAUSE, longest=LONGEST_PAUSE)

    async def _read(self, resource: Resource[Any], key: ObjectKey) -> Manifest | None:
        """Return the live object from the cache, or from the API server if not fully cached."""
        if self._view.watches(resource) and not self._view.is_reduced(resource, key):
            found: Manifest | None = self._view.get(resource, key)
            return found
        return await self._live(resource, key)

    async def _live(self, resource: Resource[Any], key: ObjectKey) -> Manifest | None:
        if resource == SECRETS:
            return await self._probe(resource, key)
        cached_as = self._view.cached_as(resource)
        return await get_or_none(self._client, cached_as, key, kind_may_be_missing=True)

    async def _create(self, planned: PlannedObject) -> Created | Manifest:
        """Create the object, or return the live one if it already exists."""
        manifest = planned.generate() if planned.generate else planned.manifest
        marked = marked_with_plan(manifest, planned.manifest, resourceVersion=NO_VERSION)
        try:
            created = await self._client.apply(
                planned.resource, marked, field_manager=names.FIELD_MANAGER
            )
        except ConflictError as conflict:
            live = await self._live(planned.resource, key_of(manifest))
            if live is None:
                raise conflict from None  # it was deleted in between
            return live
        self._view.record(planned.resource, created)
        log.info("object_created", kind=planned.resource.kind, object=_name(created))
        return Created(created["metadata"]["uid"])

    async def as_created(self, planned: PlannedObject) -> Manifest:
        """Return what the API server would store if the object were created now.

        This is a dry run under another name, so defaults and admission policies are applied.
        """
        metadata = planned.manifest["metadata"]
        name = f"dry-run-{digest(planned.manifest)}"[: max(len(metadata["name"]), SHORTEST_NAME)]
        manifest = {
            **planned.manifest,
            "metadata": {**metadata, "name": name, "resourceVersion": NO_VERSION},
        }
        return await self._client.apply(
            planned.resource, manifest, field_manager=names.FIELD_MANAGER, dry_run=True
        )

    async def _update(self, planned: PlannedObject, live: Manifest) -> None:
        try:
            updated = await self._send_update(planned, live)
        except InvalidError as error:
            if not (emptied := emptied_maps(error)):
                raise
            await self._remove(planned.resource, live, emptied)
            updated = await self._send_update(planned, live)
        self._view.record(planned.resource, updated)
        if planned.resource is JOB_SETS:
            self._suspensions.forget(key_of(updated))
        log.info("object_updated", kind=planned.resource.kind, object=_name(updated))

    async def _send_update(self, planned: PlannedObject, live: Manifest) -> Manifest:
        # With the UID, an apply does not re-create an object that was deleted in the meantime.
        uid = live["metadata"]["uid"]
        marked = marked_with_plan(planned.manifest, planned.manifest, uid=uid)
        return await self._client.apply(planned.resource, marked, field_manager=names.FIELD_MANAGER)

    async def _remove(
        self, resource: Resource[Any], live: Manifest, pointers: Sequence[str]
    ) -> None:
        """Remove fields; raise ConflictError if the object is not the live one any more."""
        version = live["metadata"]["resourceVersion"]
        operations = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            *({"op": "remove", "path": each} for each in pointers),
        ]
        await self._client.json_patch(
            resource, key_of(live), operations, field_manager=names.FIELD_MANAGER
        )


def emptied_maps(error: InvalidError) -> Sequence[str]:
    """Return JSON pointers to the labels and annotations that an apply would leave empty.

    The API server computes null instead of an empty map if an apply removes all entries, and then
    rejects that. All these entries are this manager's: others would have remained.
    """
    fields = dict.fromkeys(each.field for each in error.causes if NULL in each.message)
    return [_pointer(each) for each in fields if is_map(each)]


def _pointer(path: str) -> str:
    """Return the path of an error as a JSON pointer."""
    return "/" + INDEX.sub(r".\1", path).replace(".", "/")


def is_map(path: str) -> bool:
    """Whether the path of an error is that of labels or annotations."""
    return path.endswith((".metadata.labels", ".metadata.annotations"))


def is_settled(planned: Manifest, live: Manifest) -> bool:
    """Whether applying the plan would change nothing."""
    marks = live["metadata"].get("annotations") or {}
    if marks.get(ANNOTATION_PLAN) != digest(planned):
        return False
    # For some kinds only the metadata is cached.
    known = {field: value for field, value in planned.items() if field in live}
    return holds(known, live)


def holds(planned: Any, live: Any) -> bool:
    """Whether the live value contains everything planned; additional fields are ignored."""
    if isinstance(planned, Mapping):
        return isinstance(live, Mapping) and all(
            field in live and holds(value, live[field]) for field, value in planned.items()
        )
    if isinstance(planned, list):
        return (
            isinstance(live, list) and len(planned) == len(live) and all(map(holds, planned, live))
        )
    return bool(planned == live)


def digest(manifest: Manifest) -> str:
    """Return a short digest of the manifest."""
    encoded = orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(encoded, digest_size=12).hexdigest()


def marked_with_plan(manifest: Manifest, planned: Manifest, **metadata: str) -> Manifest:
    """Return the manifest to send: annotated with the plan's digest, with metadata fields set."""
    annotations = {**(manifest["metadata"].get("annotations") or {})}
    annotations[ANNOTATION_PLAN] = digest(planned)
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "annotations": annotations, **metadata},
    }


def _name(manifest: Manifest) -> str:
    return str(key_of(manifest))


def name_in_use(
    job: TrainJob, resource: Resource[Any], live: Manifest
) -> ForeignObjectError | PendingDeletionError:
    """Return the error for an object that has the needed name but another owner."""
    metadata = live["metadata"]
    controller = controller_of(metadata)
    object_name = f"{resource.kind} {key_of(live)}"
    created = _time(job.metadata.creation_timestamp)
    if deleted := metadata.get("deletionTimestamp"):
        finalizers = ", ".join(metadata.get("finalizers") or ()) or "none"
        return PendingDeletionError(
            f"waiting for the deletion of {object_name}, which was requested at {deleted} "
            f"(finalizers: {finalizers}); the TrainJob then continues automatically",
            max(filter(None, (created, _time(deleted))), default=None),
        )
    if _is_of_namesake(controller, job):
        return PendingDeletionError(
            f"waiting for the deletion of {object_name}: it belongs to an earlier TrainJob of the "
            "same name, which no longer exists, so the garbage collector of the cluster deletes "
            "it; the TrainJob then continues automatically",
            created,
        )
    return ForeignObjectError(_taken(object_name, controller))


def _is_of_namesake(controller: Mapping[str, Any] | None, job: TrainJob) -> bool:
    """Whether the owner is an earlier TrainJob of the same name, which was deleted."""
    if controller is None or not TRAIN_JOBS.is_referred_to_by(controller):
        return False
    found: str | None = controller.get("name")
    return found == job.metadata.name


def _time(timestamp: str | None) -> datetime | None:
    return datetime.fromisoformat(timestamp) if timestamp else None


def _taken(object_name: str, controller: Mapping[str, Any] | None) -> str:
    whose = (
        f"belongs to {controller['kind']} {controller['name']}"
        if controller
        else ("does not belong to this TrainJob")
    )
    return (
        f"{object_name} already exists and {whose}: it is not modified. "
        "Delete or rename it, or give the TrainJob another name"
    )
