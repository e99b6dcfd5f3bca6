"""Types of the TrainJob API."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kftrainer.api import names
from kftrainer.api.overrides import (
    CONTAINER,
    MOST,
    POD,
    LegacyPodSpecOverride,
    PodTemplateOverride,
)
from kftrainer.api.runtime_patches import MOST_PATCHES, RuntimePatch
from kftrainer.api.schema.markers import (
    Atomic,
    Cel,
    Embedded,
    Int32,
    ProcessesPerNode,
    list_map,
)
from kftrainer.kube.objects.meta import Condition, ObjectMeta
from kftrainer.kube.objects.model import KubeModel, Opaque, OpaqueList

IMMUTABLE = "self == oldSelf"
FIELD_IS_IMMUTABLE = "field is immutable"
DNS_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
MOST_CLAIMS = 32


class RuntimeRef(KubeModel):
    """Reference to a runtime."""

    name: Annotated[str, Field(min_length=1, max_length=253, description="Name of the runtime.")]
    api_group: Annotated[str, Field(max_length=253, description="API group of the runtime.")] = (
        names.GROUP
    )
    kind: Annotated[
        str,
        Field(
            max_length=253,
            description="ClusterTrainingRuntime, or TrainingRuntime for one in the TrainJob's "
            "namespace.",
        ),
    ] = names.CLUSTER_TRAINING_RUNTIME


class Asset(KubeModel):
    """A dataset or model to download before the training starts."""

    storage_uri: Annotated[
        str | None,
        Field(
            max_length=2048,
            description="Its location, such as hf://owner/name or s3://bucket/path.",
        ),
    ] = None
    env: Annotated[
        OpaqueList | None,
        Embedded(f"{CONTAINER}.env[]"),
        list_map("name"),
        Field(description="Environment variables for the initializer."),
    ] = None
    secret_ref: Annotated[
        Opaque | None,
        Embedded(f"{POD}.imagePullSecrets[]"),
        Field(
            description="A Secret in the same namespace with credentials for the storage. Its "
            "keys become environment variables of the initializer."
        ),
    ] = None


class Initializer(KubeModel):
    """Data to download before the training starts."""

    dataset: Annotated[Asset | None, Field(description="The dataset to train on.")] = None
    model: Annotated[Asset | None, Field(description="The pretrained model.")] = None


class ResourceClaim(KubeModel):
    """A resource claim that is created for each node."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=DNS_LABEL,
            description="Name of the claim in the pod.",
        ),
    ]
    resource_claim_template_name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            description="Name of a ResourceClaimTemplate in the TrainJob's namespace.",
        ),
    ]


class Trainer(KubeModel):
    """The training container; unset fields have the values of the runtime."""

    image: Annotated[
        str | None, Field(max_length=500, description="Image of the training container.")
    ] = None
    command: Annotated[
        list[str] | None, Atomic(), Field(description="Command of the training container.")
    ] = None
    args: Annotated[
        list[str] | None, Atomic(), Field(description="Arguments of the training container.")
    ] = None
    env: Annotated[
        OpaqueList | None,
        Embedded(f"{CONTAINER}.env[]"),
        list_map("name"),
        Field(
            description="Environment variables of the training container; they override those of "
            "the runtime."
        ),
    ] = None
    num_nodes: Annotated[Int32 | None, Field(ge=1, description="Number of nodes.")] = None
    resources_per_node: Annotated[
        Opaque | None,
        Embedded(f"{CONTAINER}.resources"),
        Field(description="Resources of the training container on each node."),
    ] = None
    num_proc_per_node: Annotated[
        ProcessesPerNode | None,
        Field(
            description="Number of processes per node. Runtimes with a torch policy also accept "
            "auto, cpu and gpu, which clients of Kubeflow Trainer 2.2 and later cannot decode."
        ),
    ] = None
    resource_claims_per_node: Annotated[
        list[ResourceClaim] | None,
        list_map("name"),
        Field(
            max_length=MOST_CLAIMS,
            description="Resource claims of each node's pod and of its training container, created "
            "from ResourceClaimTemplates.",
        ),
    ] = None


class TrainJobSpec(KubeModel):
    """The desired state of the TrainJob."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!has(self.podTemplateOverrides) || size(self.podTemplateOverrides) == 0"
            " || !has(self.podSpecOverrides) || size(self.podSpecOverrides) == 0",
            "podSpecOverrides is the old name of podTemplateOverrides: only one can be set",
        ),
        Cel(
            "has(oldSelf.activeDeadlineSeconds) == has(self.activeDeadlineSeconds)",
            FIELD_IS_IMMUTABLE,
            field_path=".activeDeadlineSeconds",
        ),
    )

    runtime_ref: Annotated[
        RuntimeRef,
        Cel(IMMUTABLE, "runtimeRef is immutable"),
        Field(description="The runtime to train with; it cannot be changed later."),
    ]
    initializer: Annotated[
        Initializer | None, Field(description="Data to download before the training starts.")
    ] = None
    trainer: Annotated[
        Trainer | None,
        Field(description="The training container; unset fields have the values of the runtime."),
    ] = None
    labels: Annotated[
        Mapping[str, str] | None,
        Field(description="Labels for the JobSet; they override those of the runtime."),
    ] = None
    annotations: Annotated[
        Mapping[str, str] | None,
        Field(description="Annotations for the JobSet; they override those of the runtime."),
    ] = None
    pod_template_overrides: Annotated[
        list[PodTemplateOverride] | None,
        Atomic(),
        Field(
            max_length=MOST,
            description="Changes to the pods of the runtime's template, applied in order. "
            "They can be changed only while the TrainJob is suspended.",
        ),
    ] = None
    pod_spec_overrides: Annotated[
        list[LegacyPodSpecOverride] | None,
        Atomic(),
        Field(
            max_length=MOST,
            description="Deprecated: podTemplateOverrides in the format of Kubeflow Trainer 2.0.",
        ),
    ] = None
    runtime_patches: Annotated[
        list[RuntimePatch] | None,
        list_map("manager"),
        Field(
            max_length=MOST_PATCHES,
            description="Changes to the runtime, one entry for each manager, applied in order "
            "after podTemplateOverrides. They can be changed only while the TrainJob is suspended.",
        ),
    ] = None
    suspend: Annotated[
        bool,
        Field(description="Whether the TrainJob is suspended: it has no pods until it is resumed."),
    ] = False
    active_deadline_seconds: Annotated[
        int | None,
        Cel(IMMUTABLE, FIELD_IS_IMMUTABLE),
        Field(
            ge=1,
            description="Time in seconds that the TrainJob may run. After that it fails with the "
            "reason DeadlineExceeded. Time while it is suspended does not count.",
            json_schema_extra={"format": "int64"},
        ),
    ] = None
    managed_by: Annotated[
        str,
        Field(
            description="The controller that manages the TrainJob: this operator, or MultiKueue "
            "of Kueue. It cannot be changed later."
        ),
        Cel(
            f"self in ['{names.MANAGED_BY_US}', '{names.MANAGED_BY_MULTIKUEUE}']",
            f"ManagedBy must be {names.MANAGED_BY_US} or {names.MANAGED_BY_MULTIKUEUE} if set",
        ),
        Cel(IMMUTABLE, "ManagedBy value is immutable"),
    ] = names.MANAGED_BY_US

    def overrides(self) -> Sequence[PodTemplateOverride]:
        """Return the overrides of either field, in the form of release 2.1."""
        if self.pod_template_overrides:
            return self.pod_template_overrides
        return [override.modern for override in self.pod_spec_overrides or ()]


class JobStatus(KubeModel):
    """Numbers of Jobs of a replicated job, by state."""

    name: Annotated[str, Field(min_length=1, description="Name of the replicated job.")]
    ready: Annotated[
        Int32, Field(ge=0, description="Jobs whose pods are all ready or have succeeded.")
    ]
    succeeded: Annotated[Int32, Field(ge=0, description="Jobs that have completed.")]
    failed: Annotated[Int32, Field(ge=0, description="Jobs that have failed.")]
    active: Annotated[Int32, Field(ge=0, description="Jobs with running or pending pods.")]
    suspended: Annotated[Int32, Field(ge=0, description="Jobs that are suspended.")]


class TrainingMetric(KubeModel):
    """A metric that the training has reported."""

    name: Annotated[str, Field(min_length=1, max_length=64, description="Name of the metric.")]
    value: Annotated[str, Field(min_length=1, max_length=64, description="Value of the metric.")]


class TrainerStatus(KubeModel):
    """The progress that the training has reported."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "has(self.lastUpdatedTime)",
            "lastUpdatedTime is required when trainerStatus is present",
        ),
    )

    progress_percentage: Annotated[
        Int32 | None, Field(ge=0, le=100, description="Progress in percent.")
    ] = None
    estimated_remaining_seconds: Annotated[
        Int32 | None, Field(ge=0, description="Estimated time until the end, in seconds.")
    ] = None
    metrics: Annotated[
        list[TrainingMetric] | None,
        Atomic(),
        Field(max_length=256, description="Metrics of the training."),
    ] = None
    last_updated_time: Annotated[
        str | None,
        Field(
            description="Time of the report.",
            json_schema_extra={"format": "date-time"},
        ),
    ] = None


class JobSetReference(KubeModel):
    """The JobSet that the controller created or adopted for the TrainJob."""

    uid: Annotated[str, Field(min_length=1, max_length=64, description="UID of the JobSet.")]


class NodesStatus(KubeModel):
    """Numbers of nodes, which are the pods of the training."""

    ready: Annotated[Int32, Field(ge=0, description="Nodes that are ready or have succeeded.")]
    desired: Annotated[Int32, Field(ge=0, description="Nodes that the TrainJob has when it runs.")]


class TrainJobStatus(KubeModel):
    """The observed state of the TrainJob."""

    min_properties: ClassVar[int] = 1

    conditions: Annotated[
        list[Condition] | None,
        list_map("type"),
        Field(max_length=8, description="Conditions: Suspended, Complete, Failed and Blocked."),
    ] = None
    jobs_status: Annotated[
        list[JobStatus] | None,
        list_map("name"),
        Field(description="The state of each replicated job of the JobSet."),
    ] = None
    job_set: Annotated[
        JobSetReference | None,
        Field(
            description="The JobSet of the TrainJob. A JobSet of the same name with another UID "
            "is not resumed, and its status is ignored."
        ),
    ] = None
    state: Annotated[
        Literal["Pending", "Running", "Suspended", "Blocked", "Complete", "Failed"] | None,
        Field(description="Summary of the status for people. Programs should read the conditions."),
    ] = None
    nodes: Annotated[
        NodesStatus | None,
        Field(
            description="The nodes of the training: those of the JobSet, or until there is one, "
            "the number in spec.trainer.numNodes."
        ),
    ] = None
    runtime_revision: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=253,
            description="Name of the ControllerRevision with the runtime's spec that the TrainJob "
            "is planned from. Later changes of the runtime have no effect on the TrainJob.",
        ),
    ] = None
    # Only stored: MultiKueue copies the status of a TrainJob that runs in another cluster.
    trainer_status: Annotated[
        TrainerStatus | None,
        Field(
            description="The progress of the training, as reported by Kubeflow Trainer 2.2 and "
            "later. This operator keeps the value and does not write it."
        ),
    ] = None


class TrainJob(KubeModel):
    """A training job. Its runtime defines how it is run."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must match RFC 1035 DNS label format",
            field_path=".metadata.name",
        ),
        Cel(
            "size(self.metadata.name) <= 63",
            "metadata.name must be no more than 63 characters",
            field_path=".metadata.name",
        ),
    )

    api_version: Literal["trainer.kubeflow.org/v1alpha1"]
    kind: Literal["TrainJob"]
    metadata: ObjectMeta
    spec: Annotated[TrainJobSpec, Field(description="The desired state of the TrainJob.")]
    # No default: it would become part of a status that another controller writes (MultiKueue).
    status: Annotated[
        TrainJobStatus | None, Field(description="The observed state of the TrainJob.")
    ] = None
