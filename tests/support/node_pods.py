"""Pods, ConfigMaps and Secrets for tests of process nodes."""

import base64
from typing import Any

Object = dict[str, Any]
NODE: Object = {
    "metadata": {"name": "process-0"},
    "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "1Gi"}},
}


def pod(*containers: Object, **spec: Any) -> Object:
    """A pod on NODE."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "trainer",
            "namespace": "team",
            "uid": "pod-uid",
            "labels": {"b": "2", "a/x": "1"},
            "annotations": {"note": 'two\nlines "quoted"'},
        },
        "spec": {
            "nodeName": "process-0",
            "serviceAccountName": "default",
            "containers": [*containers] or [container()],
            **spec,
        },
    }


def container(name: str = "node", **fields: Any) -> Object:
    """A container."""
    return {"name": name, "image": "trainer", **fields}


def config_map(name: str, **data: str) -> Object:
    """A ConfigMap in the pod's namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "team"},
        "data": data,
    }


def secret(name: str, **data: bytes) -> Object:
    """A Secret in the pod's namespace."""
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "team"},
        "data": encoded,
    }
