"""Info: the one thing that changes while a TrainJob is planned, and that nobody keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainingruntime import (
    ClusterTrainingRuntime,
    MLPolicy,
    MPIPolicy,
    PodGroupPolicy,
    TorchPolicy,
    TrainingRuntime,
    TrainingRuntimeSpec,
)
from kftrainer.api.trainjob import Trainer, TrainJob
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.podset import Container, PodSet
from kftrainer.runtime.trace import Trace

AnyRuntime = TrainingRuntime | ClusterTrainingRuntime
NO_TRAINER = Trainer()
DEFAULT = "default"  # how sources say that nobody says it
RUNTIME = "runtime"  # how sources say that a value comes from the runtime, not from the TrainJob


@dataclass(slots=True)
class Info:
    """What is known and wanted of one TrainJob; plugins change it, phase by phase.

    `template` is the runtime's JobSet spec with the TrainJob's overrides and resources in it. The
    PodSets show its replicated jobs, in the same order: changing them changes the template.
    """

    runtime: AnyRuntime
    existing: ClusterReader
    template: dict[str, Any]
    pod_sets: Sequence[PodSet]
    labels: dict[str, str]  # of the JobSet
    annotations: dict[str, str]
    tape: Trace
    command: list[str] | None = None  # of the trainer, where it is not the template's
    command_source: str = "spec.trainer.command"
    reserved_env: set[str] = field(default_factory=set)  # names that the TrainJob cannot set
    # These are asked for dozens of times, so they are found once.
    policy: TorchPolicy | MPIPolicy | None = field(init=False)  # what trains; None if plain
    # The pods that train, or that start the training; None if no job has the step `trainer`.
    trainer: PodSet | None = field(init=False)
    trainer_container: Container | None = field(init=False)  # None exactly if `trainer` is

    def __post_init__(self) -> None:
        ml_policy = self.ml_policy
        self.policy = (ml_policy.torch or ml_policy.mpi) if ml_policy else None
        self.trainer = next(iter(self.with_ancestor(names.STEP_TRAINER)), None)
        self.trainer_container = None
        if self.trainer is not None:
            self.trainer_container = trainer_container(self.trainer, self.policy)

    @property
    def runtime_metadata(self) -> ObjectMeta:
        """The runtime's own metadata."""
        return self.runtime.metadata

    @property
    def runtime_spec(self) -> TrainingRuntimeSpec:
        """The runtime as its author wrote it."""
        return self.runtime.spec or TrainingRuntimeSpec()

    @property
    def ml_policy(self) -> MLPolicy | None:
        """How training is spread over nodes."""
        return self.runtime_spec.ml_policy

    @property
    def pod_group_policy(self) -> PodGroupPolicy | None:
        """Whether pods are scheduled together, and by whom."""
        return self.runtime_spec.pod_group_policy

    def pod_set(self, name: str) -> PodSet | None:
        """The pods of the replicated job of this name."""
        return next((each for each in self.pod_sets if each.name == name), None)

    def with_ancestor(self, step: str) -> Sequence[PodSet]:
        """The pods that do this step."""
        return [each for each in self.pod_sets if each.ancestor == step]

    def num_nodes(self, job: TrainJob) -> int | None:
        """How many nodes to train on, as the TrainJob or else the runtime says."""
        asked = (job.spec.trainer or NO_TRAINER).num_nodes
        if asked is not None:
            return asked
        return self.ml_policy.num_nodes if self.ml_policy else None

    def num_nodes_source(self, job: TrainJob) -> str:
        """Which field that comes from."""
        if (job.spec.trainer or NO_TRAINER).num_nodes is not None:
            return "spec.trainer.numNodes"
        return DEFAULT if self.num_nodes(job) is None else f"{RUNTIME} spec.mlPolicy.numNodes"

    def subdomain(self, job: TrainJob) -> str:
        """The domain that the pods' host names are in."""
        network: Mapping[str, Any] = self.template.get("network") or {}
        return network.get("subdomain") or job.metadata.name

    def first_host(self, job: TrainJob, pod_set: PodSet) -> str:
        """The host name of the first pod of the set, in its first replica."""
        return f"{job.metadata.name}-{pod_set.name}-0-0.{self.subdomain(job)}"


def trainer_container(pod_set: PodSet, policy: TorchPolicy | MPIPolicy | None) -> Container | None:
    """The container that the TrainJob's trainer is about, in a set of pods that train."""
    found = map(pod_set.container, container_names(pod_set.name, policy))
    return next((each for each in found if each is not None), None)


def container_names(job_name: str, policy: object) -> tuple[str, ...]:
    """What the container that trains can be called in this job, the better name first."""
    if isinstance(policy, MPIPolicy) and job_name == names.JOB_LAUNCHER:
        return names.CONTAINER_NODE, names.JOB_LAUNCHER
    return (names.CONTAINER_NODE,)


def key_of_job(job: TrainJob, name: str | None = None) -> ObjectKey:
    """The key of an object in the TrainJob's namespace, of the same name unless told otherwise."""
    return ObjectKey(job.metadata.namespace or "", name or job.metadata.name)


def own_job_set(job: TrainJob, existing: ClusterReader) -> Manifest | None:
    """Return the TrainJob's JobSet, unless the status records that another one was created.

    Every client that may write JobSets can set an owner reference; only the controller writes the
    status of TrainJobs.
    """
    found = claimed_job_set(job, existing)
    recorded = recorded_job_set(job)
    return found if found is None or recorded in (None, found["metadata"].get("uid")) else None


def claimed_job_set(job: TrainJob, existing: ClusterReader) -> Manifest | None:
    """Return the JobSet of the TrainJob's name whose owner reference names it as controller."""
    found = existing.get(JOB_SETS, key_of_job(job))
    return found if found is not None and is_controlled_by(found, job) else None


def recorded_job_set(job: TrainJob) -> str | None:
    """Return the UID of the TrainJob's JobSet as its status records it."""
    reference = None if job.status is None else job.status.job_set
    return None if reference is None else reference.uid


def runs(job: TrainJob, existing: ClusterReader) -> bool:
    """Whether there are pods, so that what was made for them is to stay as it is."""
    job_set = own_job_set(job, existing)
    return not job.spec.suspend and job_set is not None and not job_set["spec"].get("suspend")


def is_controlled_by(manifest: Manifest, job: TrainJob) -> bool:
    """Whether the object belongs to this very TrainJob."""
    return any(
        reference.get("controller") and reference.get("uid") == job.metadata.uid
        for reference in manifest["metadata"].get("ownerReferences") or ()
    )
