"""Types of the TrainingRuntime and ClusterTrainingRuntime APIs."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kftrainer.api import names
from kftrainer.api.schema.markers import (
    Atomic,
    Cel,
    Embedded,
    Int32,
    NotServed,
    ProcessesPerNode,
    list_map,
)
from kftrainer.api.template_metadata import TemplateMetadata
from kftrainer.api.unserved_policies import (
    ElasticPolicy,
    FluxPolicy,
    JaxPolicy,
    XGBoostPolicy,
)
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.model import KubeModel, Opaque

# A policy is applied as a whole: if server-side apply removes the last field of a granular object,
# the API server computes null instead of {} and rejects it.
WHOLE = Atomic()


class EnvInjectionTarget(KubeModel):
    """Containers of a job."""

    job_name: Annotated[
        str, Field(min_length=1, max_length=63, description="Name of the replicated job.")
    ]
    container_names: Annotated[
        list[str],
        Atomic(),
        Cel(
            f"self.all(name, name != '{names.CONTAINER_NODE}')",
            f"must not contain {names.CONTAINER_NODE}: this container always gets the environment",
        ),
        Field(min_length=1, max_length=8, description="Names of containers and init containers."),
    ]


class EnvInjection(KubeModel):
    """Containers besides the trainer's that get the environment of torchrun."""

    targets: Annotated[
        list[EnvInjectionTarget] | None,
        list_map("jobName"),
        Field(max_length=16, description="The jobs and their containers."),
    ] = None


class TorchPolicy(KubeModel):
    """PyTorch: each node gets the environment that torchrun reads."""

    num_proc_per_node: Annotated[
        ProcessesPerNode | None,
        Field(
            description="Number of processes per node. cpu or gpu: one per CPU or GPU. auto (the "
            "default): one per GPU or, without GPUs, one per CPU."
        ),
    ] = None
    elastic_policy: Annotated[
        ElasticPolicy | None,
        NotServed(
            "elasticPolicy",
            "2.0 and 2.1, where it has no effect",
            "set spec.mlPolicy.numNodes",
            was_inert=True,
        ),
        Field(description="Not supported: set numNodes."),
    ] = None
    env_injection: Annotated[
        EnvInjection | None,
        Field(description="Other containers that get the environment of torchrun."),
    ] = None


class MPIPolicy(KubeModel):
    """MPI: the launcher gets a hostfile, and all nodes get SSH keys."""

    num_proc_per_node: Annotated[
        Int32, Field(ge=1, description="Number of processes, and of MPI slots, per node.")
    ] = 1
    mpi_implementation: Annotated[
        Literal["OpenMPI", "Intel", "MPICH", ""],
        Field(
            description="The MPI implementation, whose mpirun gets its variables and its form of "
            "the hostfile; empty means OpenMPI."
        ),
    ] = "OpenMPI"
    ssh_auth_mount_path: Annotated[
        str,
        Field(min_length=1, max_length=4096, description="Path at which the SSH keys are mounted."),
    ] = "/root/.ssh"
    run_launcher_as_node: Annotated[
        bool, Field(description="Whether the launcher also trains and counts as a node.")
    ] = False


class MLPolicy(KubeModel):
    """How the training is distributed over nodes."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "[has(self.torch), has(self.mpi)].filter(x, x).size() <= 1",
            "Only one of the policy can be configured",
        ),
    )

    num_nodes: Annotated[
        Int32 | None,
        Field(ge=1, description="Number of nodes if the TrainJob does not set it; 1 by default."),
    ] = None
    torch: Annotated[TorchPolicy | None, WHOLE, Field(description="Train with PyTorch.")] = None
    mpi: Annotated[MPIPolicy | None, WHOLE, Field(description="Train with MPI.")] = None
    jax: Annotated[
        JaxPolicy | None,
        NotServed(
            "jax",
            "2.2",
            "leave it out and set JAX_NUM_PROCESSES, JAX_PROCESS_ID and JAX_COORDINATOR_ADDRESS "
            "in the runtime's pod template",
            is_in_job_set=True,
        ),
        Field(description="Not supported: set the variables of JAX in the pod template."),
    ] = None
    xgboost: Annotated[
        XGBoostPolicy | None,
        NotServed(
            "xgboost",
            "2.2",
            "leave it out and set DMLC_TRACKER_URI, DMLC_TRACKER_PORT, DMLC_TASK_ID and "
            "DMLC_NUM_WORKER in the runtime's pod template",
            is_in_job_set=True,
        ),
        Field(description="Not supported: set the variables of XGBoost in the pod template."),
    ] = None
    flux: Annotated[
        FluxPolicy | None,
        NotServed("flux", "2.2", "use spec.mlPolicy.mpi", is_in_job_set=True),
        Field(description="Not supported: use mpi."),
    ] = None

    @property
    def source(self) -> TorchPolicy | MPIPolicy | None:
        """The policy of a training framework, or None; upstream calls it MLPolicySource."""
        return self.torch or self.mpi


class CoschedulingPolicy(KubeModel):
    """Gang scheduling by the coscheduling plugin of kubernetes-sigs/scheduler-plugins."""

    schedule_timeout_seconds: Annotated[
        Int32, Field(ge=0, description="Time in seconds to wait until all pods can be scheduled.")
    ] = 60


class NetworkTopology(KubeModel):
    """How close the nodes must be to each other in the network."""

    mode: Annotated[
        Literal["hard", "soft"],
        Field(description="hard: required; soft: preferred."),
    ] = "hard"
    highest_tier_allowed: Annotated[
        int, Field(ge=0, description="The highest network tier that a job may span.")
    ] = 1


class VolcanoPolicy(KubeModel):
    """Gang scheduling by Volcano."""

    network_topology: Annotated[
        NetworkTopology | None, WHOLE, Field(description="Topology-aware scheduling.")
    ] = None


class PodGroupPolicy(KubeModel):
    """Gang scheduling: the pods of a TrainJob are scheduled together or not at all."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!(has(self.coscheduling) && has(self.volcano))",
            "Only one of coscheduling and volcano can be configured",
        ),
    )

    coscheduling: Annotated[
        CoschedulingPolicy | None,
        WHOLE,
        Field(description="Schedule with the coscheduling plugin."),
    ] = None
    volcano: Annotated[VolcanoPolicy | None, WHOLE, Field(description="Schedule with Volcano.")] = (
        None
    )


class JobSetTemplate(KubeModel):
    """The template of the JobSet."""

    min_properties: ClassVar[int] = 1

    metadata: Annotated[
        TemplateMetadata | None, Field(description="Labels and annotations for the JobSet.")
    ] = None
    spec: Annotated[Opaque | None, Embedded(""), Field(description="The spec of the JobSet.")] = (
        None
    )


class TrainingRuntimeSpec(KubeModel):
    """How TrainJobs are run."""

    min_properties: ClassVar[int] = 1

    ml_policy: Annotated[
        MLPolicy | None, Field(description="How the training is distributed over nodes.")
    ] = None
    pod_group_policy: Annotated[
        PodGroupPolicy | None, Field(description="Gang scheduling of the pods.")
    ] = None
    template: Annotated[
        JobSetTemplate | None,
        Field(description="The template of the JobSet that is created for each TrainJob."),
    ] = None


class TrainingRuntime(KubeModel):
    """Defines how TrainJobs are run; for TrainJobs of the same namespace."""

    api_version: Literal["trainer.kubeflow.org/v1alpha1"]
    kind: Literal["TrainingRuntime"]
    metadata: ObjectMeta
    spec: Annotated[TrainingRuntimeSpec | None, Field(description="How TrainJobs are run.")] = None


class ClusterTrainingRuntime(KubeModel):
    """Defines how TrainJobs are run; for TrainJobs of all namespaces."""

    api_version: Literal["trainer.kubeflow.org/v1alpha1"]
    kind: Literal["ClusterTrainingRuntime"]
    metadata: ObjectMeta
    spec: Annotated[TrainingRuntimeSpec | None, Field(description="How TrainJobs are run.")] = None
