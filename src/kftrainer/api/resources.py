"""Resources that the operator reads or writes."""

from typing import Any, Final

from kftrainer.api import names
from kftrainer.api.limits import within_limits
from kftrainer.api.runtime_revisions import RuntimeRevision
from kftrainer.api.trainingruntime import ClusterTrainingRuntime, TrainingRuntime
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured


def _foreign(
    group: str, version: str, kind: str, plural: str, *, namespaced: bool = True
) -> Resource[Manifest]:
    """Return a resource of another project, which is not decoded."""
    return Resource(group, version, kind, plural, namespaced=namespaced, decode=unstructured)


TRAIN_JOBS: Final = Resource(
    names.GROUP,
    names.VERSION,
    names.TRAIN_JOB,
    "trainjobs",
    namespaced=True,
    decode=within_limits(TrainJob.parse),
)
TRAINING_RUNTIMES: Final = Resource(
    names.GROUP,
    names.VERSION,
    names.TRAINING_RUNTIME,
    "trainingruntimes",
    namespaced=True,
    decode=within_limits(TrainingRuntime.parse),
    keep_decoded=True,
)
CLUSTER_TRAINING_RUNTIMES: Final = Resource(
    names.GROUP,
    names.VERSION,
    names.CLUSTER_TRAINING_RUNTIME,
    "clustertrainingruntimes",
    namespaced=False,
    decode=within_limits(ClusterTrainingRuntime.parse),
    keep_decoded=True,
)
# Of all ControllerRevisions, only those with the label of ours are cached.
CONTROLLER_REVISIONS: Final = Resource(
    "apps",
    "v1",
    "ControllerRevision",
    "controllerrevisions",
    namespaced=True,
    decode=RuntimeRevision.decode,
    keep_decoded=True,
)

JOBS: Final = _foreign("batch", "v1", "Job", "jobs")
PODS: Final = _foreign("", "v1", "Pod", "pods")
JOB_SETS: Final = _foreign("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
COSCHEDULING_POD_GROUPS: Final = _foreign(
    "scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"
)
VOLCANO_POD_GROUPS: Final = _foreign("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")
SECRETS: Final = _foreign("", "v1", "Secret", "secrets")
CONFIG_MAPS: Final = _foreign("", "v1", "ConfigMap", "configmaps")
LIMIT_RANGES: Final = _foreign("", "v1", "LimitRange", "limitranges")
RUNTIME_CLASSES: Final = _foreign(
    "node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False
)
PRIORITY_CLASSES: Final = _foreign(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False
)
RESOURCE_CLAIM_TEMPLATES: Final = _foreign(
    "resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"
)

AnyResource = Resource[Any]
