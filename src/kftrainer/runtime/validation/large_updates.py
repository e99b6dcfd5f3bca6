"""Validates updates of objects that exceed a limit by comparing manifests without decoding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kftrainer.api import limits
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, forbidden
from kftrainer.kube.objects.nested import mapping_or_empty
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.info import is_finished, own_job_set
from kftrainer.runtime.patches.pod_patches import MUTABLE_POD_FIELDS, PATCHES_PATH
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.updates import (
    FINISHED,
    JOBSET_EXISTS,
    OF_OVERRIDES,
    OF_PATCHES,
    RECREATE,
    ChangeRules,
    immutable_patch_error,
    patch_change_errors,
)

Spec = Mapping[str, Any]

OVERRIDES = "podTemplateOverrides"
LEGACY_OVERRIDES = "podSpecOverrides"
PATCHES = "runtimePatches"
# Lists to which a queue adds items, and from which it removes them again.
SHORTENED = frozenset({OVERRIDES, LEGACY_OVERRIDES, PATCHES})
SUSPENSION = frozenset({"suspend"})
MOST_OVERRIDES = 4 * limits.OVERRIDES  # overrides that are compared one by one
MUTABLE_FIELDS = frozenset({*MUTABLE_POD_FIELDS, "targetJobs"})
# Parts that are immutable once the JobSet exists.
PARTS = (("trainer",), ("initializer", "dataset"), ("initializer", "model"))


def keeps_content(old: Spec, new: Spec) -> bool:
    """Whether an update only suspends or resumes, or removes overrides or patches of a queue.

    The time is proportional to the size of the old spec.
    """
    changed = {field for field in old.keys() | new.keys() if old.get(field) != new.get(field)}
    if changed <= SUSPENSION:
        return True
    return (
        changed <= SUSPENSION | SHORTENED
        and all(_is_shortened(old.get(field), new.get(field)) for field in changed - SUSPENSION)
        and _immutable_parts_of_overrides(old) == _immutable_parts_of_overrides(new)
        and _immutable_parts_of_patches(old) == _immutable_parts_of_patches(new)
    )


def large_change_errors(
    old: Spec, new: Spec, job: TrainJob, existing: ClusterReader
) -> Iterator[FieldError]:
    """Return the errors of `change_errors` for an update of a TrainJob that exceeded a limit.

    `job` is the new TrainJob. Equivalent content in a different notation counts as a change.
    """
    job_set = own_job_set(job, existing)
    is_suspended = old.get("suspend") is True or job.spec.suspend
    for rules, path, content, _ in _patch_lists(old, new):
        if content(old) != content(new):
            yield from patch_change_errors(rules, path, job_set or {}, is_suspended=is_suspended)
    has_ended = is_finished(job)
    if job_set is not None or has_ended:
        yield from _immutable_part_errors(old, new, has_ended=has_ended)


def _immutable_part_errors(old: Spec, new: Spec, *, has_ended: bool) -> Iterator[FieldError]:
    why = FINISHED if has_ended else JOBSET_EXISTS
    rule = Rule.CHANGE_AFTER_END if has_ended else Rule.CHANGE_AFTER_JOBSET
    for path in PARTS:
        before, after = _part(old, path), _part(new, path)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                where = ".".join(("spec", *path, name))
                yield forbidden(where, f"{why}: {RECREATE}", rule=rule)
    for rules, where, _, immutable_part in _patch_lists(old, new):
        if immutable_part(old) != immutable_part(new):
            yield immutable_patch_error(rules, where, has_ended=has_ended)


Content = Callable[[Spec], object]


def _patch_lists(old: Spec, new: Spec) -> Iterator[tuple[ChangeRules, str, Content, Content]]:
    """Yield the overrides and the runtime patches: rules, path, content, its immutable part."""
    field = OVERRIDES if old.get(OVERRIDES) or new.get(OVERRIDES) else LEGACY_OVERRIDES
    yield OF_OVERRIDES, f"spec.{field}", _all_overrides, _immutable_parts_of_overrides
    yield OF_PATCHES, PATCHES_PATH, _untimed_patches, _immutable_parts_of_patches


def _all_overrides(spec: Spec) -> Sequence[Any]:
    return [spec.get(field) or [] for field in (OVERRIDES, LEGACY_OVERRIDES)]


def _untimed_patches(spec: Spec) -> Sequence[Spec]:
    return [{k: v for k, v in each.items() if k != "time"} for each in _items(spec, PATCHES)]


def _is_shortened(old: object, new: object) -> bool:
    """Whether the new list has only items of the old one or emptied ones, in the same order."""
    if not isinstance(old, list) or len(old) > MOST_OVERRIDES:
        return False
    remaining = iter(old)
    items = new if isinstance(new, list) else ()
    return all(
        any(each == other or _is_emptied(other, each) for other in remaining) for each in items
    )


def _is_emptied(old: object, new: object) -> bool:
    """Whether the new item is the old runtime patch without its changes to jobs."""
    before, after = mapping_or_empty(old), mapping_or_empty(new)
    if not after.get("manager") or before.get("manager") != after.get("manager"):
        return False
    (metadata, jobs), (old_metadata, _) = _parts_of_patch(after), _parts_of_patch(before)
    return not jobs and (not metadata or metadata == old_metadata)


def _parts_of_patch(patch: Spec) -> tuple[Spec, Sequence[Spec]]:
    """Return the metadata of the JobSet and the changes to replicated jobs."""
    template = mapping_or_empty(mapping_or_empty(patch.get("trainingRuntimeSpec")).get("template"))
    jobs = _items(mapping_or_empty(template.get("spec")), "replicatedJobs")
    return mapping_or_empty(template.get("metadata")), jobs


def _immutable_parts_of_patches(spec: Spec) -> list[Any] | None:
    """Return what each runtime patch sets in the immutable part of a JobSet.

    Returns None if there are too many patches.
    """
    patches = _items(spec, PATCHES)
    if len(patches) > MOST_OVERRIDES:
        return None
    found = []
    for patch in patches:
        parts = []
        for job in _parts_of_patch(patch)[1]:
            template = mapping_or_empty(job.get("template"))
            pods = mapping_or_empty(mapping_or_empty(template.get("spec")).get("template"))
            pod = mapping_or_empty(pods.get("spec"))
            immutable = {name: each for name, each in pod.items() if name not in MUTABLE_FIELDS}
            if immutable or template.get("metadata"):
                parts.append((job.get("name"), template.get("metadata"), immutable))
        if parts:
            found.append(parts)
    return found


def _immutable_parts_of_overrides(spec: Spec) -> Sequence[tuple[Any, Spec]] | None:
    """Return the part of each override that is immutable in a JobSet, with its target jobs.

    Returns None if there are too many overrides.
    """
    modern = [(each, mapping_or_empty(each.get("spec"))) for each in _items(spec, OVERRIDES)]
    legacy = [(each, each) for each in _items(spec, LEGACY_OVERRIDES)]
    if len(modern) + len(legacy) > MOST_OVERRIDES:
        return None
    found = []
    for override, pod in (*modern, *legacy):
        if immutable := {name: each for name, each in pod.items() if name not in MUTABLE_FIELDS}:
            found.append((override.get("targetJobs"), immutable))
    return found


def _items(spec: Spec, field: str) -> Sequence[Spec]:
    found = spec.get(field)
    return [mapping_or_empty(each) for each in found] if isinstance(found, list) else ()


def _part(spec: Spec, path: tuple[str, ...]) -> Spec:
    for name in path:
        spec = mapping_or_empty(spec.get(name))
    return spec
