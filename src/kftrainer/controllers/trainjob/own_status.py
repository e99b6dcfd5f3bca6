"""Watch events of TrainJobs that result from the manager's own status writes.

Such an event must not enqueue the TrainJob: it would start the next attempt at once, regardless of
the back-off. It may arrive before the response to the write or long after it.
"""

from collections import deque
from typing import Any

from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.apply import digest
from kftrainer.controllers.trainjob.status import Status, present_status
from kftrainer.controllers.trainjob.unreadable import readable_part
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.cache.store import is_older
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject
from kftrainer.machinery.controller.reconcile import Request

MOST_UNCONFIRMED = 8  # writes of one TrainJob that got no response
VOLATILE_METADATA = ("resourceVersion", "managedFields")


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
        if _lasting(before) != _lasting(after):  # every change of the spec changes the generation
            return True
        # Our write replaced whatever other clients had written to our part of the status before.
        if writes.confirmed_at and not is_older(writes.confirmed_at, after["resourceVersion"]):
            return False
        return _fingerprint_of(change.new) not in (writes.last, *writes.unconfirmed)


def _lasting(metadata: Manifest) -> Manifest:
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
    return digest({"conditions": conditions, "jobs": jobs, "jobSet": status.job_set})
