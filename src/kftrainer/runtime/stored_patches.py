"""Merges the mutable part of stored `runtimePatches` into the plan of an existing JobSet.

The API server rejects new patches. A TrainJob of another implementation may still have some, and
its JobSet was created with them. The immutable part of that JobSet is kept; the fields that JobSet
lets change would be removed if the plan did not contain them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kftrainer.api.runtime_patches import RuntimePatch
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, invalid
from kftrainer.kube.objects.strategic_merge import StrategicMergeError, merge_in_place
from kftrainer.runtime.manifests import thaw
from kftrainer.runtime.validation.rules import Rule

MUTABLE = {
    "metadata": ("labels", "annotations"),
    "spec": ("nodeSelector", "tolerations", "schedulingGates"),
}


def merge_stored_patches(
    job: TrainJob,
    template: Mapping[str, Any],
    labels: dict[str, str],
    annotations: dict[str, str],
) -> Iterator[FieldError]:
    """Merge the patches in their order; yield an error for each pod template that is invalid."""
    jobs = {each["name"]: each["template"]["spec"] for each in template["replicatedJobs"]}
    for index, patch in enumerate(job.spec.runtime_patches or ()):
        template_patch = patch.training_runtime_spec and patch.training_runtime_spec.template
        if template_patch and (metadata := template_patch.metadata):
            labels.update(metadata.labels or {})
            annotations.update(metadata.annotations or {})
        for name, pods in _pod_templates(patch):
            if name not in jobs:
                continue
            try:
                jobs[name]["template"] = merge_in_place(jobs[name]["template"], pods)
            except StrategicMergeError as error:
                where = f"spec.runtimePatches[{index}]"
                yield invalid(where, name, str(error), rule=Rule.SCHEMA)


def _pod_templates(patch: RuntimePatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of the patched jobs with the mutable part of their pod templates."""
    template = patch.training_runtime_spec and patch.training_runtime_spec.template
    jobs = template.spec.replicated_jobs if template and template.spec else None
    for job in jobs or ():
        match job:
            case {"name": str(name), "template": {"spec": {"template": Mapping() as pods}}}:
                yield name, _mutable_part(pods)
            case _:
                continue


def _mutable_part(pods: Mapping[str, Any]) -> dict[str, Any]:
    return {
        part: {field: thaw(found[field]) for field in fields if found.get(field)}
        for part, fields in MUTABLE.items()
        if isinstance(found := pods.get(part), Mapping)
    }
