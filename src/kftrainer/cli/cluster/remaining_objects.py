"""Objects that `kftrainer purge` finds, the next step, and how both are reported. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from kftrainer.api import names
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.controllers.bundled_runtime_steps import is_bundled
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import ObjectKey, Resource

KINDS = (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
MAX_NAMED = 5
IN_USE = names.FINALIZER_RUNTIME_IN_USE


@dataclass(frozen=True, slots=True)
class Found:
    """An existing object."""

    kind: Resource[Any]
    metadata: ObjectMeta

    @property
    def key(self) -> ObjectKey:
        """The object's key."""
        return ObjectKey(self.metadata.namespace or "", self.metadata.name)

    @property
    def identity(self) -> "Identity":
        """The object's kind and key; a later object may have the same."""
        return self.kind.kind, self.key

    @property
    def is_being_deleted(self) -> bool:
        """Whether the object is being deleted."""
        return self.metadata.deletion_timestamp is not None

    def __str__(self) -> str:
        kept = ", ".join(self.metadata.finalizers or ()) if self.is_being_deleted else ""
        return f"{self.key} (kept by {kept})" if kept else str(self.key)


Identity = tuple[str, ObjectKey]
Deleted = Mapping[Identity, str | None]  # UIDs of the objects that were deleted


def next_step(found: Iterable[Found], deleted: Deleted) -> tuple[list[Found], list[Found]]:
    """Return what to delete now, and what is left.

    Runtimes are deleted after the last TrainJob is gone. Runtimes that the manager has re-created
    are not counted as left: they have no finalizers and disappear with the
    CustomResourceDefinition.
    """
    left = [each for each in found if not is_recreated(each, deleted)]
    jobs = [each for each in left if each.kind is TRAIN_JOBS]
    return [each for each in jobs or left if not each.is_being_deleted], left


def is_recreated(found: Found, deleted: Deleted) -> bool:
    """Return whether a manager has re-created the object after its deletion."""
    metadata = found.metadata
    is_free = not metadata.finalizers and not found.is_being_deleted
    is_another = deleted.get(found.identity, metadata.uid) != metadata.uid
    return is_another and is_free and is_bundled(metadata)


def listed(found: Iterable[Found]) -> list[str]:
    """Return one summary line per kind."""
    by_kind: Mapping[str, list[Found]] = {kind.kind: [] for kind in KINDS}
    for each in found:
        by_kind[each.kind.kind].append(each)
    return [_line(kind, those) for kind, those in by_kind.items() if those]


def _line(kind: str, found: Sequence[Found]) -> str:
    named = ", ".join(map(str, found[:MAX_NAMED]))
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f"{len(found)} {kind}{'' if len(found) == 1 else 's'}: {named}{more}"


def advice(left: Sequence[Found], *, of_all: bool) -> str | None:
    """Return advice for runtimes that only our finalizer keeps, although no TrainJob is left."""
    kept = [
        each
        for each in left
        if each.is_being_deleted and IN_USE in (each.metadata.finalizers or ())
    ]
    if not kept or any(each.kind is TRAIN_JOBS for each in left):
        return None
    runtime = kept[0]
    condition = ""
    if not of_all and runtime.kind is CLUSTER_TRAINING_RUNTIMES:
        condition = "unless TrainJobs of other namespaces use the runtime, "
    return (
        f"{condition}nothing removes the finalizer {IN_USE}: no manager is running, or it watches "
        f"other namespaces only; to remove it manually: {_command(runtime)}"
    )


def _command(runtime: Found) -> str:
    others = [each for each in runtime.metadata.finalizers or () if each != IN_USE]
    change = orjson.dumps({"metadata": {"finalizers": others}}).decode()
    where = f" --namespace {runtime.key.namespace}" if runtime.key.namespace else ""
    kind = f"{runtime.kind.plural}.{runtime.kind.group}"
    return f"kubectl patch {kind} {runtime.key.name}{where} --type=merge --patch '{change}'"
