"""Everything that a plugin author imports. The names in `__all__` are stable.

A plugin is a class with a `name` that inherits the extension points that it implements:

- `EnforceMLPolicy`, `EnforcePodGroupPolicy` and `PodNetwork` change the `Info` of a TrainJob.
- `ComponentBuilder` returns `PlannedObject`s, which the controller applies.
- `TrainJobStatus` reads the status of the applied objects.
- `CustomValidation` validates TrainJobs, and `RuntimeValidation` runtimes, at admission. Both
  return a `ValidationResult`.
- `PolicyExtension` declares the plugin's policy, usually an `AnnotationPolicy`.
- `NodeLayoutExtension` declares which jobs of a runtime train.
- `WatchExtension` declares the kinds whose changes enqueue TrainJobs.
- `RBACExtension` declares the permissions that the manager needs.

docs/plugins.md has a complete example.
"""

from kftrainer.api.resources import CONFIG_MAPS, JOB_SETS, SECRETS
from kftrainer.api.trainingruntime import ClusterTrainingRuntime, TrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.field_errors import (
    FieldError,
    ValidationResult,
    forbidden,
    invalid,
    required,
)
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.runtime.cluster_reader import ClusterReader, GivenObjects
from kftrainer.runtime.errors import InvalidRuntimeError, InvalidTrainJobError
from kftrainer.runtime.framework.extension_points import (
    APPLY_VERBS,
    WATCH_VERBS,
    ComponentBuilder,
    CustomValidation,
    EnforceMLPolicy,
    EnforcePodGroupPolicy,
    NodeLayoutExtension,
    Observed,
    PodNetwork,
    PolicyExtension,
    RBACExtension,
    RBACRule,
    RuntimeValidation,
    TrainJobStatus,
    Watch,
    WatchExtension,
)
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.framework.policies import AnnotationPolicy, FieldPolicy, PolicyModel
from kftrainer.runtime.info import AnyRuntime, Info
from kftrainer.runtime.object_builders import env_from_field, env_var, owned
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.podset import Container, NodeLayout, PodSet
from kftrainer.runtime.runtimes import Runtimes

__all__ = [
    "APPLY_VERBS",
    "CONFIG_MAPS",
    "JOB_SETS",
    "SECRETS",
    "WATCH_VERBS",
    "AnnotationPolicy",
    "AnyRuntime",
    "ClusterReader",
    "ClusterTrainingRuntime",
    "ComponentBuilder",
    "Container",
    "CustomValidation",
    "EnforceMLPolicy",
    "EnforcePodGroupPolicy",
    "FieldError",
    "FieldPolicy",
    "GivenObjects",
    "Info",
    "InvalidRuntimeError",
    "InvalidTrainJobError",
    "Manifest",
    "NodeLayout",
    "NodeLayoutExtension",
    "ObjectKey",
    "Observed",
    "PlannedObject",
    "PodNetwork",
    "PodSet",
    "PolicyExtension",
    "PolicyModel",
    "RBACExtension",
    "RBACRule",
    "Resource",
    "RuntimeValidation",
    "Runtimes",
    "TrainJob",
    "TrainJobStatus",
    "TrainingRuntime",
    "ValidationResult",
    "Watch",
    "WatchExtension",
    "env_from_field",
    "env_var",
    "forbidden",
    "invalid",
    "load_framework",
    "owned",
    "required",
    "unstructured",
]
