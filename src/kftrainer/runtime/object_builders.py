"""Helpers that build parts of Kubernetes objects and insert them into lists."""

from collections.abc import Callable, Hashable, Mapping, MutableSequence, Sequence
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.resource import Resource

Piece = Mapping[str, Any]  # an env var, a port, a volume, a mount
COMPLETION_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def thaw(value: Any) -> Any:
    """Return a deep, mutable copy of a JSON value; faster than `copy.deepcopy`."""
    return orjson.loads(orjson.dumps(value))


def env_var(name: str, value: str | int) -> Piece:
    """Return an environment variable with a value."""
    return {"name": name, "value": str(value)}


def env_from_field(name: str, field_path: str) -> Piece:
    """Return an environment variable that the kubelet sets from a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field_path}}}


def upsert(pieces: MutableSequence[Any], piece: Piece, key: Callable[[Piece], Hashable]) -> None:
    """Replace the first piece with the same key, or append the piece."""
    wanted = key(piece)
    for index, each in enumerate(pieces):
        if key(each) == wanted:
            pieces[index] = piece
            return
    pieces.append(piece)


def indices_by_name(pieces: Sequence[Any]) -> dict[Hashable, int]:
    """Return the index of the first piece of each name, in linear time."""
    indices = {piece.get("name"): index for index, piece in enumerate(pieces)}
    if len(indices) < len(pieces):  # some names occur twice, and their last index was kept
        indices = {pieces[index].get("name"): index for index in reversed(range(len(pieces)))}
    return indices


def by_name(piece: Piece) -> Hashable:
    """Return the key of a variable or volume: its name."""
    return piece.get("name")


def by_mount_path(piece: Piece) -> Hashable:
    """Return the key of a volume mount: its path."""
    return piece.get("mountPath")


def by_port(piece: Piece) -> Hashable:
    """Return the key of a port: its number and protocol."""
    return piece.get("containerPort"), piece.get("protocol") or "TCP"


def owner_reference(job: TrainJob) -> Piece:
    """Return the owner reference that makes the TrainJob the controller of an object."""
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
    """Return apiVersion, kind and metadata of an object that the TrainJob controls.

    The name is that of the TrainJob unless given. Empty metadata fields are left out.
    """
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
    """Return the first piece with this name, or None."""
    return next((piece for piece in pieces if piece.get("name") == name), None)
