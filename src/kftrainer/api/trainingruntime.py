"""TrainingRuntime and ClusterTrainingRuntime: how jobs are run, as a platform team wrote it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kftrainer.api.markers import Cel, Embedded, Int32, ProcessesPerNode
from kftrainer.api.template import TemplateMetadata
from kftrainer.kube.meta import ObjectMeta
from kftrainer.kube.model import KubeModel, Opaque


class TorchPolicy(KubeModel):
    """PyTorch: each node gets the environment that torchrun reads."""

    num_proc_per_node: Annotated[
        ProcessesPerNode | None,
        Field(
            description="Processes on each node: a number; cpu or gpu for one on each of these; "
            "auto (the same as leaving it out) for one on each GPU or, without GPUs, on each CPU."
        ),
    ] = None


class MPIPolicy(KubeModel):
    """MPI: the launcher gets a hostfile, and all nodes get SSH keys."""

    num_proc_per_node: Annotated[
        Int32, Field(ge=1, description="Processes, and so slots, on each node.")
    ] = 1
    mpi_implementation: Annotated[
        Literal["OpenMPI", ""],
        Field(description="The MPI implementation; empty means OpenMPI."),
    ] = "OpenMPI"
    ssh_auth_mount_path: Annotated[
        str, Field(min_length=1, max_length=4096, description="Where the SSH keys are mounted.")
    ] = "/root/.ssh"
    run_launcher_as_node: Annotated[
        bool, Field(description="Whether the launcher trains as well and counts as a node.")
    ] = False


class MLPolicy(KubeModel):
    """How training is spread over nodes."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "[has(self.torch), has(self.mpi)].filter(x, x).size() <= 1",
            "Only one of the policy can be configured",
        ),
    )

    num_nodes: Annotated[
        Int32 | None,
        Field(ge=1, description="How many nodes to train on, unless the TrainJob says (1)."),
    ] = None
    torch: Annotated[TorchPolicy | None, Field(description="Train with PyTorch.")] = None
    mpi: Annotated[MPIPolicy | None, Field(description="Train with MPI.")] = None


class CoschedulingPolicy(KubeModel):
    """Gang scheduling by the coscheduling plugin of kubernetes-sigs/scheduler-plugins."""

    schedule_timeout_seconds: Annotated[
        Int32, Field(ge=0, description="How long the pods wait for each other, in seconds.")
    ] = 60


class NetworkTopology(KubeModel):
    """How close to each other in the network the nodes must be."""

    mode: Annotated[
        Literal["hard", "soft"],
        Field(description="Whether it must hold (hard) or had better hold (soft)."),
    ] = "hard"
    highest_tier_allowed: Annotated[
        int, Field(ge=0, description="The highest tier of switches that a job may span.")
    ] = 1


class VolcanoPolicy(KubeModel):
    """Gang scheduling by Volcano."""

    network_topology: Annotated[
        NetworkTopology | None, Field(description="Topology-aware scheduling.")
    ] = None


class PodGroupPolicy(KubeModel):
    """Whether the pods of a job are scheduled together or not at all, and by whom."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!(has(self.coscheduling) && has(self.volcano))",
            "Only one of coscheduling and volcano can be configured",
        ),
    )

    coscheduling: Annotated[
        CoschedulingPolicy | None, Field(description="Schedule with the coscheduling plugin.")
    ] = None
    volcano: Annotated[VolcanoPolicy | None, Field(description="Schedule with Volcano.")] = None


class JobSetTemplate(KubeModel):
    """The JobSet that jobs are made from."""

    min_properties: ClassVar[int] = 1

    metadata: Annotated[
        TemplateMetadata | None, Field(description="Labels and annotations for the JobSet.")
    ] = None
    spec: Annotated[
        Opaque | None, Embedded(""), Field(description="The JobSet's spec, with all its fields.")
    ] = None


class TrainingRuntimeSpec(KubeModel):
    """How jobs are run."""

    min_properties: ClassVar[int] = 1

    ml_policy: Annotated[
        MLPolicy | None, Field(description="How training is spread over nodes.")
    ] = None
    pod_group_policy: Annotated[
        PodGroupPolicy | None, Field(description="Whether pods are scheduled together.")
    ] = None
    template: Annotated[
        JobSetTemplate | None, Field(description="The JobSet that jobs are made from.")
    ] = None


class TrainingRuntime(KubeModel):
    """A way to run training jobs, for the TrainJobs of one namespace."""

    api_version: Literal["trainer.kubeflow.org/v1alpha1"]
    kind: Literal["TrainingRuntime"]
    metadata: ObjectMeta
    spec: Annotated[TrainingRuntimeSpec | None, Field(description="How jobs are run.")] = None


class ClusterTrainingRuntime(KubeModel):
    """A way to run training jobs, for TrainJobs in every namespace."""

    api_version: Literal["trainer.kubeflow.org/v1alpha1"]
    kind: Literal["ClusterTrainingRuntime"]
    metadata: ObjectMeta
    spec: Annotated[TrainingRuntimeSpec | None, Field(description="How jobs are run.")] = None
