"""Failures that the metrics must report, of managers that lack a permission."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from tests.support.managers import manager_process
from tests.support.objects import runtime
from tests.support.permissions import allow
from tests.support.webhooks import register, unregister, webhook_flags

WITHIN = 90.0
READ = ("get", "list", "watch")
CONFIGURATIONS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")


class ManagerEndpoints:
    """The probes and metrics of a manager."""

    def __init__(self, probes: ApiClient, metrics: ApiClient) -> None:
        self._probes = probes
        self._metrics = metrics

    async def wait_until_check_reports(self, check: str, words: str) -> None:
        """Wait until this check of readiness fails with these words."""

        async def reports() -> bool:
            try:
                await self._probes.fetch("GET", f"/readyz/{check}")
            except (ApiError, UnreachableError) as error:
                return words in str(error)
            return False

        await until(reports, within=WITHIN, what=f"a probe that reports {words}")

    async def wait_until_metrics_report(self, *wanted: str) -> None:
        """Wait until all of these lines are among the metrics."""

        async def report() -> bool:
            try:
                text = (await self._metrics.fetch("GET", "/metrics")).decode()
            except UnreachableError:
                return False
            return {*wanted} <= {*text.splitlines()}

        await until(report, within=WITHIN, what=f"metrics with {', '.join(wanted)}")


@asynccontextmanager
async def manager_endpoints(kubeconfig: Path, *flags: str) -> AsyncIterator[ManagerEndpoints]:
    """The probes and metrics of a manager with these flags."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    address = f"{LOOPBACK}:{ports.reserve()}"
    shown = ("--no-metrics-secure", "--metrics-bind-address", address)
    try:
        async with (
            manager_process(kubeconfig, *shown, *flags) as manager,
            ApiClient(manager.health_url, None) as probes,
            ApiClient(f"http://{address}", None) as metrics,
        ):
            yield ManagerEndpoints(probes, metrics)
    finally:
        ports.release_all()


@pytest.fixture
async def webhook_port(api: ApiClient) -> AsyncIterator[int]:
    """A webhook configuration that the API server calls."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    try:
        port = ports.reserve()
        await register(api, port)
        yield port
    finally:
        await unregister(api)
        ports.release_all()


def readiness(**checks: int) -> Sequence[str]:
    return [
        f'machinery_readiness_check{{name="{name}"}} {passed}' for name, passed in checks.items()
    ]


async def test_manager_is_up_and_not_ready_while_the_ca_bundle_is_missing(
    control_plane: ControlPlane, api: ApiClient, namespace: str, webhook_port: int
) -> None:
    user = f"without-configurations-{namespace}"
    await allow(api, user, READ)
    await allow(api, user, ["create", "update"], ["secrets"], name=f"{user}-secrets")
    flags = webhook_flags(webhook_port)
    async with manager_endpoints(control_plane.kubeconfig_for(user), *flags) as endpoints:
        await endpoints.wait_until_check_reports(
            "webhooks", "does not trust the certificate's authority"
        )
        await endpoints.wait_until_metrics_report(*readiness(caches=1, stopping=1, webhooks=0))
        await allow(api, user, ["update"], CONFIGURATIONS, name=f"{user}-configurations")
        await endpoints.wait_until_metrics_report(*readiness(caches=1, stopping=1, webhooks=1))


async def test_that_a_runtime_is_missing_as_it_may_not_be_applied(
    control_plane: ControlPlane, api: ApiClient, namespace: str, tmp_path: Path
) -> None:
    user, name = f"without-runtimes-{namespace}", f"torch-{namespace}"
    document = runtime(name, "ClusterTrainingRuntime")
    (tmp_path / "torch.yaml").write_text(yaml.safe_dump(document))
    await allow(api, user, READ)
    out_of_date = f'kftrainer_shipped_runtime_out_of_date{{runtime="{name}"}}'
    flags = ("--runtimes", str(tmp_path))
    async with manager_endpoints(control_plane.kubeconfig_for(user), *flags) as endpoints:
        await endpoints.wait_until_metrics_report(f"{out_of_date} 1")
        runtimes = ["clustertrainingruntimes"]
        await allow(api, user, ["create", "patch"], runtimes, name=f"{user}-runtimes")
        await endpoints.wait_until_metrics_report(f"{out_of_date} 0")
