"""Released Kubeflow SDKs, each in an environment of its own, and a manager that they work with."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from tests.integration.chart.test_runtimes import runtimes_of
from tests.support.helm import render
from tests.support.processes import ran
from tests.support.trainjobs import COMPLETES_LATE, END_TO_END_TIMEOUT
from tests.support.webhooks import AdmissionClient, admission_client_for, admitting_manager

ROOT = Path(__file__).parents[2]
SDKS = ("0.1.0", "0.3.1", "0.4.1", "0.5.0")  # those that `make test-clients` installs
SESSION = Path(__file__).with_name("sdk_session.py")
SESSION_WITHIN = 600.0
CONFIGURATION = """\
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
admission:
  stringNumProcPerNode: {}
"""


@dataclass(frozen=True, slots=True)
class Sdk:
    """One release of the SDK, used by an administrator in one namespace."""

    version: str
    kubeconfig: Path
    namespace: str

    async def __call__(self, scenario: str) -> Any:
        """Run a scenario of sdk_session.py; its outcome."""
        python = ROOT / ".clientsenv" / self.version / "bin" / "python"
        assert python.exists(), "install the SDKs with `make test-clients`"
        async with asyncio.timeout(SESSION_WITHIN):
            done = await ran(
                [str(python), str(SESSION), str(self.kubeconfig), self.namespace, scenario]
            )
        assert done.code == 0, done.error_output
        return json.loads(done.printed.splitlines()[-1])


def lasting(runtime: Object) -> Object:
    """The runtime with pods that run until they are deleted."""
    changed = copy.deepcopy(runtime)
    changed["metadata"]["name"] = "torch-lasting"
    [job] = changed["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["metadata"] = {"annotations": COMPLETES_LATE}
    return changed


@pytest.fixture(scope="module", params=["Warn", "Reject"])
def setting(request: pytest.FixtureRequest) -> str:
    """The value of admission.stringNumProcPerNode."""
    value: str = request.param
    return value


@pytest.fixture(scope="session")
def shipped(helm_program: Path) -> dict[str, Object]:
    """The runtimes of the chart, by name."""
    return runtimes_of(render(helm_program))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(
    full_control_plane: ControlPlane,
    setting: str,
    shipped: dict[str, Object],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ControlPlane]:
    """A whole cluster with the manager, its webhook and the runtimes that are shipped."""
    home = tmp_path_factory.mktemp("manager")
    (home / "config.yaml").write_text(CONFIGURATION.format(setting))
    (home / "runtimes").mkdir()
    for name, runtime in shipped.items():
        (home / "runtimes" / f"{name}.yaml").write_text(yaml.safe_dump(runtime))
    flags = ("--config", str(home / "config.yaml"), "--runtimes", str(home / "runtimes"))
    async with (
        admitting_manager(full_control_plane, *flags),
        full_control_plane.client() as api,
    ):
        root = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"

        async def applied() -> bool:
            found = (await api.get(root))["items"]
            return shipped.keys() <= {each["metadata"]["name"] for each in found}

        await until(applied, within=END_TO_END_TIMEOUT, what="the runtimes being applied")
        await api.apply(lasting(shipped["torch-distributed"]))
        yield full_control_plane


@pytest.fixture(params=SDKS)
def sdk(request: pytest.FixtureRequest, cluster: ControlPlane, namespace: str) -> Sdk:
    """The SDK, one release after the other."""
    return Sdk(request.param, cluster.kubeconfig, namespace)


@pytest.fixture
def user(api: ApiClient) -> AdmissionClient:
    """A user who writes objects with kubectl and reads its warnings."""
    return admission_client_for(api)
