"""Names that are part of the contract with users, the SDK, Kueue and other components."""

from typing import Final

GROUP: Final = "trainer.kubeflow.org"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
TRAIN_JOB: Final = "TrainJob"
TRAINING_RUNTIME: Final = "TrainingRuntime"
CLUSTER_TRAINING_RUNTIME: Final = "ClusterTrainingRuntime"

CONFIG_API_VERSION: Final = "config.trainer.kubeflow.org/v1alpha1"
CONFIGURATION: Final = "Configuration"

# ClusterTrainingRuntimes that ship with the operator.
BUNDLED_RUNTIMES: Final = (
    "torch-distributed",
    "torch-distributed-with-cache",
    "deepspeed-distributed",
    "mlx-distributed",
    "torchtune-llama3.2-1b",
    "torchtune-llama3.2-3b",
    "torchtune-qwen2.5-1.5b",
    "plain",
)

# Values of `spec.managedBy`.
MANAGED_BY_US: Final = "trainer.kubeflow.org/trainjob-controller"
MANAGED_BY_MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"

# Labels and annotations.
# Bookkeeping of the controller on the objects of a TrainJob. Digest of the plan that was last
# applied: it triggers an apply when a field is no longer planned, which removes the field, and none
# when nothing has changed, also after a restart.
ANNOTATION_APPLIED_PLAN: Final = "trainer.kubeflow.org/applied-plan"
# On JobSets: digest of the immutable part as it was planned when the JobSet was created.
ANNOTATION_BEGUN_AS: Final = "trainer.kubeflow.org/begun-as"
# The JobSet was applied with the fields that JobSet had defaulted. JobSet defaults only new
# objects, and an apply removes fields that it omits, so every later apply must include them.
ANNOTATION_APPLIED_WHOLE: Final = "trainer.kubeflow.org/applied-whole"
# The number of devices in the resource claims of a node when the JobSet was created.
ANNOTATION_CLAIMED_DEVICES: Final = "trainer.kubeflow.org/claimed-devices"
BOOKKEEPING: Final = (
    ANNOTATION_APPLIED_PLAN,
    ANNOTATION_BEGUN_AS,
    ANNOTATION_APPLIED_WHOLE,
    ANNOTATION_CLAIMED_DEVICES,
)
LABEL_ANCESTOR_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
LABEL_SUPPORT: Final = "trainer.kubeflow.org/support"
SUPPORT_DEPRECATED: Final = "deprecated"
LABEL_FRAMEWORK: Final = "trainer.kubeflow.org/framework"
# On ControllerRevisions with the content of a runtime: the runtime's kind.
LABEL_RUNTIME_KIND: Final = "trainer.kubeflow.org/runtime-kind"
# On JobSets and TrainJobs whose suspension Kueue controls.
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
# The manager of Kueue's entry in runtimePatches, which it fills when it admits a TrainJob.
QUEUE_MANAGER: Final = "kueue.x-k8s.io/manager"
# On runtimes that the manager applies: the manager's mark and the hash of the document.
LABEL_MANAGED_BY: Final = "trainer.kubeflow.org/managed-by"
MANAGED_BY_KFTRAINER: Final = "kftrainer"
ANNOTATION_SHIPPED_HASH: Final = "trainer.kubeflow.org/shipped-hash"

FINALIZER_RUNTIME_IN_USE: Final = "trainer.kubeflow.org/resource-in-use"
# Of the objects and the status of TrainJobs. It is the original's, so that a migrated TrainJob has
# one owner of its fields. Bundled runtimes have another one: `controllers.bundled_runtimes`.
FIELD_MANAGER: Final = "trainer"

# Steps of a TrainJob, which are also the names of their containers, except the trainer's.
STEP_TRAINER: Final = "trainer"
STEP_DATASET_INITIALIZER: Final = "dataset-initializer"
STEP_MODEL_INITIALIZER: Final = "model-initializer"
JOB_NODE: Final = "node"
JOB_LAUNCHER: Final = "launcher"
CONTAINER_NODE: Final = "node"

# Conditions of a TrainJob and their reasons. `Complete` and `Failed` also have those of the JobSet.
CONDITION_SUSPENDED: Final = "Suspended"
CONDITION_COMPLETE: Final = "Complete"
CONDITION_FAILED: Final = "Failed"
CONDITION_BLOCKED: Final = "Blocked"  # present only while the TrainJob cannot make progress
REASON_SUSPENDED: Final = "Suspended"
REASON_RESUMED: Final = "Resumed"
REASON_SUSPENDING: Final = "Suspending"
REASON_JOB_SET_SUSPENDED: Final = "JobSetSuspended"
REASON_DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
REASON_OUTCOME_UNKNOWN: Final = "OutcomeUnknown"
REASON_ALL_JOBS_COMPLETED: Final = "AllJobsCompleted"
REASON_PODS_NOT_CREATED: Final = "PodsNotCreated"
REASON_RUNTIME_NOT_SUPPORTED: Final = "TrainingRuntimeNotSupported"
REASON_RUNTIME_NOT_FOUND: Final = "RuntimeNotFound"
REASON_CLAIM_TEMPLATE_NOT_FOUND: Final = "ResourceClaimTemplateNotFound"
REASON_REVISION_LOST: Final = "RuntimeRevisionLost"
REASON_INVALID_RUNTIME: Final = "InvalidRuntime"
REASON_INVALID_TRAIN_JOB: Final = "InvalidTrainJob"
REASON_TRAIN_JOB_TOO_LARGE: Final = "TrainJobTooLarge"
REASON_PLUGIN_FAILED: Final = "PluginFailed"
REASON_NAME_TAKEN: Final = "NameTaken"
REASON_FOREIGN_JOB_SET: Final = "ForeignJobSet"
REASON_WAITING_FOR_DELETION: Final = "WaitingForDeletion"
REASON_KIND_NOT_INSTALLED: Final = "{kind}NotInstalled"  # a format string
REASON_CREATION_FAILED: Final = "ResourcesCreationFailed"  # an API call failed
# Reasons of the Events of a TrainJob.
EVENT_CREATION_FAILED: Final = "TrainJobResourcesCreationFailed"
EVENT_JOB_SET_KEPT: Final = "JobSetKept"  # a change cannot be applied to the existing JobSet
EVENT_DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
EVENT_REVISION_LOST: Final = "RuntimeRevisionLost"  # and the runtime has changed since
EVENT_CONTESTED: Final = "Contested"  # another client keeps reverting an applied object

# Environment variables of containers.
ENV_STORAGE_URI: Final = "STORAGE_URI"

TRAINER_PORT: Final = 29500
