"""Overrides and runtime patches of a TrainJob as one list of changes to pods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.api import names
from kftrainer.api.overrides import PodTemplateOverride
from kftrainer.api.runtime_patches import JobSetTemplatePatch, RuntimePatch
from kftrainer.api.trainjob import TrainJob, TrainJobSpec
from kftrainer.machinery.memo import Memo
from kftrainer.runtime.validation.rules import Rule

MODERN, LEGACY, PATCHES = "podTemplateOverrides", "podSpecOverrides", "runtimePatches"
METADATA = ("labels", "annotations")  # the only metadata that a template can set
# What JobSet lets change in the pod templates of a suspended JobSet, besides METADATA.
MUTABLE_POD_FIELDS = ("nodeSelector", "tolerations", "schedulingGates")
PATCHES_PATH = f"spec.{PATCHES}"
_TEMPLATE = "trainingRuntimeSpec.template"


@dataclass(frozen=True, slots=True)
class PatchKind:
    """What differs between overrides and runtime patches: one message, and names of rules."""

    unknown_job: str
    unknown_job_rule: Rule
    unknown_container_rule: Rule
    step_env_rule: Rule
    too_much_rule: Rule


OVERRIDE = PatchKind(
    "must not have targetJob that doesn't exist in the runtime job template",
    Rule.OVERRIDE_UNKNOWN_JOB,
    Rule.OVERRIDE_UNKNOWN_CONTAINER,
    Rule.OVERRIDE_STEP_ENV,
    Rule.OVERRIDE_TOO_MUCH,
)
RUNTIME_PATCH = PatchKind(
    "must not have replicated job that doesn't exist in the runtime job template",
    Rule.PATCH_UNKNOWN_JOB,
    Rule.PATCH_UNKNOWN_CONTAINER,
    Rule.PATCH_STEP_ENV,
    Rule.PATCH_TOO_MUCH,
)


@dataclass(frozen=True, slots=True)
class PodPatch:
    """Changes to the pods of some jobs, and to these jobs' metadata, with their paths."""

    kind: PatchKind
    field: str  # the list in the TrainJob that it is in
    path: str
    source: str  # the path and, for a runtime patch, its manager, for `--explain`
    jobs: Sequence[str]  # names of the jobs that it changes
    job_path: str  # of a name in `jobs`; the placeholder {} stands for its index
    metadata: Mapping[str, Any]  # of the pods
    metadata_path: str
    spec: Mapping[str, Any]  # of the pods
    spec_path: str
    job_metadata: Mapping[str, Any]  # of the jobs
    job_metadata_path: str = ""
    is_of_queue: bool = False

    def path_in(self, inner: str) -> str:
        """Return the path in the TrainJob of a path in the pod template."""
        for field, path in (("metadata", self.metadata_path), ("spec", self.spec_path)):
            if inner == field or inner.startswith((f"{field}.", f"{field}[")):
                return f"{path}{inner.removeprefix(field)}"
        return self.path


@dataclass(frozen=True, slots=True)
class JobSetMetadataPatch:
    """Labels and annotations that a runtime patch sets on the JobSet."""

    path: str
    source: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def pod_patches(job: TrainJob) -> Sequence[PodPatch]:
    """Return the overrides, then the runtime patches, in the order in which they are merged."""
    spec = job.spec
    # Usually there are none, and half of all rules call this.
    if spec.pod_template_overrides or spec.pod_spec_overrides or spec.runtime_patches:
        return _pod_patches.of(spec)
    return ()


def override_patches(job: TrainJob) -> Sequence[PodPatch]:
    """Return the overrides in order."""
    return [each for each in pod_patches(job) if each.kind is OVERRIDE]


def jobset_metadata_patches(job: TrainJob) -> Iterator[JobSetMetadataPatch]:
    """Yield the labels and annotations that runtime patches set on the JobSet, in order."""
    for index, patch in enumerate(job.spec.runtime_patches or ()):
        template = template_of(patch)
        if template is not None and (metadata := template.metadata) is not None:
            path = f"{PATCHES_PATH}[{index}].{_TEMPLATE}.metadata"
            source = _source(index, patch)
            labels, annotations = metadata.labels or {}, metadata.annotations or {}
            yield JobSetMetadataPatch(path, source, labels, annotations)


def overrides_field(job: TrainJob) -> str:
    """Return the path of the overrides, which can have the current or the old field name."""
    return _overrides_field(job.spec)


def template_of(patch: RuntimePatch) -> JobSetTemplatePatch | None:
    """Return the changes of a runtime patch to the JobSet, or None."""
    spec = patch.training_runtime_spec
    return None if spec is None else spec.template


def replicated_jobs_of(patch: RuntimePatch) -> Sequence[Mapping[str, Any]]:
    """Return the changes of a runtime patch to replicated jobs, as written."""
    template = template_of(patch)
    return (template.spec.replicated_jobs if template and template.spec else None) or ()


def pod_template_of(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the changes to the pod template in the changes to a replicated job."""
    return _part(_part(_part(job, "template"), "spec"), "template")


def _overrides_field(spec: TrainJobSpec) -> str:
    return f"spec.{LEGACY if spec.pod_spec_overrides else MODERN}"


def _all(spec: TrainJobSpec) -> Sequence[PodPatch]:
    field = _overrides_field(spec)
    return [
        *(_of_override(field, index, each) for index, each in enumerate(spec.overrides())),
        *(
            pod_patch
            for index, each in enumerate(spec.runtime_patches or ())
            for pod_patch in _of_runtime_patch(index, each)
        ),
    ]


# Several rules read the patches of the same TrainJob.
_pod_patches = Memo(_all, most=2)


def _of_override(field: str, index: int, override: PodTemplateOverride) -> PodPatch:
    path = f"{field}[{index}]"
    # The old field has the fields of the pods' spec beside targetJobs.
    spec_path = path if field.endswith(LEGACY) else f"{path}.spec"
    return PodPatch(
        kind=OVERRIDE,
        field=field,
        path=path,
        source=path,
        jobs=[target.name for target in override.target_jobs],
        job_path=f"{path}.targetJobs[{{}}].name",
        metadata=override.metadata.dump() if override.metadata else {},
        metadata_path=f"{path}.metadata",
        spec=override.spec or {},
        spec_path=spec_path,
        job_metadata={},
    )


def _of_runtime_patch(index: int, patch: RuntimePatch) -> Iterator[PodPatch]:
    """Yield the changes to each replicated job that the runtime patch has."""
    jobs = replicated_jobs_of(patch)
    if not jobs:
        return
    source = _source(index, patch)
    path_of_jobs = f"{PATCHES_PATH}[{index}].{_TEMPLATE}.spec.replicatedJobs"
    for number, job in enumerate(jobs):
        path = f"{path_of_jobs}[{number}]"
        pods = pod_template_of(job)
        path_of_pods = f"{path}.template.spec.template"
        yield PodPatch(
            kind=RUNTIME_PATCH,
            field=PATCHES_PATH,
            path=path,
            source=source,
            jobs=(job["name"],),
            job_path=f"{path}.name",
            metadata=_part(pods, "metadata"),
            metadata_path=f"{path_of_pods}.metadata",
            spec=_part(pods, "spec"),
            spec_path=f"{path_of_pods}.spec",
            job_metadata=_part(_part(job, "template"), "metadata"),
            job_metadata_path=f"{path}.template.metadata",
            is_of_queue=patch.manager == names.QUEUE_MANAGER,
        )


def _source(index: int, patch: RuntimePatch) -> str:
    return f"{PATCHES_PATH}[{index}] ({patch.manager})"


def _part(document: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    return document.get(field) or {}
