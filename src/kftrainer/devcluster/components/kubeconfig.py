"""Kubeconfig files: one cluster, one user with a client certificate."""

import base64
import json
import os
from pathlib import Path

from kftrainer.devcluster.components.pki import KeyPair


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def write(path: Path, *, server: str, authority: Path, user: str, client: KeyPair) -> Path:
    """Write a self-contained kubeconfig that can be copied elsewhere."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "kftrainer-dev",
                "cluster": {"server": server, "certificate-authority-data": _encoded(authority)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _encoded(client.certificate),
                    "client-key-data": _encoded(client.key),
                },
            }
        ],
        "contexts": [
            {"name": "kftrainer-dev", "context": {"cluster": "kftrainer-dev", "user": user}}
        ],
        "current-context": "kftrainer-dev",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # JSON is valid YAML and read by every client.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file, indent=2)
    return path
