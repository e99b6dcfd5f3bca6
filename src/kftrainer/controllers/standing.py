"""A JobSet that stands already: JobSet lets nobody change most of it, so that part stays.

The runtime may be edited, and the TrainJob too, long after the JobSet was made. What can be
changed follows: whether it is suspended, and what decides where its pods run. For the rest a
TrainJob goes on as it began, so that it can be suspended and resumed whatever has happened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.children import digest
from kftrainer.kube.resource import Manifest, key_of
from kftrainer.runtime.existing import Existing
from kftrainer.runtime.info import own_job_set
from kftrainer.runtime.manifests import owned
from kftrainer.runtime.planned import Planned

# The part that stays, as it was planned when the JobSet was made.
ANNOTATION_BEGUN_AS = "trainer.kubeflow.org/begun-as"
# The JobSet was applied with what JobSet had filled in. As it does so only in new ones, and
# what is no longer applied is removed, that has to go on.
ANNOTATION_WHOLE = "trainer.kubeflow.org/applied-whole"
EVENT_KEPT = "JobSetKept"
KEPT_MESSAGE = (
    "the runtime or the TrainJob was changed in what cannot be changed in a JobSet: the JobSet "
    "stays as it is, but for its suspension and the labels, annotations, node selectors, "
    "tolerations and scheduling gates of its pods. To train with the changes, delete the TrainJob "
    "and create it again"
)
# What JobSet lets one change, in the JobSet, and while it is suspended in its pods.
CHANGEABLE = ("suspend", "ttlSecondsAfterFinished")
IN_PODS = ("nodeSelector", "tolerations", "schedulingGates")
ON_PODS = ("labels", "annotations")


@dataclass(frozen=True, slots=True)
class Fitted:
    """A plan that fits what is there."""

    planned: Sequence[Planned]
    kept: Planned | None = None  # the JobSet, where it cannot become what was planned


def fitted(planned: Sequence[Planned], job: TrainJob, existing: Existing) -> Fitted:
    """What can be brought about of the plan."""
    others = [each for each in planned if each.resource is not JOB_SETS]
    wanted = next((each.manifest for each in planned if each.resource is JOB_SETS), None)
    if wanted is None:
        return Fitted(planned)
    begun_as = digest(_lasting(wanted["spec"]))
    there = own_job_set(job, existing)
    marks = {} if there is None else _annotations(there)
    once_begun_as = marks.get(ANNOTATION_BEGUN_AS, begun_as)
    if there is None or (once_begun_as == begun_as and ANNOTATION_WHOLE not in marks):
        return Fitted([*others, _marked(wanted, {ANNOTATION_BEGUN_AS: begun_as})])
    whole = {**wanted, "spec": _kept(there["spec"], wanted["spec"])}
    job_set = _marked(whole, {ANNOTATION_BEGUN_AS: once_begun_as, ANNOTATION_WHOLE: "true"})
    if once_begun_as == begun_as:
        return Fitted([*others, job_set])
    # What else was made for its pods belongs to what stays.
    missing = [
        each for each in others if existing.get(each.resource, key_of(each.manifest)) is None
    ]
    return Fitted([*missing, job_set], kept=job_set)


def merely_suspended(job: TrainJob, existing: Existing) -> Planned | None:
    """The JobSet as it is, but suspended: for a TrainJob that is to be, and has no plan."""
    there = own_job_set(job, existing)
    if there is None or not job.spec.suspend or there["spec"].get("suspend"):
        return None
    labels = there["metadata"].get("labels") or {}
    manifest = owned(JOB_SETS, job, labels=labels, annotations=_annotations(there))
    manifest["spec"] = {**there["spec"], "suspend": True}
    return _marked(manifest, {ANNOTATION_WHOLE: "true"})


def _lasting(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a JobSet's spec that cannot be changed."""
    jobs = [_with_pods_of(each, {}) for each in spec.get("replicatedJobs", ())]
    return {**_following(CHANGEABLE, spec, {}), "replicatedJobs": jobs}


def _kept(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The spec that is there, with what can be changed as it is wanted."""
    templates = {each["name"]: _pod_template(each) for each in wanted["replicatedJobs"]}
    jobs = [
        _with_pods_of(each, templates.get(each["name"], _pod_template(each)))
        for each in there["replicatedJobs"]
    ]
    return {**_following(CHANGEABLE, there, wanted), "replicatedJobs": jobs}


def _pod_template(job: Mapping[str, Any]) -> Mapping[str, Any]:
    template: Mapping[str, Any] = job["template"]["spec"]["template"]
    return template


def _with_pods_of(job: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A replicated job, with what can be changed in its pods as it is in the wanted template."""
    pod = _pod_template(job)
    followed = {"spec": _following(IN_PODS, pod.get("spec") or {}, wanted.get("spec") or {})}
    metadata = _following(ON_PODS, pod.get("metadata") or {}, wanted.get("metadata") or {})
    if metadata:
        followed["metadata"] = metadata
    template = job["template"]
    return {**job, "template": {**template, "spec": {**template["spec"], "template": followed}}}


def _following(
    fields: Sequence[str], one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, Any]:
    """The first, with these fields as they are in the other, or are not."""
    return {
        **{field: value for field, value in one.items() if field not in fields},
        **{field: other[field] for field in fields if field in other},
    }


def _annotations(manifest: Manifest) -> Mapping[str, str]:
    return manifest["metadata"].get("annotations") or {}


def _marked(manifest: Manifest, marks: Mapping[str, str]) -> Planned:
    annotations = {**_annotations(manifest), **marks}
    metadata = {**manifest["metadata"], "annotations": annotations}
    return Planned(JOB_SETS, {**manifest, "metadata": metadata})
