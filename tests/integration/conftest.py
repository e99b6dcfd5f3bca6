"""The control plane of the integration tests; it stops before the end-to-end tests start theirs."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kftrainer.devcluster import pytest_plugin
from kftrainer.devcluster.cluster_options import BARE
from kftrainer.devcluster.controlplane import ControlPlane


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def bare_control_plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """etcd and kube-apiserver, shared by the integration tests; tests use `control_plane`."""
    async for plane in pytest_plugin._for_session(pytestconfig, BARE):
        yield plane
