"""A manager on an API server with the kinds JobSet and PodGroup, but without their controllers."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.devcluster import pytest_plugin
from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane
from tests.integration.controllers.team import Team
from tests.support.fault_proxy import FaultProxy, running_proxy
from tests.support.managers import ManagerProcess, manager_process

SHAPE = Shape(
    crds=(versions.JOBSET_MANIFESTS, versions.COSCHEDULING_MANIFESTS, versions.VOLCANO_MANIFESTS)
)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """An API server that serves all kinds that the manager creates."""
    async for plane in pytest_plugin._for_session(pytestconfig, SHAPE):
        yield plane


@pytest.fixture
def control_plane(plane: ControlPlane) -> ControlPlane:
    """The same, for `api` and `namespace`."""
    return plane


@pytest.fixture
async def proxy(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    """A proxy between the manager and the API server."""
    async with running_proxy(plane, tmp_path) as proxy:
        yield proxy


@pytest.fixture
def team(api: ApiClient, namespace: str) -> Team:
    """A namespace of the test's own."""
    return Team(api, namespace)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_manager(plane: ControlPlane) -> AsyncIterator[ManagerProcess]:
    """A manager of all namespaces, for the tests of a module that do not need one of their own."""
    async with manager_process(plane.kubeconfig, "--log-level", "debug") as manager:
        await manager.wait_ready()
        yield manager


@pytest.fixture
def manager(shared_manager: ManagerProcess) -> Iterator[ManagerProcess]:
    """The module's manager, none of whose reconciles may raise."""
    before = len(shared_manager.log_text())
    yield shared_manager
    sys.stdout.write(shared_manager.log_text()[before:])  # shown if the test has failed
    shared_manager.check_no_reconcile_raised()
