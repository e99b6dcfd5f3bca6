"""Authentication to the real API server, with every kind of credentials."""

import base64
import json
import ssl
import stat
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import (
    REFRESH_AFTER,
    Connection,
    CredentialsError,
    in_cluster,
    load_connection,
)
from kftrainer.kube.client.errors import ForbiddenError, TransportError, UnauthorizedError
from kftrainer.kube.client.transport import HttpTransport
from tests.integration.kube.kinds import CONFIG_MAPS, resource
from tests.support.fake_clock import FakeClock

REVIEWS = resource(
    "SelfSubjectReview", "selfsubjectreviews", group="authentication.k8s.io", namespaced=False
)
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
Token = Callable[[str], Awaitable[str]]


@asynccontextmanager
async def client_of(connection: Connection) -> AsyncIterator[Client]:
    async with HttpTransport(connection, user_agent="kftrainer-tests/1") as transport:
        yield Client(transport)


async def who_am_i(client: Client) -> str:
    name: str = (await client.create(REVIEWS, REVIEW))["status"]["userInfo"]["username"]
    return name


@pytest.fixture
def token(api: ApiClient, namespace: str) -> Token:
    """A token of the API server for a service account in the namespace."""

    async def make(name: str) -> str:
        account = {"name": name, "namespace": namespace}
        await api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        review = await api.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )
        issued: str = review["status"]["token"]
        return issued

    return make


class Kubeconfig:
    """A kubeconfig of the control plane, with a user as a test wants it."""

    def __init__(self, plane: ControlPlane, path: Path) -> None:
        self.admin: dict[str, Any] = yaml.safe_load(plane.kubeconfig.read_text())
        self.path = path

    def write(self, user: dict[str, Any], **cluster: Any) -> Path:
        document = {
            **self.admin,
            "users": [{"name": "me", "user": user}, *self.admin["users"]],
            "contexts": [
                {"name": "mine", "context": {"cluster": "kftrainer-dev", "user": "me"}},
                *self.admin["contexts"],
            ],
            "current-context": "mine",
        }
        document["clusters"][0]["cluster"] |= cluster
        self.path.write_text(yaml.safe_dump(document))
        return self.path


@pytest.fixture
def kubeconfig(control_plane: ControlPlane, tmp_path: Path) -> Kubeconfig:
    return Kubeconfig(control_plane, tmp_path / "kubeconfig")


class Plugin:
    """An exec plugin that prints the content of a file and counts its calls."""

    def __init__(self, folder: Path) -> None:
        self._response_file = folder / "says.json"
        self._runs = folder / "runs"
        self.program = folder / "plugin"
        self.program.write_text(
            textwrap.dedent(f"""\
            #!/bin/sh
            echo "$GREETING" >> {self._runs}
            cat {self._response_file}
            """)
        )
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def respond(self, **status: str) -> None:
        api = "client.authentication.k8s.io/v1"
        answer = {"apiVersion": api, "kind": "ExecCredential", "status": status}
        self._response_file.write_text(json.dumps(answer))

    @property
    def runs(self) -> list[str]:
        return self._runs.read_text().splitlines()

    def user(self) -> dict[str, Any]:
        return {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": str(self.program),
                "env": [{"name": "GREETING", "value": "hello"}],
                "interactiveMode": "Never",
            }
        }


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


async def test_a_client_certificate_in_a_kubeconfig(control_plane: ControlPlane) -> None:
    connection = await load_connection(control_plane.kubeconfig_for("alice"))
    async with client_of(connection) as client:
        assert await who_am_i(client) == "alice"


async def test_context_is_the_current_or_the_requested_one(
    kubeconfig: Kubeconfig, token: Token, namespace: str
) -> None:
    path = kubeconfig.write({"token": await token("builder")})
    async with client_of(await load_connection(path)) as client:
        assert await who_am_i(client) == f"system:serviceaccount:{namespace}:builder"
    [admin] = kubeconfig.admin["contexts"]
    async with client_of(await load_connection(path, admin["name"])) as client:
        assert await who_am_i(client) == admin["context"]["user"]


async def test_unknown_context_is_reported(kubeconfig: Kubeconfig) -> None:
    with pytest.raises(CredentialsError, match="name elsewhere in"):
        await load_connection(kubeconfig.write({}), "elsewhere")


async def test_a_token_of_an_exec_plugin(
    kubeconfig: Kubeconfig, plugin: Plugin, token: Token, namespace: str
) -> None:
    plugin.respond(token=await token("builder"))
    clock = FakeClock()
    connection = await load_connection(kubeconfig.write(plugin.user()), clock=clock)
    async with client_of(connection) as client:
        for _ in range(3):
            assert await who_am_i(client) == f"system:serviceaccount:{namespace}:builder"
            await clock.advance(REFRESH_AFTER)
    assert plugin.runs == ["hello"], "its token has no end"


async def test_an_exec_plugin_runs_again_when_its_token_ends(
    kubeconfig: Kubeconfig, plugin: Plugin, token: Token, namespace: str
) -> None:
    plugin.respond(token=await token("first"), expirationTimestamp="2020-01-01T00:00:00Z")
    clock = FakeClock()
    connection = await load_connection(kubeconfig.write(plugin.user()), clock=clock)
    async with client_of(connection) as client:
        assert await who_am_i(client) == f"system:serviceaccount:{namespace}:first"
        plugin.respond(token=await token("second"), expirationTimestamp="2999-01-01T00:00:00Z")
        await clock.advance(REFRESH_AFTER)
        assert await who_am_i(client) == f"system:serviceaccount:{namespace}:second"
        await clock.advance(REFRESH_AFTER)
        assert await who_am_i(client) == f"system:serviceaccount:{namespace}:second"
    assert plugin.runs == ["hello", "hello"]


async def test_an_exec_plugin_runs_again_when_its_token_is_refused(
    kubeconfig: Kubeconfig, plugin: Plugin, token: Token, namespace: str
) -> None:
    plugin.respond(token="stale", expirationTimestamp="2999-01-01T00:00:00Z")  # noqa: S106
    connection = await load_connection(kubeconfig.write(plugin.user()))
    plugin.respond(token=await token("builder"))
    async with client_of(connection) as client:
        assert await who_am_i(client) == f"system:serviceaccount:{namespace}:builder"
    assert plugin.runs == ["hello", "hello"]


async def test_a_certificate_of_an_exec_plugin(
    control_plane: ControlPlane, kubeconfig: Kubeconfig, plugin: Plugin
) -> None:
    user = yaml.safe_load(control_plane.kubeconfig_for("alice").read_text())["users"][0]["user"]
    plugin.respond(
        clientCertificateData=base64.b64decode(user["client-certificate-data"]).decode(),
        clientKeyData=base64.b64decode(user["client-key-data"]).decode(),
    )
    async with client_of(await load_connection(kubeconfig.write(plugin.user()))) as client:
        assert await who_am_i(client) == "alice"


async def test_exec_plugin_without_output_is_reported(
    kubeconfig: Kubeconfig, plugin: Plugin
) -> None:
    plugin.respond()
    path = kubeconfig.write(plugin.user())
    with pytest.raises(CredentialsError, match="neither a token nor a certificate"):
        await load_connection(path)
    plugin.program.write_text("#!/bin/sh\necho no idea >&2\nexit 3\n")
    with pytest.raises(CredentialsError, match=r"process returned 3\. no idea"):
        await load_connection(path)


async def test_server_name_of_the_certificate_can_be_set(kubeconfig: Kubeconfig) -> None:
    [admin] = kubeconfig.admin["contexts"]
    path = kubeconfig.write({}, **{"tls-server-name": "kubernetes.default.svc"})
    async with client_of(await load_connection(path, admin["name"])) as client:
        assert await who_am_i(client) == admin["context"]["user"]
    path = kubeconfig.write({}, **{"tls-server-name": "somebody.else"})
    async with client_of(await load_connection(path, admin["name"])) as client:
        with pytest.raises(TransportError, match=r"somebody\.else"):
            await who_am_i(client)


async def test_server_with_untrusted_certificate_is_refused(
    kubeconfig: Kubeconfig, token: Token
) -> None:
    path = kubeconfig.write({"token": await token("builder")})
    document = yaml.safe_load(path.read_text())
    cluster = document["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    path.write_text(yaml.safe_dump(document))
    async with client_of(await load_connection(path)) as client:
        with pytest.raises(TransportError, match="certificate"):
            await who_am_i(client)

    cluster["insecure-skip-tls-verify"] = True
    path.write_text(yaml.safe_dump(document))
    connection = await load_connection(path)
    assert connection.tls is not None
    assert connection.tls.verify_mode is ssl.CERT_NONE
    async with client_of(connection) as client:
        assert (await who_am_i(client)).endswith(":builder")


@pytest.fixture
def pod(control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the kubelet mounts it, without a token; and the environment of a pod."""
    address = urlsplit(control_plane.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(address.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(address.port))
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(control_plane.certificate_authority.read_bytes())
    return folder


async def test_a_pod_follows_the_rotation_of_its_token(
    pod: Path, token: Token, namespace: str
) -> None:
    clock = FakeClock()
    (pod / "token").write_text(await token("first") + "\n")
    async with client_of(await in_cluster(pod, clock=clock)) as client:
        assert await who_am_i(client) == f"system:serviceaccount:{namespace}:first"
        (pod / "token").write_text(await token("second") + "\n")
        await clock.advance(REFRESH_AFTER - 1)
        assert await who_am_i(client) == f"system:serviceaccount:{namespace}:first"
        await clock.advance(1)
        assert await who_am_i(client) == f"system:serviceaccount:{namespace}:second"


@pytest.mark.parametrize("content", ["", None], ids=["empty", "gone"])
async def test_in_cluster_token_is_kept_while_its_file_is_invalid(
    pod: Path, token: Token, content: str | None
) -> None:
    clock = FakeClock()
    file = pod / "token"
    file.write_text(await token("first"))
    async with client_of(await in_cluster(pod, clock=clock)) as client:
        file.unlink() if content is None else file.write_text(content)
        await clock.advance(REFRESH_AFTER)
        assert (await who_am_i(client)).endswith(":first")


async def test_a_token_that_is_refused_is_read_again_at_once(
    pod: Path, token: Token, namespace: str
) -> None:
    (pod / "token").write_text("stale")
    async with client_of(await in_cluster(pod, clock=FakeClock())) as client:
        (pod / "token").write_text(await token("builder"))
        assert await who_am_i(client) == f"system:serviceaccount:{namespace}:builder"


async def test_a_watch_whose_token_is_refused_reads_it_again_too(
    pod: Path, token: Token, namespace: str
) -> None:
    (pod / "token").write_text("stale")
    async with client_of(await in_cluster(pod, clock=FakeClock())) as client:
        (pod / "token").write_text(await token("builder"))
        with pytest.raises(ForbiddenError, match=f"system:serviceaccount:{namespace}:builder"):
            async with client.watch(CONFIG_MAPS, namespace=namespace, timeout_seconds=1):
                pass


async def test_a_token_that_stays_refused_is_an_error(pod: Path) -> None:
    (pod / "token").write_text("stale")
    async with client_of(await in_cluster(pod)) as client:
        with pytest.raises(UnauthorizedError):
            await who_am_i(client)
        (pod / "token").write_text("also stale")
        with pytest.raises(UnauthorizedError):
            await who_am_i(client)
