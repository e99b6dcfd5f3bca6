"""An API server that calls our webhook, and a user who applies objects."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kftrainer.devcluster import pytest_plugin
from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from kftrainer.machinery.metrics.bounded_labels import OTHER
from kftrainer.machinery.webhook.handler import OWN_RULES
from kftrainer.runtime.plugins import PLUGIN_RULES
from kftrainer.runtime.validation.rules import Rule
from tests.integration.webhooks.cases import placed
from tests.integration.webhooks.trainjob_cases import STORED_BEFORE
from tests.support.managers import ManagerProcess
from tests.support.webhooks import AdmissionClient, admission_client_for, admitting_manager

SHAPE = Shape(
    crds=(versions.JOBSET_MANIFESTS, versions.COSCHEDULING_MANIFESTS, versions.VOLCANO_MANIFESTS)
)

CLUSTER_KIND = "ClusterTrainingRuntime"


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def plane(pytestconfig: pytest.Config) -> AsyncIterator[ControlPlane]:
    """An API server that serves all kinds that the manager creates."""
    async for plane in pytest_plugin._for_session(pytestconfig, SHAPE):
        yield plane


@pytest.fixture
def control_plane(plane: ControlPlane) -> ControlPlane:
    """The same, for `api` and `namespace`."""
    return plane


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def stored_before(plane: ControlPlane) -> None:
    """Runtimes that were stored without validation and would be rejected now."""
    async with plane.client() as api:
        for name, manifest in STORED_BEFORE.items():
            await wait_until_stored(api, placed(manifest, CLUSTER_KIND, name, ""))


async def wait_until_stored(api: ApiClient, manifest: Object) -> None:
    """Create the object; until the API server has forgotten the webhook of earlier tests."""

    async def stored() -> bool:
        try:
            await api.create(manifest)
        except ApiError:
            return False
        return True

    await until(stored, within=30.0, what=f"{manifest['metadata']['name']} being stored")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def manager(plane: ControlPlane, stored_before: None) -> AsyncIterator[ManagerProcess]:
    """A manager whose webhook is called, for the tests of a module."""
    async with admitting_manager(plane, "--log-level", "debug") as manager:
        yield manager
        check_rules_are_named(manager)


def check_rules_are_named(manager: ManagerProcess) -> None:
    """Fail if a request was denied by a rule that the document does not list."""
    denied = manager.log_entries("admission_denied")
    ours = {*map(str, (*Rule, *PLUGIN_RULES)), *OWN_RULES} - {OTHER}
    assert denied
    assert [each for each in denied if not set() < set(each["rules"]) <= ours] == []


@pytest.fixture
def user(api: ApiClient, manager: ManagerProcess) -> AdmissionClient:
    """A user who applies objects while the webhook is called."""
    return admission_client_for(api, manager)
