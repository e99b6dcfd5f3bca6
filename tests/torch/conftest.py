"""A cluster with process nodes whose image of torch is an environment, and the chart's runtime."""

import copy
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.cluster_options import PROCESSES
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.pytest_plugin import for_session
from tests.integration.chart.test_runtimes import runtimes_of
from tests.support.helm import render
from tests.support.managers import ManagerProcess
from tests.support.torch.environment import torch_environment
from tests.support.trainjobs import ClusterTeam, Kubectl, ready_manager

IMAGE = "docker.io/pytorch/pytorch:*"
GPU = "nvidia.com/gpu"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def process_control_plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """Two process nodes, each with one GPU, whose image of torch is an environment."""
    folder = await torch_environment(Progress(sys.stderr))
    shape = replace(
        PROCESSES,
        images={IMAGE: folder},
        only_mapped_images=True,
        process_node_resources={GPU: "1"},
        crd_files=tuple(pytestconfig.getini("devcluster_crds")),
    )
    async for plane in for_session(pytestconfig, shape):
        yield plane


@pytest.fixture(scope="session")
def shipped(helm_program: Path) -> Object:
    """The runtime torch-distributed of the chart."""
    return runtimes_of(render(helm_program))["torch-distributed"]


@pytest.fixture
def once(shipped: Object) -> Object:
    """The same as a TrainingRuntime whose pods are not tried again when they fail."""
    changed = copy.deepcopy(shipped)
    changed |= {"kind": "TrainingRuntime", "metadata": {**shipped["metadata"], "name": "once"}}
    [job] = changed["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["backoffLimit"] = 0
    job["template"]["spec"]["template"]["spec"] |= {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
    }
    return changed


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def manager(
    process_control_plane: ControlPlane, shipped: Object
) -> AsyncIterator[ManagerProcess]:
    """The manager, with the runtime of the chart."""
    async with (
        process_control_plane.client() as api,
        ready_manager(process_control_plane) as manager,
    ):
        await api.create(shipped)
        yield manager


@pytest.fixture
def team(api: ApiClient, namespace: str, manager: ManagerProcess) -> ClusterTeam:
    """A namespace of the test's own."""
    return ClusterTeam(api, namespace)


@pytest.fixture
def kubectl(
    kubectl_program: Path, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> Kubectl:
    """kubectl in the test's namespace."""
    return Kubectl(kubectl_program, control_plane.kubeconfig, namespace, tmp_path)
