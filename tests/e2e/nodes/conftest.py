"""Pods that run as processes."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from environments.mpi import MPI_KINDS, environment_folder, image
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import PROCESSES
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.pytest_plugin import for_session
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


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def process_control_plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """The cluster of the tests of process nodes; the images of MPI are installed when used."""
    images = {image(kind): environment_folder(kind) for kind in MPI_KINDS}
    crds = tuple(pytestconfig.getini("devcluster_crds"))
    async for plane in for_session(pytestconfig, replace(PROCESSES, images=images, crd_files=crds)):
        yield plane
