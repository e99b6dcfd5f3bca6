"""Extension points of the plugin framework: a plugin inherits those that it implements.

A plugin is a class with a `name`. It is created without arguments and keeps no state between
calls. Phases run in the order below; within a phase, plugins run in the order in which they were
passed to the framework: built-in plugins first, then `plugins.enabled` of the configuration.

To reject an invalid runtime or TrainJob, raise `InvalidRuntimeError` or `InvalidTrainJobError`.
An exception that is not a `PlanningError` is reported as a failure of the plugin, with its name.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from kftrainer.api.trainjob import JobStatus, TrainJob
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.kube.objects.meta import Condition
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.framework.policies import Policy
from kftrainer.runtime.info import AnyRuntime, Info
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.podset import NodeLayout


@runtime_checkable
class Plugin(Protocol):
    """Attributes that every plugin has."""

    name: ClassVar[str]


@runtime_checkable
class EnforceMLPolicy(Plugin, Protocol):
    """Phase 1: prepare the pods for training: number of nodes, environment, ports, volumes."""

    @abstractmethod
    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        """Change `info` in place as the runtime's mlPolicy requires."""
        ...


@runtime_checkable
class EnforcePodGroupPolicy(Plugin, Protocol):
    """Phase 2: prepare the pods for a gang scheduler."""

    @abstractmethod
    def enforce_pod_group_policy(self, info: Info, job: TrainJob) -> None:
        """Change `info` in place as the runtime's podGroupPolicy requires."""
        ...


@runtime_checkable
class PodNetwork(Plugin, Protocol):
    """Phase 3: set the host names under which pods reach each other."""

    @abstractmethod
    def identify_pod_network(self, info: Info, job: TrainJob) -> None:
        """Set the endpoints of the PodSets in `info`."""
        ...


@runtime_checkable
class ComponentBuilder(Plugin, Protocol):
    """Phase 4: build the objects to apply.

    The objects of all plugins are applied in the order of `apply_order`.
    """

    @abstractmethod
    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        """Return the objects to apply; omit an existing object that must not be modified."""
        ...


@dataclass(frozen=True, slots=True)
class Observed:
    """Observed status of a TrainJob's objects; conditions are `Complete` and `Failed`."""

    conditions: Sequence[Condition] = ()
    jobs: Sequence[JobStatus] = ()
    suspended: bool | None = None  # whether the objects are suspended; None if not known


@runtime_checkable
class TrainJobStatus(Plugin, Protocol):
    """Phase 5, after the apply: observe the status. Exactly one plugin implements it."""

    @abstractmethod
    def observe_status(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        """Return the observed status; None if there is nothing to observe yet."""
        ...


@runtime_checkable
class CustomValidation(Plugin, Protocol):
    """At admission: validate a TrainJob before it is stored.

    `info` is in the state that phase 1 receives; `info.runtime` is the runtime without overrides.
    """

    @abstractmethod
    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Return errors, which reject the TrainJob, and warnings; `old` is None on create."""
        ...


@runtime_checkable
class RuntimeValidation(Plugin, Protocol):
    """At admission: validate a TrainingRuntime or ClusterTrainingRuntime before it is stored.

    `info` is in the state that phase 1 receives for a TrainJob that sets only its runtimeRef. It is
    None if the runtime cannot be used; the framework reports why.
    """

    @abstractmethod
    def validate_runtime(self, runtime: AnyRuntime, info: Info | None) -> ValidationResult:
        """Return errors, which reject the runtime, and warnings."""
        ...


@runtime_checkable
class PolicyExtension(Plugin, Protocol):
    """The policy that the plugin implements.

    The framework validates the policy of third-party plugins, and rejects TrainJobs whose runtime
    has the policy of a disabled plugin.
    """

    @abstractmethod
    def declare_policy(self) -> Policy[Any]:
        """Return where the policy is in a runtime, and its type."""
        ...


@runtime_checkable
class NodeLayoutExtension(Plugin, Protocol):
    """Before phase 1: the jobs of the runtime that train, if that is not only the trainer."""

    @abstractmethod
    def node_layout(self, runtime: AnyRuntime) -> NodeLayout | None:
        """Return the layout; None if the runtime does not have the plugin's policy."""
        ...


@dataclass(frozen=True, slots=True)
class Watch:
    """A kind to watch, and the TrainJobs to enqueue when one of its objects changes.

    Without `map_func`, the TrainJob that controls the object is enqueued; objects without such an
    owner are not cached, unless another watch of the kind has `map_func`. With `map_func`, the keys
    that it returns are enqueued. If it iterates over many objects, it should yield None for each
    one that is not affected, so that the event loop can run other tasks in between.
    """

    resource: Resource[Any]
    map_func: Callable[[Any, ClusterReader], Iterable[ObjectKey | None]] | None = None
    metadata_only: bool = False  # cache only the metadata, unless another watch needs the object


@runtime_checkable
class WatchExtension(Plugin, Protocol):
    """At start-up: declare the kinds whose changes affect TrainJobs."""

    @abstractmethod
    def declare_watches(self) -> Sequence[Watch]:
        """Return the kinds to watch; one that is not installed is watched once it is."""
        ...


@dataclass(frozen=True, slots=True)
class RBACRule:
    """A permission that the manager needs for a plugin."""

    resource: Resource[Any]
    verbs: tuple[str, ...]

    def manifest(self) -> dict[str, list[str]]:
        """Return the rule as in a ClusterRole."""
        return {
            "apiGroups": [self.resource.group],
            "resources": [self.resource.plural],
            "verbs": [*self.verbs],
        }


# Verbs for kinds that a plugin only watches, and for those that it also builds.
WATCH_VERBS = ("list", "watch")
APPLY_VERBS = ("get", "list", "watch", "create", "patch")


@runtime_checkable
class RBACExtension(Plugin, Protocol):
    """The permissions that the manager needs for the plugin; `kftrainer plugins` prints them."""

    @abstractmethod
    def declare_rbac_rules(self) -> Sequence[RBACRule]:
        """Return the rules for the kinds that the plugin builds, watches or reads."""
        ...


EXTENSION_POINTS = (
    EnforceMLPolicy,
    EnforcePodGroupPolicy,
    PodNetwork,
    ComponentBuilder,
    TrainJobStatus,
    CustomValidation,
    RuntimeValidation,
    PolicyExtension,
    NodeLayoutExtension,
    WatchExtension,
    RBACExtension,
)
