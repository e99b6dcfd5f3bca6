"""A cluster with Kueue and our manager, and namespaces with a queue of their own."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.devcluster.artifacts.versions import KUEUE
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import FULL, Shape
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.pytest_plugin import for_session, log_sizes, program, watched
from tests.clients.kueue.queueing import (
    PRIORITIES,
    RESOURCES,
    WITH_INTEGERS,
    Queueing,
    label_nodes,
)
from tests.support.kueue import kueue, priority
from tests.support.managers import ManagerProcess
from tests.support.service_proxy import service_proxy
from tests.support.webhooks import admitting_manager


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kueue_programs(pytestconfig: pytest.Config, helm_program: Path) -> Mapping[str, Path]:
    """What Kueue is installed with and what it runs, built first if it is missing."""
    return {"helm": helm_program, KUEUE.name: await program(pytestconfig, KUEUE)}


@asynccontextmanager
async def with_kueue(
    plane: ControlPlane, programs: Mapping[str, Path], home: Path
) -> AsyncIterator[ManagedProcess]:
    """Kueue on the control plane, with the flavors and priorities that the tests use."""
    with service_proxy(plane) as routes:
        async with kueue(plane, routes, programs, home) as process:
            async with plane.client() as api:
                await label_nodes(api)
                for manifest in RESOURCES:
                    await api.apply(manifest)
                for name, value in PRIORITIES.items():
                    await api.apply(priority(name, value))
            yield process


@asynccontextmanager
async def manager_with_integers(plane: ControlPlane, home: Path) -> AsyncIterator[ManagerProcess]:
    """A manager with its webhooks that rejects strings in numProcPerNode."""
    config = home / "config.yaml"
    config.write_text(WITH_INTEGERS)
    flags = ("--log-level", "debug", "--config", str(config))
    async with admitting_manager(plane, *flags) as manager:
        yield manager


@pytest.fixture(scope="session")
def kueue_shape(pytestconfig: pytest.Config) -> Shape:
    """A whole cluster with our CRDs, whose Services lead to processes."""
    crd_files = tuple(pytestconfig.getini("devcluster_crds"))
    return replace(FULL, service_proxy=True, crd_files=crd_files)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kueue_plane(
    pytestconfig: pytest.Config, kueue_shape: Shape
) -> AsyncIterator[ControlPlane]:
    """The cluster of all tests."""
    async for plane in for_session(pytestconfig, kueue_shape):
        yield plane


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kueue_process(
    kueue_plane: ControlPlane,
    kueue_programs: Mapping[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ManagedProcess]:
    """Kueue on that cluster."""
    home = tmp_path_factory.mktemp("kueue")
    async with with_kueue(kueue_plane, kueue_programs, home) as process:
        yield process


@pytest.fixture
def control_plane(
    request: pytest.FixtureRequest, kueue_plane: ControlPlane, kueue_process: ManagedProcess
) -> Iterator[ControlPlane]:
    """The cluster with Kueue; a failed test shows what Kueue logged."""
    with watched(request.node, kueue_plane):
        log = kueue_process.log
        request.node.stash[log_sizes][log] = log.stat().st_size
        yield kueue_plane
        kueue_process.check()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(
    kueue_plane: ControlPlane,
    kueue_process: ManagedProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ManagerProcess]:
    """The manager of the module."""
    assert kueue_process.alive(), "Kueue is installed first"
    async with manager_with_integers(kueue_plane, tmp_path_factory.mktemp("manager")) as manager:
        yield manager


@pytest_asyncio.fixture
async def queueing(api: ApiClient, namespace: str, manager: ManagerProcess) -> Queueing:
    """A namespace with its own runtimes; the test creates the queue with the quota it needs."""
    queueing = Queueing(api, namespace)
    await queueing.create_runtimes()
    return queueing
