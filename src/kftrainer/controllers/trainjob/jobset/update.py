"""Fits a plan to an existing JobSet, most of which is immutable.

The runtime or the TrainJob may be edited long after the JobSet was created. The mutable part
follows the plan: suspension and the fields that decide where pods run. The immutable part keeps
its values, so that the TrainJob can always be suspended and resumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.apply import digest, holds
from kftrainer.kube.objects.resource import Manifest, key_of
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.info import claimed_job_set, own_job_set
from kftrainer.runtime.planned_object import PlannedObject

ANNOTATION_BEGUN_AS = names.ANNOTATION_BEGUN_AS
ANNOTATION_WHOLE = names.ANNOTATION_APPLIED_WHOLE
KEPT_MESSAGE = (
    "the runtime or the TrainJob was changed in fields that are immutable in a JobSet: the JobSet "
    "is not changed, except for its suspension and the labels, annotations, node selectors, "
    "tolerations and scheduling gates of its pods. To train with the changes, delete the TrainJob "
    "and create it again"
)
# Mutable fields of the JobSet and, while it is suspended, of its pods.
CHANGEABLE = ("suspend", "ttlSecondsAfterFinished")
IN_PODS = ("nodeSelector", "tolerations", "schedulingGates")
ON_PODS = ("labels", "annotations")


@dataclass(frozen=True, slots=True)
class ApplicablePlan:
    """A plan that JobSet accepts, given the live JobSet."""

    objects: Sequence[PlannedObject]
    kept: PlannedObject | None = None  # the JobSet, if it cannot be changed to what was planned
    is_as_planned: bool = True  # the JobSet is planned, and new or created from an equal plan


def applicable_plan(
    planned: Sequence[PlannedObject], job: TrainJob, existing: ClusterReader
) -> ApplicablePlan:
    """Return the part of the plan that can be applied, given the live JobSet.

    JobSet rejects every change of the immutable part. The live values are therefore applied
    unchanged unless the plan is known to be equal: another implementation may have created the
    JobSet, an admission policy may have rewritten it, or the runtime may have been edited since.
    """
    others = [each for each in planned if each.resource is not JOB_SETS]
    wanted = next((each.manifest for each in planned if each.resource is JOB_SETS), None)
    if wanted is None:
        return ApplicablePlan(planned, is_as_planned=False)
    planned_digest = digest(_immutable_part(wanted["spec"]))
    live = own_job_set(job, existing)
    if live is None:
        return ApplicablePlan([*others, _marked(wanted, {ANNOTATION_BEGUN_AS: planned_digest})])
    if has_own_queue(live, job) and not job.spec.suspend:
        return ApplicablePlan(others, is_as_planned=False)
    marks = _annotations(live)
    recorded_digest = marks.get(ANNOTATION_BEGUN_AS)
    is_same = holds(_immutable_part(wanted["spec"]), _immutable_part(live["spec"]))
    if is_same and recorded_digest == planned_digest and ANNOTATION_WHOLE not in marks:
        return ApplicablePlan([*others, _marked(wanted, {ANNOTATION_BEGUN_AS: planned_digest})])
    whole = {**wanted, "spec": _with_mutable_fields(live["spec"], wanted["spec"])}
    mark = {ANNOTATION_BEGUN_AS: recorded_digest or planned_digest, ANNOTATION_WHOLE: "true"}
    job_set = _marked(whole, mark)
    was_edited = recorded_digest not in (None, planned_digest)
    if not was_edited and (is_same or recorded_digest is not None):
        return ApplicablePlan([*others, job_set])
    # The pods were started with the other objects too: they are not modified either.
    missing = [
        each for each in others if existing.get(each.resource, key_of(each.manifest)) is None
    ]
    kept = job_set if was_edited else None
    return ApplicablePlan([*missing, job_set], kept=kept, is_as_planned=False)


def has_same_jobs(one: Manifest, other: Manifest) -> bool:
    """Whether the immutable parts of two JobSets are equal."""
    return _immutable_part(one["spec"]) == _immutable_part(other["spec"])


def has_own_queue(job_set: Manifest, job: TrainJob) -> bool:
    """Whether a queue, not the TrainJob's suspension, decides when this JobSet runs.

    Kueue manages labelled JobSets, unless it manages the TrainJob itself.
    """
    queue = (job_set["metadata"].get("labels") or {}).get(names.LABEL_QUEUE)
    return bool(queue) and names.LABEL_QUEUE not in (job.metadata.labels or {})


def needs_suspension(job: TrainJob, existing: ClusterReader) -> Manifest | None:
    """Return the JobSet of a suspended TrainJob if it is not suspended itself.

    This includes a JobSet that the controller did not create: its owner reference names the
    TrainJob, so queues treat it as part of the TrainJob.
    """
    live = claimed_job_set(job, existing)
    if live is None or not job.spec.suspend or live["spec"].get("suspend"):
        return None
    return live


def _immutable_part(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the immutable part of a JobSet's spec."""
    jobs = [_with_pods_of(each, {}) for each in spec.get("replicatedJobs", ())]
    return {**_taking_fields(CHANGEABLE, spec, {}), "replicatedJobs": jobs}


def _with_mutable_fields(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the live spec with the mutable fields of the wanted one."""
    templates = {each["name"]: _pod_template(each) for each in wanted["replicatedJobs"]}
    jobs = [
        _with_pods_of(each, templates.get(each["name"], _pod_template(each)))
        for each in live["replicatedJobs"]
    ]
    return {**_taking_fields(CHANGEABLE, live, wanted), "replicatedJobs": jobs}


def _pod_template(job: Mapping[str, Any]) -> Mapping[str, Any]:
    template: Mapping[str, Any] = job["template"]["spec"]["template"]
    return template


def _with_pods_of(job: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return a replicated job with the mutable pod fields of the wanted template."""
    pod = _pod_template(job)
    followed = {"spec": _taking_fields(IN_PODS, pod.get("spec") or {}, wanted.get("spec") or {})}
    metadata = _taking_fields(ON_PODS, pod.get("metadata") or {}, wanted.get("metadata") or {})
    if metadata:
        followed["metadata"] = metadata
    template = job["template"]
    return {**job, "template": {**template, "spec": {**template["spec"], "template": followed}}}


def _taking_fields(
    fields: Sequence[str], one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the first mapping with the given fields taken (or missing) as in the other."""
    return {
        **{field: value for field, value in one.items() if field not in fields},
        **{field: other[field] for field in fields if field in other},
    }


def _annotations(manifest: Manifest) -> Mapping[str, str]:
    return manifest["metadata"].get("annotations") or {}


def _marked(manifest: Manifest, marks: Mapping[str, str]) -> PlannedObject:
    annotations = {**_annotations(manifest), **marks}
    metadata = {**manifest["metadata"], "annotations": annotations}
    return PlannedObject(JOB_SETS, {**manifest, "metadata": metadata})
