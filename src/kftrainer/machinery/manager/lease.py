"""Who may hold a Lease, decided without asking anyone: pure functions over what was seen."""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, as_it_is

LEASES: Resource[Manifest] = Resource(
    "coordination.k8s.io", "v1", "Lease", "leases", namespaced=True, decode=as_it_is
)
RELEASED_FOR = 1  # seconds; the API server takes nothing less


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says; times stay the strings that they are, for they come from other clocks."""

    holder: str
    duration: float
    acquired: str
    renewed: str
    transitions: int


@dataclass(frozen=True, slots=True)
class Observation:
    """A Lease as we saw it, and since when, by our own clock, it has said the same."""

    manifest: Manifest
    record: Record
    changed_at: float


@dataclass(frozen=True, slots=True)
class Hold:
    """The lease is ours to take, or to keep."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else has it, at least until then unless they give it back."""

    until: float


def decide(seen: Observation, me: str, now: float) -> Hold | Wait:
    """Whether we may write ourselves into the lease that we saw.

    Only our own clock is asked: `renewTime` was written by one that we do not know. So a lease
    that we see for the first time is good for its whole duration from now.
    """
    expires = seen.changed_at + seen.record.duration
    if seen.record.holder in ("", me) or now >= expires:
        return Hold()
    return Wait(until=expires)


def observe(before: Observation | None, manifest: Manifest, now: float) -> Observation:
    """What we know of the lease, now that it has been read."""
    record = record_of(manifest)
    if before is not None and before.record == record:
        return replace(before, manifest=manifest)
    return Observation(manifest, record, now)


def record_of(manifest: Manifest) -> Record:
    """What the lease says; anybody may have written it, so any field may be missing."""
    spec: Manifest = manifest.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 0),
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
    )


def new_lease(key: ObjectKey, me: str, duration: float, now: datetime) -> Manifest:
    """A lease that nobody has held before us."""
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
    """The lease with us as its holder, renewed now; its resourceVersion fences the write."""
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
    """The lease without a holder, for anybody to take at once."""
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
    """Whole seconds, rounded so that the others wait rather longer than we hold."""
    return max(1, math.ceil(duration))


def micro_time(moment: datetime) -> str:
    """Kubernetes' MicroTime: the API server wants six digits, also where all are zero."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
