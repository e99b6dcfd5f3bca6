"""Which candidate may hold a Lease: pure functions over observed leases."""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured

LEASES: Resource[Manifest] = Resource(
    "coordination.k8s.io", "v1", "Lease", "leases", namespaced=True, decode=unstructured
)
RELEASED_FOR = 1  # seconds; the minimum that the API server accepts


@dataclass(frozen=True, slots=True)
class Record:
    """The spec of a Lease; times stay strings because they come from other clocks."""

    holder: str
    duration: float
    acquired: str
    renewed: str
    transitions: int


@dataclass(frozen=True, slots=True)
class Observation:
    """A Lease as last read, and when its record last changed by the local clock."""

    manifest: Manifest
    record: Record
    changed_at: float


@dataclass(frozen=True, slots=True)
class Hold:
    """The candidate may acquire or renew the lease."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Another candidate holds the lease until this time, unless it is released before."""

    until: float


def decide(seen: Observation, me: str, now: float) -> Hold | Wait:
    """Return whether this candidate may write itself into the observed lease.

    Only the local clock counts, because `renewTime` comes from another machine's clock. A lease
    that is read for the first time is therefore valid for its whole duration from now.
    """
    expires = seen.changed_at + seen.record.duration
    if seen.record.holder in ("", me) or now >= expires:
        return Hold()
    return Wait(until=expires)


def observe(before: Observation | None, manifest: Manifest, now: float) -> Observation:
    """Return the observation after a read; the time is kept if the record is unchanged."""
    record = record_of(manifest)
    if before is not None and before.record == record:
        return replace(before, manifest=manifest)
    return Observation(manifest, record, now)


def record_of(manifest: Manifest) -> Record:
    """Return the record of a lease; any field may be missing."""
    spec: Manifest = manifest.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 0),
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
    )


def new_lease(key: ObjectKey, me: str, duration: float, now: datetime) -> Manifest:
    """Return a new lease with this candidate as its first holder."""
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"namespace": key.namespace, "name": key.name},
        "spec": {
            "holderIdentity": me,
            "leaseDurationSeconds": _whole(duration),
            "acquireTime": micro_time(now),
            "renewTime": micro_time(now),
            "leaseTransitions": 0,
        },
    }


def claimed(seen: Observation, me: str, duration: float, now: datetime) -> Manifest:
    """Return the lease with this candidate as holder, renewed now.

    Its resourceVersion makes the update fail if the lease was changed meanwhile.
    """
    mine = seen.record.holder == me
    return _with_spec(
        seen.manifest,
        holderIdentity=me,
        leaseDurationSeconds=_whole(duration),
        acquireTime=seen.record.acquired if mine and seen.record.acquired else micro_time(now),
        renewTime=micro_time(now),
        leaseTransitions=seen.record.transitions + (0 if mine else 1),
    )


def released(seen: Observation, now: datetime) -> Manifest:
    """Return the lease without a holder, so that any candidate can acquire it at once."""
    return _with_spec(
        seen.manifest,
        holderIdentity="",
        leaseDurationSeconds=RELEASED_FOR,
        acquireTime=micro_time(now),
        renewTime=micro_time(now),
    )


def _with_spec(manifest: Manifest, **fields: object) -> Manifest:
    return {**manifest, "spec": {**(manifest.get("spec") or {}), **fields}}


def _whole(duration: float) -> int:
    """Return whole seconds, rounded up so that others wait longer than the holder holds."""
    return max(1, math.ceil(duration))


def micro_time(moment: datetime) -> str:
    """Format a time as MicroTime; the API server requires six decimal places."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
