"""Writes the status of TrainJobs, and recognizes the watch events of these writes.

Such an event must not enqueue the TrainJob: it would start the next attempt at once, regardless of
the back-off. It may arrive before the response to the write or long after it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from kftrainer.api import names
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.controllers.trainjob.apply import digest
from kftrainer.controllers.trainjob.status import (
    Status,
    present_status,
    removal_of_empty_conditions,
)
from kftrainer.controllers.trainjob.unreadable import readable_part
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.cache.store import is_older
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject
from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.repair_backoff import RepairBackoff
from kftrainer.runtime.info import key_of_job

log = structlog.get_logger(__name__)

FIRST_REPAIR, LONGEST_REPAIR = 0.5, 60.0  # seconds between repairs of a status
RETRY_UNDECLARED = 300.0  # seconds until writing the newer fields is tried again
MOST_UNCONFIRMED = 8  # writes of one TrainJob that got no response
VOLATILE_METADATA = ("resourceVersion", "managedFields")


@dataclass(frozen=True, slots=True)
class Undeclared:
    """A field that CRDs of older releases do not declare."""

    field: str  # of Status
    path: str  # in the API server's message
    event: str
    effect: str  # without the field


UNDECLARED = (
    Undeclared(
        "job_set",
        ".status.jobSet",
        "jobset_uid_not_recorded",
        "a JobSet that is replaced while no manager runs is not recognized",
    ),
    Undeclared(
        "runtime_revision",
        ".status.runtimeRevision",
        "runtime_revision_not_recorded",
        "TrainJobs may follow changes of their runtimes",
    ),
    Undeclared("state", ".status.state", "state_not_recorded", "kubectl shows no STATE"),
    Undeclared("nodes", ".status.nodes", "nodes_not_recorded", "kubectl shows no READY and NODES"),
)


class _Writes:
    """Status writes of one TrainJob."""

    __slots__ = ("confirmed_at", "last", "unconfirmed")

    def __init__(self) -> None:
        self.last = ""  # digests of statuses
        self.unconfirmed: deque[str] = deque(maxlen=MOST_UNCONFIRMED)
        self.confirmed_at = ""  # a resourceVersion


class OwnStatusWrites:
    """Status writes of this manager.

    `is_from_others` is the predicate for the TrainJob watch.
    """

    def __init__(self) -> None:
        self._writes: dict[Request, _Writes] = {}

    def started(self, request: Request, status: Status) -> None:
        """Register a status before it is sent."""
        writes = self._writes.setdefault(request, _Writes())
        writes.last = _fingerprint(status)
        writes.unconfirmed.append(writes.last)

    def confirmed(self, request: Request, resource_version: str) -> None:
        """Register the version that the API server returned for the last status."""
        if (writes := self._writes.get(request)) is not None:
            writes.confirmed_at = resource_version
            writes.unconfirmed.clear()

    def was_written(self, request: Request, status: Status) -> bool:
        """Whether this is the last status written and was stored, ignoring transition times."""
        writes = self._writes.get(request)
        if writes is None or writes.unconfirmed:
            return False
        return writes.last == _fingerprint(status)

    def is_from_others(self, change: ObjectEvent[Any]) -> bool:
        """Whether the change is more than a status write of this manager."""
        if change.new is None:
            self._writes.pop(change.key, None)
            return True
        writes = self._writes.get(change.key)
        if writes is None or change.old is None or change.initial:
            return True
        before, after = change.old.metadata, change.new.metadata
        if _stable_metadata(before) != _stable_metadata(
            after
        ):  # every change of the spec changes the generation
            return True
        # Our write replaced whatever other clients had written to our part of the status before.
        if writes.confirmed_at and not is_older(writes.confirmed_at, after["resourceVersion"]):
            return False
        return _fingerprint_of(change.new) not in (writes.last, *writes.unconfirmed)


class StatusWriter:
    """Write the status of TrainJobs where it differs from the wanted one."""

    def __init__(
        self, client: Client, view: OverlayCache, own_writes: OwnStatusWrites, *, clock: Clock
    ) -> None:
        self._client = client
        self._view = view
        self._own_writes = own_writes
        self._clock = clock
        self._undeclared_until: dict[str, float] = {}  # fields that the CRD does not declare
        self._repairs = RepairBackoff[Request](clock, first=FIRST_REPAIR, longest=LONGEST_REPAIR)

    def forget(self, request: Request) -> None:
        """Drop a TrainJob that was deleted."""
        self._repairs.forget(request)

    async def write(self, job: TrainJob, wanted: Status) -> float | None:
        """Write the status; return the seconds until it may be repaired, None if nothing is left.

        Raises KubeError. Another client may undo each write, so repairs have growing pauses.
        """
        present, request = present_status(job), key_of_job(job)
        wanted = self._with_declared_fields(wanted, present)
        if not wanted.conditions and (patch := removal_of_empty_conditions(job)) is not None:
            await self._remove_empty_conditions(request, patch)
        if wanted == present or not (wanted.has_content or present.has_content or present.job_set):
            return None
        if pause := self._repair_pause(request, wanted):
            return pause
        try:
            await self._apply(job, wanted)
        except KubeError as error:
            if not self._finds_undeclared(wanted, str(error)):
                raise
            await self._apply(job, self._with_declared_fields(wanted, Status()))
        return None

    async def _apply(self, job: TrainJob, wanted: Status) -> None:
        request = key_of_job(job)
        metadata = {key: getattr(job.metadata, key) for key in ("name", "namespace", "uid")}
        manifest: dict[str, Any] = {
            "apiVersion": names.API_VERSION,
            "kind": names.TRAIN_JOB,
            "metadata": metadata,
        }
        if status := wanted.dump():  # without it, the apply removes the whole status
            manifest["status"] = status
        self._own_writes.started(request, wanted)
        written = await self._client.apply(
            TRAIN_JOBS, manifest, field_manager=names.FIELD_MANAGER, subresource="status"
        )
        self._own_writes.confirmed(request, written["metadata"]["resourceVersion"])
        self._view.record(TRAIN_JOBS, written)

    def _finds_undeclared(self, wanted: Status, error: str) -> bool:
        """Record which fields of the status an older CRD does not declare, from the error."""
        until = self._clock.monotonic() + RETRY_UNDECLARED
        found = [
            each
            for each in UNDECLARED
            if getattr(wanted, each.field) and f"{each.path}: field not declared" in error
        ]
        for each in found:
            self._undeclared_until[each.field] = until
            log.warning(
                each.event,
                why="the CustomResourceDefinition of TrainJobs does not declare "
                f"{each.path.removeprefix('.')}: upgrade it. Until then, {each.effect}",
            )
        return bool(found)

    def _with_declared_fields(self, wanted: Status, present: Status) -> Status:
        """Return the status to write; fields that the CRD does not declare are unchanged."""
        now = self._clock.monotonic()
        for field, until in self._undeclared_until.items():
            if now < until:
                wanted = replace(wanted, **{field: getattr(present, field)})
        return wanted

    async def _remove_empty_conditions(self, request: Request, patch: Mapping[str, Any]) -> None:
        try:
            written = await self._client.merge_patch(
                TRAIN_JOBS,
                request,
                patch,
                subresource="status",
                field_manager=names.FIELD_MANAGER,
            )
        except KubeError as error:  # cosmetic: the next reconcile tries again
            log.info("empty_conditions_not_removed", error=str(error))
        else:
            self._view.record(TRAIN_JOBS, written)

    def _repair_pause(self, request: Request, wanted: Status) -> float:
        """Return the seconds to wait if the same status was written before and then changed."""
        if not self._own_writes.was_written(request, wanted):
            return 0.0
        if pause := self._repairs.pause(request):
            return pause
        if self._repairs.record_write(request):
            log.warning(
                "status_repeatedly_changed",
                why="another client keeps changing conditions of this controller; they are "
                "restored at growing intervals",
            )
        return 0.0


def _stable_metadata(metadata: Manifest) -> Manifest:
    return {field: value for field, value in metadata.items() if field not in VOLATILE_METADATA}


def _fingerprint_of(seen: ObservedObject[TrainJob]) -> str:
    job, _ = readable_part(seen.manifest)
    return _fingerprint(present_status(job))


def _fingerprint(status: Status) -> str:
    """Return a short digest of the status without transition times."""
    conditions = sorted(
        (each.type, each.status, each.reason, each.message) for each in status.conditions
    )
    jobs = sorted((each.dump() for each in status.jobs), key=lambda each: str(each["name"]))
    nodes = status.nodes.dump() if status.nodes else None
    others = {
        "jobSet": status.job_set,
        "runtimeRevision": status.runtime_revision,
        "state": status.state,
        "nodes": nodes,
    }
    return digest({"conditions": conditions, "jobs": jobs, **others})
