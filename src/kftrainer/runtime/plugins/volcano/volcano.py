"""Volcano plugin: gang scheduling with queues, priorities and network topology."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from kftrainer.api.resources import PRIORITY_CLASSES, VOLCANO_POD_GROUPS
from kftrainer.api.trainingruntime import VolcanoPolicy
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import FieldError, ValidationResult, invalid
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.framework.extension_points import (
    WATCH_VERBS,
    ComponentBuilder,
    CustomValidation,
    EnforcePodGroupPolicy,
    PolicyExtension,
    RBACExtension,
    RBACRule,
    RuntimeValidation,
    Watch,
    WatchExtension,
)
from kftrainer.runtime.framework.policies import FieldPolicy
from kftrainer.runtime.info import RUNTIME, AnyRuntime, Info
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.plugins.gang import (
    gang_of,
    pod_group,
    rbac_rules,
    scheduler_warnings,
    watches,
)
from kftrainer.runtime.plugins.volcano.queue import EMPTY_QUEUE, QUEUE, queue_errors
from kftrainer.runtime.plugins.volcano.rules import VolcanoRule

GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
PATH = "spec.podGroupPolicy.volcano"
SOURCE = f"{RUNTIME} {PATH}"
ADVICE = "schedulerName: volcano"
POLICY = FieldPolicy(
    PATH, lambda spec: spec.pod_group_policy.volcano if spec.pod_group_policy else None
)
# PriorityClasses that exist in every cluster.
SYSTEM_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})


class Volcano(
    EnforcePodGroupPolicy,
    ComponentBuilder,
    CustomValidation,
    RuntimeValidation,
    PolicyExtension,
    WatchExtension,
    RBACExtension,
):
    """Build the PodGroup and annotate its pods, for runtimes with a volcano policy."""

    name: ClassVar[str] = "Volcano"

    def enforce_pod_group_policy(self, info: Info, job: TrainJob) -> None:
        """Annotate the pods of the gang."""
        if POLICY.of(info.runtime) is not None:
            for pod_set in gang_of(info).members:
                key = GROUP_ANNOTATION
                pod_set.set_pod_annotation(key, job.metadata.name, SOURCE)

    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        """Return the PodGroup, unless it exists and the TrainJob runs."""
        policy = POLICY.of(info.runtime)
        if policy is None:
            return ()
        return pod_group(VOLCANO_POD_GROUPS, info, job, _spec(info, policy), _sources(job))

    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Validate that the queue has a name and that the PriorityClasses exist."""
        findings = ValidationResult()
        if POLICY.of(info.runtime) is not None:
            findings.add_errors(*_queue_errors(info, new), *_priority_errors(info, new))
        return findings

    def validate_runtime(self, runtime: AnyRuntime, info: Info | None) -> ValidationResult:
        """Validate the name of the queue, and warn about pods of the gang without a scheduler."""
        return ValidationResult([*queue_errors(runtime)], [*scheduler_warnings(info, PATH, ADVICE)])

    def declare_policy(self) -> FieldPolicy[VolcanoPolicy]:
        """Return the policy `volcano`."""
        return POLICY

    def declare_rbac_rules(self) -> Sequence[RBACRule]:
        """Return the rules for PodGroups, the kinds that affect them, and PriorityClasses."""
        # `get` is for the webhook, which reads a PriorityClass again before it rejects a TrainJob.
        classes = RBACRule(PRIORITY_CLASSES, ("get", *WATCH_VERBS))
        return (*rbac_rules(VOLCANO_POD_GROUPS), classes)

    def declare_watches(self) -> Sequence[Watch]:
        """Watch PodGroups, the kinds that affect their minimum resources, and PriorityClasses."""
        return (*watches(VOLCANO_POD_GROUPS), Watch(PRIORITY_CLASSES, map_func=_no_jobs))


def _no_jobs(_changed: Manifest, _existing: ClusterReader) -> Iterable[ObjectKey]:
    """Enqueue nothing: PriorityClasses are only read at admission."""
    return ()


def _spec(info: Info, policy: VolcanoPolicy) -> dict[str, Any]:
    """Return the PodGroup's queue, priority and topology."""
    spec: dict[str, Any] = {}
    if QUEUE in info.annotations:
        spec["queue"] = info.annotations[QUEUE]
    if priority := next(_priorities(info), None):
        spec["priorityClassName"] = priority
    if topology := policy.network_topology:
        spec["networkTopology"] = {
            "mode": topology.mode,
            "highestTierAllowed": topology.highest_tier_allowed,
        }
    return spec


def _sources(job: TrainJob) -> dict[str, str]:
    template = f"{RUNTIME} spec.template"
    annotations = (
        "spec.annotations"
        if QUEUE in (job.spec.annotations or {})
        else (f"{template}.metadata.annotations")
    )
    return {
        "queue": f"{annotations}[{QUEUE}]",
        "priorityClassName": f"{template}.spec",
        "networkTopology": f"{SOURCE}.networkTopology",
    }


def _priorities(info: Info) -> Iterator[str]:
    """Yield the PriorityClasses of the gang's pods, the trainer's first."""
    for pod_set in sorted(gang_of(info).members, key=lambda each: each is not info.trainer):
        if name := pod_set.spec.get("priorityClassName"):
            yield name


def _queue_errors(info: Info, job: TrainJob) -> Iterator[FieldError]:
    if info.annotations.get(QUEUE) != "":
        return
    if QUEUE in (job.spec.annotations or {}):
        yield invalid(f"spec.annotations[{QUEUE}]", "", EMPTY_QUEUE, rule=VolcanoRule.VOLCANO_QUEUE)
    else:
        runtime = f"{info.runtime.kind} {info.runtime_metadata.name}"
        where = f"spec.template.metadata.annotations[{QUEUE}] of {runtime}"
        detail = (
            f"{EMPTY_QUEUE}: it is empty in {where}; set it there or in spec.annotations[{QUEUE}]"
        )
        reference = job.spec.runtime_ref.dump()
        yield invalid("spec.runtimeRef", reference, detail, rule=VolcanoRule.VOLCANO_QUEUE)


def _priority_errors(info: Info, job: TrainJob) -> Iterator[FieldError]:
    if not info.existing.is_complete(PRIORITY_CLASSES):
        return
    for name in dict.fromkeys(each.spec.get("priorityClassName") for each in info.pod_sets):
        key = ObjectKey("", name or "")
        if name and name not in SYSTEM_CLASSES and info.existing.get(PRIORITY_CLASSES, key) is None:
            missing = f'{PRIORITY_CLASSES.group_kind} "{name}" not found'
            detail = f'PriorityClass "{name}" doesn\'t exist: {missing}'
            reference = job.spec.runtime_ref.dump()
            yield invalid("spec.runtimeRef", reference, detail, rule=VolcanoRule.VOLCANO_PRIORITY)
