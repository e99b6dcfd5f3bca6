"""Pods that run as processes."""

from pathlib import Path

import pytest

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from tests.support.process_pods import Pods
from tests.support.trainjobs import Kubectl


@pytest.fixture
def kubectl(
    kubectl_program: Path, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> Kubectl:
    """kubectl in the test's namespace."""
    return Kubectl(kubectl_program, control_plane.kubeconfig, namespace, tmp_path)


@pytest.fixture
def pods(api: ApiClient, namespace: str, kubectl: Kubectl) -> Pods:
    """The pods in the test's namespace."""
    return Pods(api, namespace, kubectl)
