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
from tests.support.managers import ManagerProcess
from tests.support.process_pods import Pods
from tests.support.process_trainjobs import SharedFolder
from tests.support.trainjobs import ClusterTeam, Kubectl, ready_manager

ACCELERATOR = "example.com/accelerator"  # each node has one


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


@pytest.fixture
def shared(tmp_path: Path) -> SharedFolder:
    """The folder in which the processes of the test's pods report."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return SharedFolder(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(process_control_plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    async with ready_manager(process_control_plane) as manager:
        yield manager


@pytest.fixture
def team(api: ApiClient, namespace: str, manager: ManagerProcess) -> ClusterTeam:
    """A namespace of the test's own, on the manager of the module."""
    return ClusterTeam(api, namespace)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def process_control_plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """The cluster of the tests of process nodes; the images of MPI are installed when used."""
    images = {image(kind): environment_folder(kind) for kind in MPI_KINDS}
    crds = tuple(pytestconfig.getini("devcluster_crds"))
    shape = replace(
        PROCESSES, images=images, crd_files=crds, process_node_resources={ACCELERATOR: "1"}
    )
    async for plane in for_session(pytestconfig, shape):
        yield plane
