"""Gang scheduling, shared by CoScheduling and Volcano: pods start together or not at all."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kftrainer.api import names
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    LIMIT_RANGES,
    RUNTIME_CLASSES,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.quantity import ZERO, Quantity, QuantityError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import PlanningError
from kftrainer.runtime.framework.extension_points import (
    APPLY_VERBS,
    WATCH_VERBS,
    RBACRule,
    Watch,
)
from kftrainer.runtime.info import AnyRuntime, Info, is_finished, key_of_job, runs
from kftrainer.runtime.object_builders import owned
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.podset import PodSet
from kftrainer.runtime.resources.limit_ranges import with_defaults
from kftrainer.runtime.resources.pod_requests import pod_requests

COMPLETE = "Complete"  # the status in dependsOn that waits for the end of a job
IN_ORDER = "InOrder"


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods that are scheduled together, in the order of the template."""

    members: Sequence[PodSet]
    quorum: Sequence[PodSet]  # members that JobSet creates before any other member runs


def gang_of(info: Info) -> Gang:
    """Return the trainer and the jobs that start after the same other jobs are complete.

    The gang must not wait for pods that JobSet creates later, otherwise it would never start.
    Initializers are complete when the gang starts and are not members. A job that waits until other
    members are ready is a member, but not part of the quorum. Without a trainer, the gang is the
    last stage: the jobs that start after the largest number of other jobs is complete.
    """
    waits = dict(_waits(info))
    in_order = (info.template.get("startupPolicy") or {}).get("startupPolicyOrder") == IN_ORDER
    completed = _completed_before(waits, in_order=in_order)
    anchor = info.trainer or max(info.pod_sets, key=lambda each: completed[each.name].bit_count())
    at_start = completed[anchor.name]
    members = [each for each in info.pod_sets if completed[each.name] == at_start]
    return Gang(members, list(_first_to_start(members, waits, in_order=in_order)))


def pod_group(
    resource: Resource[Manifest],
    info: Info,
    job: TrainJob,
    spec: Mapping[str, Any],
    sources: Mapping[str, str],
) -> Sequence[PlannedObject]:
    """Return the PodGroup of the gang, unless it exists and the TrainJob runs.

    `sources` maps the fields of `spec` to the fields that they come from, for `--explain`.
    """
    if info.existing.get(resource, key_of_job(job)) is not None and runs(job, info.existing):
        return ()
    manifest = owned(resource, job)
    manifest["spec"] = {**_minimum(info, job), **spec}
    counted = {"minMember": "pods of the gang", "minResources": "requests of the gang's pods"}
    by_path = {f"spec.{field}": source for field, source in {**counted, **sources}.items()}
    return (PlannedObject(resource, manifest, sources=by_path),)


def watches(resource: Resource[Manifest]) -> Sequence[Watch]:
    """Return watches of these PodGroups and of the kinds that affect their minimum resources."""
    return (
        Watch(resource),
        Watch(LIMIT_RANGES, map_func=waiting_in_namespace),
        Watch(RUNTIME_CLASSES, map_func=waiting_for_class),
    )


def rbac_rules(resource: Resource[Manifest]) -> Sequence[RBACRule]:
    """Return the rules for these PodGroups and for the kinds that affect their resources."""
    return (
        RBACRule(resource, APPLY_VERBS),
        RBACRule(LIMIT_RANGES, WATCH_VERBS),
        RBACRule(RUNTIME_CLASSES, WATCH_VERBS),
    )


def scheduler_warnings(info: Info | None, path: str, advice: str) -> Iterator[str]:
    """Yield a warning if pods of the gang are not assigned to a scheduler.

    `path` is the policy's, `advice` is what the pods need.
    """
    members = gang_of(info).members if info is not None else ()
    without = [each.name for each in members if not each.spec.get("schedulerName")]
    if without:
        yield (
            f"{path}: the pods of {', '.join(without)} have no schedulerName and may "
            f"not start together: set {advice}"
        )


def waiting_in_namespace(
    limit_range: Manifest, existing: ClusterReader
) -> Iterator[ObjectKey | None]:
    """Yield the TrainJobs without pods in the LimitRange's namespace; None for each other one."""
    for job in existing.iterate(TRAIN_JOBS, key_of(limit_range).namespace):
        yield key_of_job(job) if _has_no_pods_yet(job, existing) else None


def waiting_for_class(
    runtime_class: Manifest, existing: ClusterReader
) -> Iterator[ObjectKey | None]:
    """Yield the TrainJobs without pods whose runtimes use this RuntimeClass.

    Yields None for each runtime and each other TrainJob.
    """
    name = runtime_class["metadata"]["name"]
    runtimes: dict[str, set[ObjectKey]] = {}
    for resource in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
        found = runtimes[resource.kind] = set()
        for runtime in existing.iterate(cast("Resource[AnyRuntime]", resource)):
            if name in _classes(runtime):
                found.add(ObjectKey(runtime.metadata.namespace or "", runtime.metadata.name))
            yield None
    if any(runtimes.values()):
        for job in existing.iterate(TRAIN_JOBS):
            kind, key = _runtime_of(job)
            is_concerned = key in runtimes.get(kind, ()) and _has_no_pods_yet(job, existing)
            yield key_of_job(job) if is_concerned else None


def _has_no_pods_yet(job: TrainJob, existing: ClusterReader) -> bool:
    """Whether the TrainJob is unfinished and not running, so that its PodGroup may change."""
    return not is_finished(job) and not runs(job, existing)


def _waits(info: Info) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each job with the earlier jobs that it depends on and the status that it awaits."""
    earlier: set[str] = set()
    for pod_set in info.pod_sets:
        statuses = {
            each.get("name"): each.get("status") for each in pod_set.job.get("dependsOn") or ()
        }
        # JobSet rejects a dependency on a job that does not exist or comes later.
        yield pod_set.name, {name: statuses[name] for name in statuses if name in earlier}
        earlier.add(pod_set.name)


def _completed_before(
    waits: Mapping[str, Mapping[str, str]], *, in_order: bool
) -> Mapping[str, int]:
    """Return by job the set of jobs that are complete before it starts, as a bit mask.

    With `in_order`, each job waits for all earlier ones: until they are ready, unless dependsOn
    specifies otherwise.
    """
    bits = {name: 1 << place for place, name in enumerate(waits)}
    completed: dict[str, int] = {}
    before_earlier = 0
    for name, awaited in waits.items():
        found = before_earlier if in_order else 0
        for other, state in awaited.items():
            found |= completed[other] | (bits[other] if state == COMPLETE else 0)
        completed[name] = found
        before_earlier |= found
    return completed


def _first_to_start(
    members: Sequence[PodSet], waits: Mapping[str, Mapping[str, str]], *, in_order: bool
) -> Iterator[PodSet]:
    """Yield the members with pods that do not wait for other members."""
    earlier_members: set[str] = set()
    for pod_set in members:
        waits_for_member = (
            bool(earlier_members)
            if in_order
            else not earlier_members.isdisjoint(waits[pod_set.name])
        )
        if waits_for_member or pod_set.total:  # a job without pods is ready at once
            earlier_members.add(pod_set.name)
        if pod_set.total and not waits_for_member:
            yield pod_set


def _minimum(info: Info, job: TrainJob) -> dict[str, Any]:
    """Return minMember and minResources: what must be free before the first pod starts."""
    quorum = gang_of(info).quorum
    limit_ranges = info.existing.list(LIMIT_RANGES, key_of_job(job).namespace)
    totals: dict[str, Quantity] = {}
    for pod_set in quorum:
        for name, amount in _requests(pod_set, info, limit_ranges).items():
            totals[name] = totals.get(name, ZERO) + amount * pod_set.total
    minimum: dict[str, Any] = {"minMember": sum(pod_set.total for pod_set in quorum)}
    if totals:
        minimum["minResources"] = {name: str(totals[name]) for name in sorted(totals)}
    return minimum


def _requests(
    pod_set: PodSet, info: Info, limit_ranges: Sequence[Manifest]
) -> Mapping[str, Quantity]:
    """Return the effective requests of one pod after admission."""
    admitted = with_defaults(pod_set.spec, limit_ranges)
    overhead = admitted.get("overhead") or _overhead(admitted.get("runtimeClassName"), info)
    try:
        return pod_requests({**admitted, "overhead": overhead})
    except QuantityError as error:
        raise PlanningError(
            f"cannot compute the requests of the pods of the job {pod_set.name} with their "
            f"LimitRanges and RuntimeClass: {error.path}: {error}"
        ) from None


def _overhead(runtime_class: str | None, info: Info) -> Mapping[str, Any] | None:
    """Return the overhead that the API server adds to pods of this RuntimeClass."""
    if not runtime_class:
        return None
    found = info.existing.get(RUNTIME_CLASSES, ObjectKey("", runtime_class))
    return ((found or {}).get("overhead") or {}).get("podFixed")


def _classes(runtime: AnyRuntime) -> set[str]:
    """Return the RuntimeClasses of the runtime's pods; the runtime may be invalid."""
    template = runtime.spec.template if runtime.spec else None
    jobs = ((template and template.spec) or {}).get("replicatedJobs") or ()
    return {_pod_spec(each).get("runtimeClassName") or "" for each in jobs}


def _pod_spec(replicated_job: Mapping[str, Any]) -> Mapping[str, Any]:
    inner: Mapping[str, Any] = replicated_job
    for key in ("template", "spec", "template", "spec"):
        inner = inner.get(key) or {}
    return inner


def _runtime_of(job: TrainJob) -> tuple[str, ObjectKey]:
    """Return the kind and key of the TrainJob's runtime; the kind is empty if not supported."""
    reference = job.spec.runtime_ref
    if reference.api_group != names.GROUP:
        return "", ObjectKey("", "")
    namespaced = reference.kind == names.TRAINING_RUNTIME
    namespace = (job.metadata.namespace or "") if namespaced else ""
    return reference.kind, ObjectKey(namespace, reference.name)
