"""Fixtures of the end-to-end tests; each module defines its own `manager`.

The cluster for chart tests has none of our objects, and an audit log of all requests.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kftrainer.devcluster.artifacts.versions import COSCHEDULING_MANIFESTS, VOLCANO_MANIFESTS
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import FULL
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.pytest_plugin import for_session, watched
from tests.support.installations import Cluster, Ports, free_ports, remove_all
from tests.support.managers import ManagerProcess
from tests.support.releases import Release
from tests.support.service_proxy import service_proxy
from tests.support.trainjobs import ClusterTeam, Kubectl

SHAPE = replace(
    FULL, audit=True, service_proxy=True, crds=(COSCHEDULING_MANIFESTS, VOLCANO_MANIFESTS)
)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chart_plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """The cluster, shared by the tests of charts, which install the same objects in turn."""
    async for plane in for_session(pytestconfig, SHAPE):
        yield plane


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chart_cluster(
    chart_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """The same, with Services that lead to processes."""
    with service_proxy(chart_plane) as routes:
        yield Cluster(chart_plane, routes, tmp_path_factory.mktemp("chart"))


@pytest.fixture
def watched_chart_plane(
    request: pytest.FixtureRequest, chart_plane: ControlPlane
) -> Iterator[ControlPlane]:
    """The cluster for one test; its logs are shown if the test fails."""
    with watched(request.node, chart_plane):
        yield chart_plane


@pytest_asyncio.fixture
async def release(
    chart_cluster: Cluster, helm_program: Path, api: ApiClient
) -> AsyncIterator[Release]:
    """A release that is not there, before and after."""
    release = Release(helm_program, chart_cluster.plane, chart_cluster.home)
    yield release
    await remove_all(release, api)


@pytest.fixture
def team(api: ApiClient, namespace: str, manager: ManagerProcess) -> ClusterTeam:
    """A namespace of the test's own, on the manager of the module."""
    return ClusterTeam(api, namespace)


@pytest.fixture
def kubectl(
    kubectl_program: Path, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> Kubectl:
    """kubectl in the test's namespace."""
    return Kubectl(kubectl_program, control_plane.kubeconfig, namespace, tmp_path)


@pytest.fixture
def ports() -> Iterator[Sequence[Ports]]:
    """For a replica, and for the one that follows it."""
    with free_ports(2) as ports:
        yield ports


@pytest.fixture
def values(ports: Sequence[Ports]) -> dict[str, Any]:
    """The chart's values: ports that are free, and a leader who is followed soon."""
    return {
        **ports[0].values(),
        "config": {"leaderElection": {"retryPeriod": "500ms"}},
        "logLevel": "debug",
        "replicaCount": 1,
    }
