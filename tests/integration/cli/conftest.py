"""A cluster for commands that read and purge it; it holds no other objects."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kftrainer.devcluster import pytest_plugin
from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.controllers.team import TEST_TIMEOUT, Team
from tests.support.objects import train_job
from tests.support.webhooks import admission_client_for

# Kubernetes' own controllers delete what belongs to a TrainJob.
SHAPE = Shape(controllers=True, crds=(versions.JOBSET_MANIFESTS,))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """The cluster."""
    async for plane in pytest_plugin._for_session(pytestconfig, SHAPE):
        yield plane


@pytest_asyncio.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[ApiClient]:
    """Its administrator."""
    async with plane.client() as client:
        yield client


@pytest_asyncio.fixture
async def team(plane: ControlPlane, admin: ApiClient) -> Team:
    """A fresh namespace of it."""
    return Team(admin, await plane.create_namespace(admin))


@pytest_asyncio.fixture
async def no_webhook(admin: ApiClient, team: Team) -> None:
    """The API server has forgotten the webhook of tests before."""
    probe = train_job("probe", runtimeRef={"name": "there-is-none"})
    probe["metadata"]["namespace"] = team.namespace

    async def accepted() -> bool:
        return (await admission_client_for(admin).create(probe, dry_run=True)).accepted

    await until(accepted, within=TEST_TIMEOUT, what="the webhook being forgotten")
