"""Kinds that tests read and write, as resources of plain mappings."""

from typing import Any

from kftrainer.kube.objects.resource import Manifest, Resource, unstructured

Object = dict[str, Any]


def resource(
    kind: str, plural: str, *, group: str = "", version: str = "v1", namespaced: bool = True
) -> Resource[Manifest]:
    """A kind that is read without decoding."""
    return Resource(group, version, kind, plural, namespaced, unstructured)


CONFIG_MAPS = resource("ConfigMap", "configmaps")
NAMESPACES = resource("Namespace", "namespaces", namespaced=False)
TRAIN_JOBS = resource("TrainJob", "trainjobs", group="trainer.kubeflow.org", version="v1alpha1")


def config_map(namespace: str, name: str = "settings", **data: str) -> Object:
    """A ConfigMap with these entries."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }
