"""JobSet plugin: builds the JobSet of a TrainJob and observes its status."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS, RESOURCE_CLAIM_TEMPLATES, TRAIN_JOBS
from kftrainer.api.trainjob import Asset, Initializer, JobStatus, TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, invalid, required
from kftrainer.kube.objects.meta import Condition
from kftrainer.kube.objects.resource import Manifest, ObjectKey, key_of
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import InvalidTrainJobError
from kftrainer.runtime.framework.extension_points import (
    APPLY_VERBS,
    WATCH_VERBS,
    ComponentBuilder,
    CustomValidation,
    Observed,
    PodNetwork,
    RBACExtension,
    RBACRule,
    TrainJobStatus,
    Watch,
    WatchExtension,
)
from kftrainer.runtime.info import (
    NO_TRAINER,
    Info,
    is_finished,
    key_of_job,
    own_job_set,
    runs,
)
from kftrainer.runtime.object_builders import env_var, owned
from kftrainer.runtime.patches.targets import manager_errors, step_env_errors
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins.user_env import set_all, set_user_env
from kftrainer.runtime.podset import Container, Endpoints
from kftrainer.runtime.resources.claims import claims_of
from kftrainer.runtime.resources.node_counts import count_of
from kftrainer.runtime.template import subject_of
from kftrainer.runtime.validation.names import name_errors
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.trainjob_warnings import requests_above_limits

NO_INITIALIZER = Initializer()
STEPS = (
    (names.STEP_DATASET_INITIALIZER, "dataset", "datasetConfig"),
    (names.STEP_MODEL_INITIALIZER, "model", "modelConfig"),
)
# Final conditions of a JobSet, and the corresponding conditions of a TrainJob.
FINISHED = {"Completed": names.CONDITION_COMPLETE, "Failed": names.CONDITION_FAILED}
JOB_COUNTS = ("ready", "succeeded", "failed", "active", "suspended")


class JobSet(
    PodNetwork,
    ComponentBuilder,
    TrainJobStatus,
    CustomValidation,
    WatchExtension,
    RBACExtension,
):
    """Build the JobSet from the template, and translate its status for the TrainJob."""

    name: ClassVar[str] = "JobSet"

    def identify_pod_network(self, info: Info, job: TrainJob) -> None:
        """Set the endpoints to the host names that JobSet gives to pods."""
        for pod_set in info.pod_sets:
            pod_set.endpoints = Endpoints(pod_set, job.metadata.name, info.subdomain(job))

    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        """Return the JobSet, unless it runs: then it must not be modified."""
        if runs(job, info.existing):
            return ()
        if info.claimed.error is not None:
            raise info.claimed.error
        counts = [each.count for each in info.pod_sets]
        errors = [*_missing_initializers(info, job), *name_errors(info, job, counts)]
        if errors:
            raise InvalidTrainJobError(subject_of(job), *errors)
        _set_initializers(info, job)
        _set_trainer(info, job)
        jobset = owned(JOB_SETS, job, labels=info.labels, annotations=info.annotations)
        info.template["suspend"] = job.spec.suspend
        info.trace.note("spec.suspend", "spec.suspend")
        jobset["spec"] = info.template
        return (PlannedObject(JOB_SETS, jobset),)

    def observe_status(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        """Return the final condition of the JobSet and the status of its jobs."""
        job_set = own_job_set(job, existing)
        if job_set is None:
            return None
        status = job_set.get("status") or {}
        return Observed(
            conditions=[*_conditions(status.get("conditions") or ())],
            jobs=[_job_status(each) for each in status.get("replicatedJobsStatus") or ()],
            suspended=bool(job_set["spec"].get("suspend")),
        )

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Validate initializers and patches against the runtime, and names for JobSet."""
        findings = ValidationResult()
        counts = [count_of(each, info, new) for each in info.pod_sets]
        findings.add_errors(*_missing_initializers(info, new), *name_errors(info, new, counts))
        findings.add_errors(*manager_errors(new), *step_env_errors(new))
        requested = (new.spec.trainer or NO_TRAINER).resources_per_node
        for container in _training(info):
            findings.add_warnings(*requests_above_limits(container, requested))
        return findings

    def declare_watches(self) -> Sequence[Watch]:
        """Watch the JobSets of TrainJobs, and the templates of their resource claims."""
        templates = Watch(RESOURCE_CLAIM_TEMPLATES, map_func=waiting_for_template)
        return (Watch(JOB_SETS), templates)

    def declare_rbac_rules(self) -> Sequence[RBACRule]:
        """Return the rules for JobSets, deleted at a deadline, and for templates of claims."""
        return (
            RBACRule(JOB_SETS, (*APPLY_VERBS, "delete")),
            RBACRule(RESOURCE_CLAIM_TEMPLATES, WATCH_VERBS),
        )


def waiting_for_template(template: Manifest, existing: ClusterReader) -> Iterator[ObjectKey | None]:
    """Yield the TrainJobs that the ResourceClaimTemplate affects; None for each other one.

    The trainer of large TrainJobs is not cached, so TrainJobs without one are included.
    """
    namespace, name = key_of(template)
    for job in existing.iterate(TRAIN_JOBS, namespace):
        names_it = job.spec.trainer is None or any(
            each.resource_claim_template_name == name for each in claims_of(job)
        )
        is_waiting = names_it and not is_finished(job) and not runs(job, existing)
        yield key_of_job(job) if is_waiting else None


def _missing_initializers(info: Info, job: TrainJob) -> Iterator[FieldError]:
    """Yield errors for initializers of the TrainJob that the runtime has no job for."""
    if job.spec.initializer is None:
        return
    for step, field, config in STEPS:
        asset = _asset(job, field)
        if asset is None:
            continue
        if asset.secret_ref is not None and not asset.secret_ref.get("name"):
            where = f"spec.initializer.{field}.secretRef.name"
            yield required(where, "the name of the Secret", rule=Rule.INITIALIZER_SECRET_NAME)
        pod_sets = info.with_ancestor(step)
        reference = job.spec.runtime_ref.dump()
        if not pod_sets:
            detail = f"must have {step} job when trainJob is configured with input {config}"
            if info.pod_set(step) is not None:
                label = f"{names.LABEL_ANCESTOR_STEP}: {step}"
                detail += f": the job {step} exists, but lacks the label {label}"
            yield invalid("spec.runtimeRef", reference, detail, rule=Rule.INITIALIZER_MISSING)
        elif not any(pod_set.container(step) for pod_set in pod_sets):
            detail = f"must have container with name - {step} in the {step} job"
            rule = Rule.INITIALIZER_CONTAINER_MISSING
            yield invalid("spec.runtimeRef", reference, detail, rule=rule)


def _asset(job: TrainJob, field: str) -> Asset | None:
    asset: Asset | None = getattr(job.spec.initializer or NO_INITIALIZER, field)
    return asset


def _set_initializers(info: Info, job: TrainJob) -> None:
    if job.spec.initializer is None:
        return
    for step, field, _ in STEPS:
        asset = _asset(job, field)
        for pod_set in info.with_ancestor(step):
            container = pod_set.container(step)
            if asset is not None and container is not None:
                _set_asset(container, asset, f"spec.initializer.{field}")


def _set_asset(container: Container, asset: Asset, path: str) -> None:
    if asset.storage_uri:
        container.set_env(env_var(names.ENV_STORAGE_URI, asset.storage_uri), f"{path}.storageUri")
    skip = (names.ENV_STORAGE_URI,) if asset.storage_uri else ()
    set_all(container, asset.env or (), f"{path}.env", skip=skip)
    if asset.secret_ref:
        origin = {"secretRef": {"name": asset.secret_ref["name"]}}
        container.add_env_from(origin, f"{path}.secretRef")


def _set_trainer(info: Info, job: TrainJob) -> None:
    if info.command is not None and (container := info.trainer_container) is not None:
        container.set("command", info.command, info.command_source)
    for each in _training(info):
        set_user_env(each, job, info.reserved_env)


def _training(info: Info) -> Iterator[Container]:
    """Yield the containers that train: the trainer's and those of the workers."""
    if info.trainer_container is not None:
        yield info.trainer_container
    if (worker := info.worker) is not None:
        container = worker.container(names.CONTAINER_NODE)
        if container is not None:
            yield container


def _conditions(conditions: Sequence[dict[str, Any]]) -> Iterator[Condition]:
    for condition in conditions:
        kind = FINISHED.get(condition["type"])
        if kind is not None and condition["status"] == "True":
            yield Condition.parse(
                {
                    "type": kind,
                    "status": "True",
                    "reason": condition["reason"],
                    "message": condition["message"],
                    "lastTransitionTime": condition["lastTransitionTime"],
                }
            )


def _job_status(row: dict[str, Any]) -> JobStatus:
    return JobStatus.parse({"name": row["name"], **{key: row.get(key) or 0 for key in JOB_COUNTS}})
