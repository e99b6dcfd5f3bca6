"""Validates updates of TrainJobs: an existing JobSet and its pods are mostly immutable."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kftrainer.api.overrides import PodTemplateOverride
from kftrainer.api.runtime_patches import RuntimePatch
from kftrainer.api.trainjob import TrainJob, TrainJobSpec
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, forbidden, without
from kftrainer.kube.objects.model import KubeModel
from kftrainer.machinery.memo import Memo
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.info import is_finished, own_job_set, runs
from kftrainer.runtime.object_builders import thaw
from kftrainer.runtime.patches.pod_patches import (
    METADATA,
    MUTABLE_POD_FIELDS,
    PATCHES_PATH,
    overrides_field,
    pod_template_of,
    replicated_jobs_of,
    template_of,
)
from kftrainer.runtime.resources.quantities import rewrite_quantities
from kftrainer.runtime.validation.rules import Rule

RECREATE = "to train with the change, delete the TrainJob and create it again"
JOBSET_EXISTS = "cannot be changed after the JobSet was created"
FINISHED = "cannot be changed after the TrainJob has finished"
MUTABLE = "except labels, annotations, nodeSelector, tolerations and schedulingGates of the pods"
MUTABLE_OF_PATCHES = (
    "except labels and annotations of the JobSet and of the pods, and nodeSelector, tolerations "
    "and schedulingGates of the pods"
)
# Maps in which an empty string is a value; elsewhere Go clients omit it.
TEXTS = frozenset({"labels", "annotations", "nodeSelector", "matchLabels"})
# Fields for which {} has a meaning: everything, or a volume of this type.
MEANINGFUL_IF_EMPTY = frozenset({"labelSelector", "namespaceSelector", "emptyDir"})
# Numbers that Go clients omit if they are 0; others are pointers in Go, for which 0 is a value.
NUMBERS = frozenset({"partition"})
# Its booleans are pointers in Go, and are merged over those of the runtime.
SECURITY_CONTEXT = "securityContext"
ZERO_DIVISOR = ("divisor", "0")
STORED_ERROR = "the stored object already has this error: {}"


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """Messages and rules about changes of overrides, or of runtime patches."""

    while_running: str
    while_running_rule: Rule
    while_active: str  # with a placeholder for the name of the job
    while_active_rule: Rule
    after_jobset_rule: Rule
    after_end_rule: Rule
    mutable: str


OF_OVERRIDES = ChangeRules(
    "PodTemplateOverrides can only be modified when the TrainJob is suspended",
    Rule.OVERRIDE_WHILE_RUNNING,
    "PodTemplateOverrides cannot be modified when the JobSet's ReplicatedJob {} is still active",
    Rule.OVERRIDE_WHILE_ACTIVE,
    Rule.OVERRIDE_AFTER_JOBSET,
    Rule.OVERRIDE_AFTER_END,
    MUTABLE,
)
OF_PATCHES = ChangeRules(
    "RuntimePatches can only be modified when the TrainJob is suspended before or after the update",
    Rule.PATCH_WHILE_RUNNING,
    "RuntimePatches cannot be modified when the JobSet's ReplicatedJob {} is still active",
    Rule.PATCH_WHILE_ACTIVE,
    Rule.PATCH_AFTER_JOBSET,
    Rule.PATCH_AFTER_END,
    MUTABLE_OF_PATCHES,
)


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
    is_suspended = old.spec.suspend or new.spec.suspend
    for rules, field in _changed_lists(old, new):
        yield from patch_change_errors(rules, field, job_set or {}, is_suspended=is_suspended)
    if is_finished(old):
        yield from _immutable_part_errors(old, new, has_ended=True)
    elif job_set is not None:
        yield from _immutable_part_errors(old, new, has_ended=False)


def change_warnings(old: TrainJob, new: TrainJob, existing: ClusterReader) -> Iterator[str]:
    """Yield a warning for each accepted change that has no effect, or no effect yet."""
    metadata = [field for field in METADATA if _metadata(old, field) != _metadata(new, field)]
    if is_finished(old):
        changed = [f"spec.{field}" for field in metadata]
        if old.spec.suspend != new.spec.suspend:
            changed.append("spec.suspend")
        changed += [field for _, field in _changed_lists(old, new)]
        yield from (f"{field}: no effect: the TrainJob has finished" for field in changed)
    elif metadata and runs(new, existing):
        for field in metadata:
            yield (
                f"spec.{field}: no effect yet: the JobSet is running, and keeps its {field} until "
                "the TrainJob is suspended"
            )


def changes_immutable_part(old: TrainJob, new: TrainJob) -> bool:
    """Whether the update changes a part that is immutable once a JobSet exists."""
    if any(True for _ in _changed_lists(old, new)):
        return True
    return any(True for _ in _immutable_part_errors(old, new, has_ended=False))


def patch_change_errors(
    rules: ChangeRules, field: str, job_set: Mapping[str, Any], *, is_suspended: bool
) -> Iterator[FieldError]:
    """Yield errors for a change of overrides or runtime patches while pods may exist."""
    if not is_suspended:
        yield forbidden(field, rules.while_running, rule=rules.while_running_rule)
        return
    for row in (job_set.get("status") or {}).get("replicatedJobsStatus") or ():
        if row.get("active"):
            detail = rules.while_active.format(row["name"])
            yield forbidden(field, detail, rule=rules.while_active_rule)


def immutable_patch_error(rules: ChangeRules, field: str, *, has_ended: bool) -> FieldError:
    """Return the error for a change of the immutable part of overrides or runtime patches."""
    detail = f"{FINISHED if has_ended else JOBSET_EXISTS}, {rules.mutable}: {RECREATE}"
    rule = rules.after_end_rule if has_ended else rules.after_jobset_rule
    return forbidden(field, detail, rule=rule)


def _changed_lists(old: TrainJob, new: TrainJob) -> Iterator[tuple[ChangeRules, str]]:
    """Yield the rules and the path of the overrides and of the runtime patches, if they change."""
    if _override_changes(old, new):
        yield OF_OVERRIDES, _field(old, new)
    if _runtime_patch_changes(old, new):
        yield OF_PATCHES, PATCHES_PATH


def _immutable_part_errors(
    old: TrainJob, new: TrainJob, *, has_ended: bool
) -> Iterator[FieldError]:
    why = FINISHED if has_ended else JOBSET_EXISTS
    rule = Rule.CHANGE_AFTER_END if has_ended else Rule.CHANGE_AFTER_JOBSET
    for path, before, after in (
        ("spec.trainer", old.spec.trainer, new.spec.trainer),
        ("spec.initializer.dataset", _asset(old, "dataset"), _asset(new, "dataset")),
        ("spec.initializer.model", _asset(old, "model"), _asset(new, "model")),
    ):
        for field in _differing(_part(before), _part(after)):
            yield forbidden(f"{path}.{field}", f"{why}: {RECREATE}", rule=rule)
    if _immutable_parts_of_overrides(old) != _immutable_parts_of_overrides(new):
        yield immutable_patch_error(OF_OVERRIDES, _field(old, new), has_ended=has_ended)
    if _runtime_patch_changes(old, new) and (
        _immutable_parts_of_patches(old) != _immutable_parts_of_patches(new)
    ):
        yield immutable_patch_error(OF_PATCHES, PATCHES_PATH, has_ended=has_ended)


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


def _runtime_patch_changes(old: TrainJob, new: TrainJob) -> bool:
    """Whether a runtime patch differs in its canonical form, which has no time."""
    if old.spec.runtime_patches == new.spec.runtime_patches:
        return False
    return _canonical_patches.of(old.spec) != _canonical_patches.of(new.spec)


def _immutable_parts_of_patches(job: TrainJob) -> list[Any]:
    """Return what each runtime patch sets in the immutable part of a JobSet.

    The manager of a patch has no effect on the JobSet. Patches that only affect scheduling, such as
    Kueue's, have no immutable part.
    """
    found = (_immutable_part_of_patch(each) for each in _canonical_patches.of(job.spec))
    return [part for part in found if part]


def _immutable_part_of_patch(patch: Mapping[str, Any]) -> list[dict[str, Any]]:
    jobs = []
    for job in patch.get("jobs", ()):
        spec = job.get("spec", {})
        kept = {field: value for field, value in spec.items() if field not in MUTABLE_POD_FIELDS}
        part = {"spec": kept, "jobMetadata": job.get("jobMetadata", {})}
        if any(part.values()):
            jobs.append({"name": job["name"], **part})
    return jobs


def _patches(spec: TrainJobSpec) -> list[dict[str, Any]]:
    """Return the runtime patches that have an effect, in canonical form and without time."""
    found = ((each.manager, _canonical_patch(each)) for each in spec.runtime_patches or ())
    return [{"manager": manager, **patch} for manager, patch in found if patch]


def _canonical_patch(patch: RuntimePatch) -> dict[str, Any]:
    """Return what a runtime patch sets, without parts that have no effect."""
    template = template_of(patch)
    metadata = None if template is None else template.metadata
    jobs = [*map(_canonical_job, replicated_jobs_of(patch))]
    changed = sorted((job for job in jobs if len(job) > 1), key=lambda job: str(job["name"]))
    return _canonical_fields(
        {"metadata": _texts(metadata.dump() if metadata else None), "jobs": changed}
    )


def _canonical_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name of a replicated job and what is set in its metadata and its pods."""
    pods = pod_template_of(job)
    template = {
        "jobMetadata": _texts((job.get("template") or {}).get("metadata")),
        "metadata": _texts(pods.get("metadata")),
        "spec": thaw(pods.get("spec") or {}),
    }
    _write_quantities(template["spec"])
    return {"name": job["name"], **_canonical_fields(template)}


def _texts(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: (metadata or {}).get(key) for key in METADATA}


_canonical_patches = Memo(_patches, most=2)


def _write_quantities(spec: dict[str, Any]) -> None:
    """Rewrite quantities in canonical form; invalid ones are not changed or reported here."""
    for _ in rewrite_quantities(spec, ""):
        pass


def _canonical(value: Any, field: str = "") -> Any:
    """Return the value without fields that have no meaning, which Go clients may add or omit."""
    if type(value) is dict:
        if field == SECURITY_CONTEXT:
            return {**_canonical_fields(value), **_false_fields(value)}
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


def _false_fields(value: Mapping[str, Any]) -> dict[str, bool]:
    """Return the fields that are false, which differs from unset in a security context."""
    return {field: each for field, each in value.items() if each is False}


def _is_meaningless(field: str, value: object) -> bool:
    """Whether a Go client omits the field, or its absence has the same meaning.

    All other booleans in a TrainJob default to false.
    """
    if value is None or value is False or value == []:
        return True
    if value == {}:
        return field not in MEANINGFUL_IF_EMPTY
    return field in NUMBERS and value == 0
