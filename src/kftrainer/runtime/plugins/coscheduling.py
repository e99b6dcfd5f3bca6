"""CoScheduling plugin: gang scheduling with kubernetes-sigs/scheduler-plugins."""

from collections.abc import Sequence
from typing import ClassVar

from kftrainer.api.resources import COSCHEDULING_POD_GROUPS
from kftrainer.api.trainingruntime import CoschedulingPolicy
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.runtime.framework.extension_points import (
    ComponentBuilder,
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

POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
PATH = "spec.podGroupPolicy.coscheduling"
SOURCE = f"{RUNTIME} {PATH}"
ADVICE = "schedulerName, unless the default scheduler has the plugin"
POLICY = FieldPolicy(
    PATH, lambda spec: spec.pod_group_policy.coscheduling if spec.pod_group_policy else None
)


class CoScheduling(
    EnforcePodGroupPolicy,
    ComponentBuilder,
    RuntimeValidation,
    PolicyExtension,
    WatchExtension,
    RBACExtension,
):
    """Build the PodGroup and label its pods, for runtimes with a coscheduling policy."""

    name: ClassVar[str] = "CoScheduling"

    def enforce_pod_group_policy(self, info: Info, job: TrainJob) -> None:
        """Label the pods of the gang."""
        if POLICY.of(info.runtime) is not None:
            for pod_set in gang_of(info).members:
                pod_set.set_pod_label(POD_GROUP_LABEL, job.metadata.name, SOURCE)

    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        """Return the PodGroup, unless it exists and the TrainJob runs."""
        policy = POLICY.of(info.runtime)
        if policy is None:
            return ()
        field = "scheduleTimeoutSeconds"
        spec = {field: policy.schedule_timeout_seconds}
        return pod_group(COSCHEDULING_POD_GROUPS, info, job, spec, {field: f"{SOURCE}.{field}"})

    def validate_runtime(self, _runtime: AnyRuntime, info: Info | None) -> ValidationResult:
        """Warn about pods of the gang without a scheduler."""
        return ValidationResult(warnings=[*scheduler_warnings(info, PATH, ADVICE)])

    def declare_policy(self) -> FieldPolicy[CoschedulingPolicy]:
        """Return the policy `coscheduling`."""
        return POLICY

    def declare_rbac_rules(self) -> Sequence[RBACRule]:
        """Return the rules for PodGroups and the kinds that affect their minimum resources."""
        return rbac_rules(COSCHEDULING_POD_GROUPS)

    def declare_watches(self) -> Sequence[Watch]:
        """Watch PodGroups, and the kinds that affect their minimum resources."""
        return watches(COSCHEDULING_POD_GROUPS)
