"""Info: the intermediate form of a TrainJob, which plugins change during one plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainingruntime import (
    ClusterTrainingRuntime,
    MLPolicy,
    PodGroupPolicy,
    TrainingRuntime,
    TrainingRuntimeSpec,
)
from kftrainer.api.trainjob import Trainer, TrainJob
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.model import KubeModel
from kftrainer.kube.objects.resource import Manifest, ObjectKey, is_controlled_by
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.podset import TRAINER_ONLY, Container, NodeLayout, PodSet
from kftrainer.runtime.resources.claims import NO_CLAIMS, ClaimedDevices
from kftrainer.runtime.resources.devices import accelerators
from kftrainer.runtime.trace import Trace

AnyRuntime = TrainingRuntime | ClusterTrainingRuntime
NO_TRAINER = Trainer()
DEFAULT = "default"  # source of a value that neither the TrainJob nor the runtime sets
FINAL_CONDITIONS = (names.CONDITION_COMPLETE, names.CONDITION_FAILED)
RUNTIME = "runtime"  # prefix of sources that are fields of the runtime, not of the TrainJob


@dataclass(slots=True)
class Info:
    """Intermediate form of one TrainJob; the plugins of each phase change it in place.

    `template` is the runtime's JobSet spec with the TrainJob's overrides, runtime patches and
    resources applied. The PodSets are views of its replicated jobs, in the same order: changing a
    PodSet changes the template.
    """

    runtime: AnyRuntime
    existing: ClusterReader
    template: dict[str, Any]
    pod_sets: Sequence[PodSet]
    labels: dict[str, str]  # of the JobSet
    annotations: dict[str, str]
    trace: Trace
    layout: NodeLayout = TRAINER_ONLY
    command: list[str] | None = None  # command of the trainer, if it replaces the template's
    command_source: str = "spec.trainer.command"
    reserved_env: set[str] = field(default_factory=set)  # names that the TrainJob cannot set
    claimed: ClaimedDevices = NO_CLAIMS  # in the TrainJob's resource claims, per node
    # The following are read dozens of times per plan, so they are computed once.
    # The policy of a training framework in mlPolicy, or None.
    policy: KubeModel | None = field(init=False)
    # The pods that train or start the training; None if no job has the step `trainer`.
    trainer: PodSet | None = field(init=False)
    trainer_container: Container | None = field(init=False)  # container of the trainer

    def __post_init__(self) -> None:
        ml_policy = self.ml_policy
        self.policy = ml_policy.source if ml_policy else None
        self.trainer = next(iter(self.with_ancestor(names.STEP_TRAINER)), None)
        self.trainer_container = None
        if self.trainer is not None:
            self.trainer_container = trainer_container(self.trainer, self.layout)

    @property
    def runtime_metadata(self) -> ObjectMeta:
        """Metadata of the runtime."""
        return self.runtime.metadata

    @property
    def runtime_spec(self) -> TrainingRuntimeSpec:
        """Spec of the runtime, without overrides of the TrainJob."""
        return self.runtime.spec or TrainingRuntimeSpec()

    @property
    def ml_policy(self) -> MLPolicy | None:
        """The runtime's mlPolicy."""
        return self.runtime_spec.ml_policy

    @property
    def pod_group_policy(self) -> PodGroupPolicy | None:
        """The runtime's podGroupPolicy; None if pods are not gang-scheduled."""
        return self.runtime_spec.pod_group_policy

    def pod_set(self, name: str) -> PodSet | None:
        """Return the PodSet of the replicated job with this name, or None."""
        return next((each for each in self.pod_sets if each.name == name), None)

    @property
    def worker(self) -> PodSet | None:
        """The PodSet of the nodes if they are not the trainer's pods, or None."""
        worker = None if self.layout.worker is None else self.pod_set(self.layout.worker)
        return None if worker is self.trainer else worker

    def with_ancestor(self, step: str) -> Sequence[PodSet]:
        """Return the PodSets of the jobs that are labelled as this step."""
        return [each for each in self.pod_sets if each.ancestor == step]

    def num_nodes(self, job: TrainJob) -> int | None:
        """Return the number of nodes from the TrainJob or else the runtime; None if not set."""
        own = (job.spec.trainer or NO_TRAINER).num_nodes
        if own is not None:
            return own
        return self.ml_policy.num_nodes if self.ml_policy else None

    def num_nodes_source(self, job: TrainJob) -> str:
        """Return the field that `num_nodes` comes from, for `--explain`."""
        if (job.spec.trainer or NO_TRAINER).num_nodes is not None:
            return "spec.trainer.numNodes"
        return DEFAULT if self.num_nodes(job) is None else f"{RUNTIME} spec.mlPolicy.numNodes"

    def devices(self, resources: Mapping[str, Any]) -> int:
        """Return the number of accelerators of a node whose container has these resources."""
        return accelerators(resources) + self.claimed.count

    def subdomain(self, job: TrainJob) -> str:
        """Return the DNS subdomain of the pods' host names."""
        network: Mapping[str, Any] = self.template.get("network") or {}
        return network.get("subdomain") or job.metadata.name

    def first_host(self, job: TrainJob, pod_set: PodSet) -> str:
        """Return the host name of the first pod of the PodSet, in its first replica."""
        return f"{job.metadata.name}-{pod_set.name}-0-0.{self.subdomain(job)}"


def trainer_container(pod_set: PodSet, layout: NodeLayout) -> Container | None:
    """Return the container of the PodSet that `spec.trainer` of a TrainJob configures."""
    found = map(pod_set.container, layout.container_names(pod_set.name))
    return next((each for each in found if each is not None), None)


def key_of_job(job: TrainJob, name: str | None = None) -> ObjectKey:
    """Return the key of an object in the TrainJob's namespace, by default with its name."""
    return ObjectKey(job.metadata.namespace or "", name or job.metadata.name)


def own_job_set(job: TrainJob, existing: ClusterReader) -> Manifest | None:
    """Return the JobSet that the TrainJob controls, unless its status records another UID.

    Every client that may write JobSets can set an owner reference; only the controller writes the
    status of TrainJobs.
    """
    found = claimed_job_set(job, existing)
    recorded = recorded_job_set(job)
    return found if found is None or recorded in (None, found["metadata"].get("uid")) else None


def claimed_job_set(job: TrainJob, existing: ClusterReader) -> Manifest | None:
    """Return the JobSet of the TrainJob's name whose owner reference names it as controller."""
    found = existing.get(JOB_SETS, key_of_job(job))
    if found is None or not is_controlled_by(found["metadata"], job.metadata.uid):
        return None
    return found


def recorded_job_set(job: TrainJob) -> str | None:
    """Return the UID of the JobSet that the TrainJob's status records, or None."""
    reference = None if job.status is None else job.status.job_set
    return None if reference is None else reference.uid


def runs(job: TrainJob, existing: ClusterReader) -> bool:
    """Whether the TrainJob and its JobSet are not suspended, so that pods may exist."""
    job_set = own_job_set(job, existing)
    return not job.spec.suspend and job_set is not None and not job_set["spec"].get("suspend")


def is_finished(job: TrainJob) -> bool:
    """Whether the training is complete or failed."""
    conditions = (job.status.conditions if job.status is not None else None) or ()
    return any(is_final(each.type, each.status, each.reason) for each in conditions)


def is_final(condition: object, status: object, reason: object) -> bool:
    """Whether a condition of a TrainJob reports that the training has ended.

    `Failed` because of an unsupported runtime does not: that training never began, and begins when
    a manager that supports the runtime takes over.
    """
    return (
        condition in FINAL_CONDITIONS
        and status == "True"
        and reason != names.REASON_RUNTIME_NOT_SUPPORTED
    )
