"""Additional nodes for a test cluster."""

from collections.abc import Mapping

from kftrainer.devcluster.client import Object
from kftrainer.devcluster.components import kwok

CAPACITY = {
    "cpu": "4000",
    "memory": "16Ti",
    "ephemeral-storage": "16Ti",
    "pods": "2000",
    "nvidia.com/gpu": "1000",
}


def extra_node(name: str, labels: Mapping[str, str]) -> Object:
    """A large node that kwok keeps alive."""
    node = kwok.node(0, CAPACITY)
    hostname = {"kubernetes.io/hostname": name}
    node["metadata"] |= {
        "name": name,
        "labels": {**node["metadata"]["labels"], **hostname, **labels},
    }
    return node
