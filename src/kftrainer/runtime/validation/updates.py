"""Validates updates of TrainJobs: an existing JobSet and its pods are mostly immutable."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kftrainer.api.overrides import PodTemplateOverride
from kftrainer.api.trainjob import TrainJob, TrainJobSpec
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, forbidden, without
from kftrainer.kube.objects.model import KubeModel
from kftrainer.machinery.memo import Memo
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.info import is_finished, own_job_set, runs
from kftrainer.runtime.object_builders import thaw
from kftrainer.runtime.overrides import METADATA, MUTABLE_POD_FIELDS, overrides_field
from kftrainer.runtime.resources.quantities import rewrite_quantities
from kftrainer.runtime.validation.rules import Rule

CHANGED_WHILE_RUNNING = "PodTemplateOverrides can only be modified when the TrainJob is suspended"
CHANGED_WHILE_ACTIVE = (
    "PodTemplateOverrides cannot be modified when the JobSet's ReplicatedJob {} is still active"
)
RECREATE = "to train with the change, delete the TrainJob and create it again"
JOBSET_EXISTS = "cannot be changed after the JobSet was created"
FINISHED = "cannot be changed after the TrainJob has finished"
MUTABLE = "except labels, annotations, nodeSelector, tolerations and schedulingGates of the pods"
# Maps in which an empty string is a value; elsewhere Go clients omit it.
TEXTS = frozenset({"labels", "annotations", "nodeSelector", "matchLabels"})
# Fields for which {} has a meaning: everything, or a volume of this type.
MEANINGFUL_IF_EMPTY = frozenset({"labelSelector", "namespaceSelector", "emptyDir"})
# Numbers that Go clients omit if they are 0; others are pointers in Go, for which 0 is a value.
NUMBERS = frozenset({"partition"})
ZERO_DIVISOR = ("divisor", "0")
STORED_ERROR = "the stored object already has this error: {}"


def with_stored_errors_as_warnings(
    result: ValidationResult, before: ValidationResult
) -> ValidationResult:
    """Return the result with errors that existed before the update turned into warnings.

    The runtime may have been edited or deleted since. That must not prevent a user from suspending
    or resuming the TrainJob.
    """
    changed = ValidationResult(without(before.errors, result.errors))
    stored = without(changed.errors, result.errors)
    changed.add_warnings(*(STORED_ERROR.format(error) for error in stored), *result.warnings)
    return changed


def change_errors(old: TrainJob, new: TrainJob, existing: ClusterReader) -> Iterator[FieldError]:
    """Yield errors for changes that the TrainJob's current state does not permit."""
    job_set = own_job_set(old, existing)
    if _override_changes(old, new):
        is_suspended = old.spec.suspend or new.spec.suspend
        yield from override_change_errors(
            _field(old, new), job_set or {}, is_suspended=is_suspended
        )
    if is_finished(old):
        rules = (Rule.CHANGE_AFTER_END, Rule.OVERRIDE_AFTER_END)
        yield from _immutable_part_errors(old, new, FINISHED, *rules)
    elif job_set is not None:
        rules = (Rule.CHANGE_AFTER_JOBSET, Rule.OVERRIDE_AFTER_JOBSET)
        yield from _immutable_part_errors(old, new, JOBSET_EXISTS, *rules)


def change_warnings(old: TrainJob, new: TrainJob, existing: ClusterReader) -> Iterator[str]:
    """Yield a warning for each accepted change that has no effect, or no effect yet."""
    metadata = [field for field in METADATA if _metadata(old, field) != _metadata(new, field)]
    if is_finished(old):
        changed = [f"spec.{field}" for field in metadata]
        if old.spec.suspend != new.spec.suspend:
            changed.append("spec.suspend")
        if _override_changes(old, new):
            changed.append(_field(old, new))
        yield from (f"{field}: no effect: the TrainJob has finished" for field in changed)
    elif metadata and runs(new, existing):
        for field in metadata:
            yield (
                f"spec.{field}: no effect yet: the JobSet is running, and keeps its {field} until "
                "the TrainJob is suspended"
            )


def changes_immutable_part(old: TrainJob, new: TrainJob) -> bool:
    """Whether the update changes a part that is immutable once a JobSet exists."""
    if _override_changes(old, new):
        return True
    rules = (Rule.CHANGE_AFTER_JOBSET, Rule.OVERRIDE_AFTER_JOBSET)
    return any(True for _ in _immutable_part_errors(old, new, JOBSET_EXISTS, *rules))


def override_change_errors(
    field: str, job_set: Mapping[str, Any], *, is_suspended: bool
) -> Iterator[FieldError]:
    """Yield errors for a change of overrides while pods may exist."""
    if not is_suspended:
        yield forbidden(field, CHANGED_WHILE_RUNNING, rule=Rule.OVERRIDE_WHILE_RUNNING)
        return
    for row in (job_set.get("status") or {}).get("replicatedJobsStatus") or ():
        if row.get("active"):
            detail = CHANGED_WHILE_ACTIVE.format(row["name"])
            yield forbidden(field, detail, rule=Rule.OVERRIDE_WHILE_ACTIVE)


def _immutable_part_errors(
    old: TrainJob, new: TrainJob, why: str, rule: Rule, rule_of_overrides: Rule
) -> Iterator[FieldError]:
    for path, before, after in (
        ("spec.trainer", old.spec.trainer, new.spec.trainer),
        ("spec.initializer.dataset", _asset(old, "dataset"), _asset(new, "dataset")),
        ("spec.initializer.model", _asset(old, "model"), _asset(new, "model")),
    ):
        for field in _differing(_part(before), _part(after)):
            yield forbidden(f"{path}.{field}", f"{why}: {RECREATE}", rule=rule)
    if _immutable_parts_of_overrides(old) != _immutable_parts_of_overrides(new):
        detail = f"{why}, {MUTABLE}: {RECREATE}"
        yield forbidden(_field(old, new), detail, rule=rule_of_overrides)


def _metadata(job: TrainJob, field: str) -> Mapping[str, str]:
    """Return the labels or annotations that the TrainJob sets on its JobSet."""
    return getattr(job.spec, field) or {}


def _field(old: TrainJob, new: TrainJob) -> str:
    """Return the path of the overrides, or of the old ones if all were removed."""
    return overrides_field(new if new.spec.overrides() else old)


def _asset(job: TrainJob, field: str) -> KubeModel | None:
    asset: KubeModel | None = getattr(job.spec.initializer, field, None)
    return asset


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    return (key for key in {**old, **new} if old.get(key) != new.get(key))


def _part(part: KubeModel | None) -> dict[str, Any]:
    """Return a trainer or an initializer in canonical form."""
    fields = thaw(part.dump()) if part is not None else {}
    container = {"env": fields.get("env"), "resources": fields.get("resourcesPerNode")}
    _write_quantities({"containers": [container]})
    return _canonical_fields(fields)


def _override_changes(old: TrainJob, new: TrainJob) -> bool:
    """Whether an override differs in its canonical form.

    The canonical form is computed only for overrides whose written forms differ.
    """
    before, after = _canonical_overrides.of(old.spec), _canonical_overrides.of(new.spec)
    if len(before.written) != len(after.written):
        return True
    return any(
        before.written[index] != after.written[index] and before.at(index) != after.at(index)
        for index in range(len(before.written))
    )


def _immutable_parts_of_overrides(job: TrainJob) -> list[Any]:
    """Return the immutable part of each override in canonical form.

    Overrides that only affect scheduling, such as Kueue's, have no immutable part.
    """
    found = _canonical_overrides.of(job.spec)
    parts = (_immutable_part(found.at(index)) for index in range(len(found.written)))
    return [kept for kept in parts if len(kept) > 1]


def _immutable_part(override: Mapping[str, Any]) -> dict[str, Any]:
    """Return the target jobs and the immutable part of an override in canonical form."""
    spec = override.get("spec") or {}
    immutable = {field: value for field, value in spec.items() if field not in MUTABLE_POD_FIELDS}
    targets = {"targetJobs": override["targetJobs"]}
    return {**targets, "spec": immutable} if immutable else targets


def _override(override: PodTemplateOverride) -> dict[str, Any]:
    metadata = override.metadata.dump() if override.metadata else {}
    kept = {key: metadata.get(key) for key in METADATA}
    template = thaw({"metadata": kept, "spec": override.spec or {}})
    _write_quantities(template["spec"])
    targets = sorted({target.name for target in override.target_jobs})
    return {"targetJobs": targets, **_canonical_fields(template)}


class _CanonicalOverrides:
    """The overrides of a TrainJob, as written and, computed on demand, in canonical form."""

    def __init__(self, spec: TrainJobSpec) -> None:
        self.written = spec.overrides()
        self._canonical: dict[int, Mapping[str, Any]] = {}

    def at(self, index: int) -> Mapping[str, Any]:
        """Return the override with this index in canonical form."""
        if index not in self._canonical:
            self._canonical[index] = _override(self.written[index])
        return self._canonical[index]


# Several rules compare the overrides of the same two TrainJobs.
_canonical_overrides = Memo(_CanonicalOverrides, most=2)


def _write_quantities(spec: dict[str, Any]) -> None:
    """Rewrite quantities in canonical form; invalid ones are not changed or reported here."""
    for _ in rewrite_quantities(spec, ""):
        pass


def _canonical(value: Any, field: str = "") -> Any:
    """Return the value without fields that have no meaning, which Go clients may add or omit."""
    if type(value) is dict:
        return _canonical_fields(value, keep_empty_texts=field in TEXTS)
    if type(value) is list:
        return [each if type(each) is str else _canonical(each) for each in value]
    return value


def _canonical_fields(
    value: Mapping[str, Any], *, keep_empty_texts: bool = False
) -> dict[str, Any]:
    kept = {}
    for field, each in value.items():
        if type(each) is str:  # the most common type
            if (each or keep_empty_texts) and (field, each) != ZERO_DIVISOR:
                kept[field] = each
            continue
        canonical = _canonical(each, field)
        if not _is_meaningless(field, canonical):
            kept[field] = canonical
    return kept


def _is_meaningless(field: str, value: object) -> bool:
    """Whether a Go client omits the field, or its absence has the same meaning.

    All booleans in a TrainJob default to false.
    """
    if value is None or value is False or value == []:
        return True
    if value == {}:
        return field not in MEANINGFUL_IF_EMPTY
    return field in NUMBERS and value == 0
