"""Small pieces of Kubernetes objects, and how they get into lists."""

from collections.abc import Callable, Hashable, Mapping, MutableSequence, Sequence
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.resource import Resource

Piece = Mapping[str, Any]  # an env var, a port, a volume, a mount
COMPLETION_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def thaw(value: Any) -> Any:
    """A copy that may be changed freely, of what came from JSON: this is the fastest way."""
    return orjson.loads(orjson.dumps(value))


def env_var(name: str, value: str | int) -> Piece:
    """An environment variable."""
    return {"name": name, "value": str(value)}


def env_from_field(name: str, field_path: str) -> Piece:
    """An environment variable that the kubelet fills from a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field_path}}}


def upsert(pieces: MutableSequence[Any], piece: Piece, key: Callable[[Piece], Hashable]) -> None:
    """Put the piece in the place of the first one with the same key, or at the end."""
    wanted = key(piece)
    for index, there in enumerate(pieces):
        if key(there) == wanted:
            pieces[index] = piece
            return
    pieces.append(piece)


def places_by_name(pieces: Sequence[Any]) -> dict[Hashable, int]:
    """The index of the first piece of each name: for lists that may be long."""
    places = {piece.get("name"): index for index, piece in enumerate(pieces)}
    if len(places) < len(pieces):  # then some of them are those of the last
        places = {pieces[index].get("name"): index for index in reversed(range(len(pieces)))}
    return places


def by_name(piece: Piece) -> Hashable:
    """What tells variables and volumes apart."""
    return piece.get("name")


def by_mount_path(piece: Piece) -> Hashable:
    """What tells mounts apart."""
    return piece.get("mountPath")


def by_port(piece: Piece) -> Hashable:
    """What tells ports apart: their number and protocol, whatever they are called."""
    return piece.get("containerPort"), piece.get("protocol") or "TCP"


def owner_reference(job: TrainJob) -> Piece:
    """Who the objects that are made for a TrainJob belong to."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.TRAIN_JOB,
        "name": job.metadata.name,
        "uid": job.metadata.uid or "",
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owned(
    resource: Resource[Any], job: TrainJob, name: str | None = None, **metadata: Any
) -> dict[str, Any]:
    """The head of an object that belongs to the TrainJob, and has its name unless told."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name or job.metadata.name,
            "namespace": job.metadata.namespace or "",
            **{key: value for key, value in metadata.items() if value},
            "ownerReferences": [owner_reference(job)],
        },
    }


def named(pieces: Sequence[Any], name: str) -> Any | None:
    """The first piece of this name."""
    return next((piece for piece in pieces if piece.get("name") == name), None)
