"""A webhook that only the API server may call, because it presents a client certificate."""

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster import cache_paths, pytest_plugin
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.components.pki import Authority, KeyPair
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.webhooks import registration
from tests.integration.webhooks.conftest import SHAPE
from tests.support.doc_snippets import files
from tests.support.managers import ManagerProcess, manager_process
from tests.support.raw_https import trusting
from tests.support.service_proxy import service_proxy
from tests.support.webhooks import (
    SERVICE,
    admission_client,
    unregister,
    wait_until_called,
    webhook_flags,
)

pytestmark = pytest.mark.integration

NAME = "kube-apiserver-webhook"
DOCUMENTED = "/etc/kubernetes/webhooks"
SERVED: Object = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": SERVICE, "namespace": DEFAULT_NAMESPACE},
    "spec": {"ports": [{"port": 443}]},
}
REFUSED = (aiohttp.ClientError, ssl.SSLError, ConnectionError)


@dataclass(frozen=True)
class Clients:
    """An authority in a file that the manager reads, and certificates."""

    file: Path
    authority: Authority
    api_server: KeyPair
    other: Authority

    def untrusted_key_pairs(self) -> dict[str, KeyPair | None]:
        """Who must not be served."""
        return {
            "without": None,
            "foreign": self.other.issue("foreign", common_name=NAME),
            "misnamed": self.authority.issue("misnamed", common_name="somebody"),
        }


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    """The API server's certificate, in the folder and the files that the documentation names."""
    folder, now = tmp_path_factory.mktemp("webhooks"), SystemClock().now()
    for name, text in files("admission.md").items():
        (folder / name).write_text(text.replace(DOCUMENTED, str(folder)))
    ours = Authority(folder, "webhook-clients", now)
    file = folder / "trusted.crt"
    file.write_bytes(ours.certificate.read_bytes())
    issued = ours.issue("client", common_name=NAME)
    return Clients(file, ours, issued, Authority(folder / "other", "webhook-clients", now))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def identified_plane(
    pytestconfig: pytest.Config, clients: Clients
) -> AsyncIterator[ControlPlane]:
    """An API server that presents the certificate."""
    file = clients.file.parent / "admission.yaml"
    shape = replace(SHAPE, crds=SHAPE.crds[:1], service_proxy=True, admission_config=file)
    async for plane in pytest_plugin._for_session(pytestconfig, shape):
        yield plane


@dataclass(frozen=True)
class Served:
    """A manager that requires certificates."""

    manager: ManagerProcess
    port: int

    async def status_for(self, client: KeyPair | None) -> int:
        """What this client is answered; raises one of REFUSED if its connection is refused."""
        tls = trusting()
        if client is not None:
            tls.load_cert_chain(client.certificate, client.key)
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"https://{LOOPBACK}:{self.port}/nothing", ssl=tls) as answer,
        ):
            return answer.status


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(identified_plane: ControlPlane, clients: Clients) -> AsyncIterator[Served]:
    """A manager that the API server calls, and that requires its certificate."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    port = ports.reserve()
    flags = (
        *webhook_flags(port),
        *(
            "--log-level",
            "debug",
            "--webhook-client-ca",
            str(clients.file),
            "--webhook-client-name",
            NAME,
        ),
    )
    async with identified_plane.client() as api:
        await api.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEFAULT_NAMESPACE}}
        )
        address = (await api.apply(SERVED))["spec"]["clusterIP"]
        await api.apply(registration.configuration(SERVICE, DEFAULT_NAMESPACE))
        with service_proxy(identified_plane) as routes:
            routes.lead({f"{address}:443": [port]})
            try:
                async with manager_process(identified_plane.kubeconfig, *flags) as manager:
                    await manager.wait_ready()
                    await wait_until_called(identified_plane)
                    yield Served(manager, port)
            finally:
                await unregister(api)
                ports.release_all()


async def test_api_server_with_the_documented_configuration_is_served(
    identified_plane: ControlPlane, served: Served
) -> None:
    runtime: Object = {"name": "there-is-none", "kind": "TrainingRuntime"}
    job: Object = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"runtimeRef": runtime},
    }
    async with admission_client(identified_plane) as user:
        assert "must be created before the TrainJob" in (await user.create(job)).denial


@pytest.mark.parametrize("which", ["without", "foreign", "misnamed"])
async def test_connection_without_a_trusted_client_certificate_is_refused(
    served: Served, clients: Clients, which: str
) -> None:
    with pytest.raises(REFUSED):
        await served.status_for(clients.untrusted_key_pairs()[which])
    assert await served.status_for(clients.api_server) == 404
    events = ("client_refused", "client_name_refused", "handshake_failed")
    assert any(served.manager.log_entries(each) for each in events)
