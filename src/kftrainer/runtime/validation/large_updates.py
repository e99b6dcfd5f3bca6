"""Validates updates of objects that exceed a limit by comparing manifests without decoding."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kftrainer.api import limits
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, forbidden
from kftrainer.kube.objects.nested import mapping_or_empty
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.info import is_finished, own_job_set
from kftrainer.runtime.overrides import MUTABLE_POD_FIELDS
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.updates import (
    FINISHED,
    JOBSET_EXISTS,
    MUTABLE,
    RECREATE,
    override_change_errors,
)

Spec = Mapping[str, Any]

OVERRIDES = "podTemplateOverrides"
LEGACY_OVERRIDES = "podSpecOverrides"
# Lists to which a queue adds items, and from which it removes them again.
SHORTENED = frozenset({OVERRIDES, LEGACY_OVERRIDES, "runtimePatches"})
SUSPENSION = frozenset({"suspend"})
MOST_OVERRIDES = 4 * limits.OVERRIDES  # overrides that are compared one by one
MUTABLE_FIELDS = frozenset({*MUTABLE_POD_FIELDS, "targetJobs"})
# Parts that are immutable once the JobSet exists.
PARTS = (("trainer",), ("initializer", "dataset"), ("initializer", "model"))


def keeps_content(old: Spec, new: Spec) -> bool:
    """Whether an update only suspends or resumes, or removes overrides of a queue.

    The time is proportional to the size of the old spec.
    """
    changed = {field for field in old.keys() | new.keys() if old.get(field) != new.get(field)}
    if changed <= SUSPENSION:
        return True
    return (
        changed <= SUSPENSION | SHORTENED
        and all(_is_shortened(old.get(field), new.get(field)) for field in changed - SUSPENSION)
        and _immutable_parts_of_overrides(old) == _immutable_parts_of_overrides(new)
    )


def large_change_errors(
    old: Spec, new: Spec, job: TrainJob, existing: ClusterReader
) -> Iterator[FieldError]:
    """Return the errors of `change_errors` for an update of a TrainJob that exceeded a limit.

    `job` is the new TrainJob. Equivalent content in a different notation counts as a change.
    """
    job_set = own_job_set(job, existing)
    field = OVERRIDES if old.get(OVERRIDES) or new.get(OVERRIDES) else LEGACY_OVERRIDES
    if any(
        (old.get(each) or []) != (new.get(each) or []) for each in (OVERRIDES, LEGACY_OVERRIDES)
    ):
        is_suspended = old.get("suspend") is True or job.spec.suspend
        yield from override_change_errors(f"spec.{field}", job_set or {}, is_suspended=is_suspended)
    if is_finished(job):
        why, rule, rule_of_overrides = FINISHED, Rule.CHANGE_AFTER_END, Rule.OVERRIDE_AFTER_END
    elif job_set is not None:
        why, rule, rule_of_overrides = (
            JOBSET_EXISTS,
            Rule.CHANGE_AFTER_JOBSET,
            Rule.OVERRIDE_AFTER_JOBSET,
        )
    else:
        return
    for path in PARTS:
        before, after = _part(old, path), _part(new, path)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                where = ".".join(("spec", *path, name))
                yield forbidden(where, f"{why}: {RECREATE}", rule=rule)
    if _immutable_parts_of_overrides(old) != _immutable_parts_of_overrides(new):
        detail = f"{why}, {MUTABLE}: {RECREATE}"
        yield forbidden(f"spec.{field}", detail, rule=rule_of_overrides)


def _is_shortened(old: object, new: object) -> bool:
    """Whether the new list has only items of the old one, in the same order."""
    if not isinstance(old, list) or len(old) > MOST_OVERRIDES:
        return False
    remaining = iter(old)
    items = new if isinstance(new, list) else ()
    return all(any(each == other for other in remaining) for each in items)


def _immutable_parts_of_overrides(spec: Spec) -> Sequence[tuple[Any, Spec]] | None:
    """Return the part of each override that is immutable in a JobSet, with its target jobs.

    Returns None if there are too many overrides.
    """
    modern = [(each, mapping_or_empty(each.get("spec"))) for each in _overrides(spec, OVERRIDES)]
    legacy = [(each, each) for each in _overrides(spec, LEGACY_OVERRIDES)]
    if len(modern) + len(legacy) > MOST_OVERRIDES:
        return None
    found = []
    for override, pod in (*modern, *legacy):
        if immutable := {name: each for name, each in pod.items() if name not in MUTABLE_FIELDS}:
            found.append((override.get("targetJobs"), immutable))
    return found


def _overrides(spec: Spec, field: str) -> Sequence[Spec]:
    found = spec.get(field)
    return [mapping_or_empty(each) for each in found] if isinstance(found, list) else ()


def _part(spec: Spec, path: tuple[str, ...]) -> Spec:
    for name in path:
        spec = mapping_or_empty(spec.get(name))
    return spec
