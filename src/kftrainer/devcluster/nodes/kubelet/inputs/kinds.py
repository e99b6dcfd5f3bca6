"""The kinds that volumes refer to."""

from typing import Final

from kftrainer.kube.objects.resource import Manifest, Resource, unstructured


def _core(kind: str, plural: str, *, namespaced: bool = True) -> Resource[Manifest]:
    return Resource("", "v1", kind, plural, namespaced=namespaced, decode=unstructured)


CONFIG_MAPS: Final = _core("ConfigMap", "configmaps")
SECRETS: Final = _core("Secret", "secrets")
SERVICE_ACCOUNTS: Final = _core("ServiceAccount", "serviceaccounts")
NODES: Final = _core("Node", "nodes", namespaced=False)
CLAIMS: Final = _core("PersistentVolumeClaim", "persistentvolumeclaims")
PERSISTENT_VOLUMES: Final = _core("PersistentVolume", "persistentvolumes", namespaced=False)
STORAGE_CLASSES: Final = Resource(
    "storage.k8s.io",
    "v1",
    "StorageClass",
    "storageclasses",
    namespaced=False,
    decode=unstructured,
)
