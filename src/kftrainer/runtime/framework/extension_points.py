"""The extension points of the framework: a plugin inherits those that it has something to do in.

Plugins are plain classes with a `name`, made without arguments, and keep nothing between calls.
They run in the order of the phases below and, within a phase, in the order in which the framework
was given them. Mistakes in documents are told as `InvalidRuntimeError` or `InvalidTrainJobError`.
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
from kftrainer.runtime.info import Info
from kftrainer.runtime.planned_object import PlannedObject


@runtime_checkable
class Plugin(Protocol):
    """What every plugin has."""

    name: ClassVar[str]


@runtime_checkable
class EnforceMLPolicy(Plugin, Protocol):
    """Phase 1: prepares the pods for a framework: counts, environment, ports, volumes."""

    @abstractmethod
    def enforce_ml_policy(self, info: Info, job: TrainJob) -> None:
        """Change the info as the runtime's mlPolicy says."""
        ...


@runtime_checkable
class EnforcePodGroupPolicy(Plugin, Protocol):
    """Phase 2: prepares the pods for a scheduler that starts them together."""

    @abstractmethod
    def enforce_pod_group_policy(self, info: Info, job: TrainJob) -> None:
        """Change the info as the runtime's podGroupPolicy says."""
        ...


@runtime_checkable
class PodNetwork(Plugin, Protocol):
    """Phase 3: says under which names the pods find each other."""

    @abstractmethod
    def identify_pod_network(self, info: Info, job: TrainJob) -> None:
        """Set the endpoints of the PodSets."""
        ...


@runtime_checkable
class ComponentBuilder(Plugin, Protocol):
    """Phase 4: makes objects; those of all plugins are applied as `apply_order` sorts them."""

    @abstractmethod
    def build_components(self, info: Info, job: TrainJob) -> Sequence[PlannedObject]:
        """The objects that are to be applied now; none for what is to be left as it is."""
        ...


@dataclass(frozen=True, slots=True)
class Observed:
    """How the objects of a TrainJob are doing; conditions are `Complete` and `Failed`."""

    conditions: Sequence[Condition] = ()
    jobs: Sequence[JobStatus] = ()
    suspended: bool | None = None  # whether the objects are; None where that is not known


@runtime_checkable
class TrainJobStatus(Plugin, Protocol):
    """Phase 5, after applying: reads how it goes; one plugin does that, and only one."""

    @abstractmethod
    def observe_status(self, job: TrainJob, existing: ClusterReader) -> Observed | None:
        """What is seen; None while there is nothing to see yet."""
        ...


@runtime_checkable
class CustomValidation(Plugin, Protocol):
    """At admission: finds what is wrong with a TrainJob before anything is made for it.

    The info is as phase 1 finds it; `info.runtime` is the runtime before any override.
    """

    @abstractmethod
    def validate_train_job(
        self, info: Info, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """What is wrong; `old` is None when the TrainJob is created."""
        ...


@dataclass(frozen=True, slots=True)
class Watch:
    """A kind to watch, and which TrainJobs to look at when one of its objects changes.

    `wakes` is None for objects that belong to TrainJobs: their owners are looked at. One that looks
    at many objects yields None for those that are not concerned, so that others get their turn.
    """

    resource: Resource[Any]
    wakes: Callable[[Any, ClusterReader], Iterable[ObjectKey | None]] | None = None
    metadata_only: bool = False  # nobody needs to see what is in them


@runtime_checkable
class WatchExtension(Plugin, Protocol):
    """At start-up: says which kinds concern TrainJobs."""

    @abstractmethod
    def declare_watches(self) -> Sequence[Watch]:
        """The kinds to watch, now or as soon as they are installed."""
        ...


EXTENSION_POINTS = (
    EnforceMLPolicy,
    EnforcePodGroupPolicy,
    PodNetwork,
    ComponentBuilder,
    TrainJobStatus,
    CustomValidation,
    WatchExtension,
)
