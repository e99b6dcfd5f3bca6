"""Everything that a plugin author imports. The names in `__all__` are stable.

A plugin is a class with a `name` that inherits the extension points that it implements:

- `EnforceMLPolicy`, `EnforcePodGroupPolicy` and `PodNetwork` change the `Info` of a TrainJob.
- `ComponentBuilder` returns `PlannedObject`s, which the controller applies.
- `TrainJobStatus` reads the status of the applied objects.
- `CustomValidation` validates TrainJobs at admission and returns a `ValidationResult`.
- `WatchExtension` declares the kinds whose changes enqueue TrainJobs.

docs/plugins.md has a complete example.
"""

from kftrainer.api.resources import CONFIG_MAPS, JOB_SETS, SECRETS
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
    ComponentBuilder,
    CustomValidation,
    EnforceMLPolicy,
    EnforcePodGroupPolicy,
    Observed,
    PodNetwork,
    TrainJobStatus,
    Watch,
    WatchExtension,
)
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.info import Info
from kftrainer.runtime.manifests import env_from_field, env_var, owned
from kftrainer.runtime.planned_object import PlannedObject
from kftrainer.runtime.podset import Container, PodSet
from kftrainer.runtime.runtimes import Runtimes

__all__ = [
    "CONFIG_MAPS",
    "JOB_SETS",
    "SECRETS",
    "ClusterReader",
    "ComponentBuilder",
    "Container",
    "CustomValidation",
    "EnforceMLPolicy",
    "EnforcePodGroupPolicy",
    "FieldError",
    "GivenObjects",
    "Info",
    "InvalidRuntimeError",
    "InvalidTrainJobError",
    "Manifest",
    "ObjectKey",
    "Observed",
    "PlannedObject",
    "PodNetwork",
    "PodSet",
    "Resource",
    "Runtimes",
    "TrainJob",
    "TrainJobStatus",
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
