"""The authority of the cluster and client certificates are rotated while we run."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from kftrainer.devcluster.components import pki
from kftrainer.kube.client.credentials import Connection, in_cluster, load_connection
from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.client.tls import CHECK_EVERY
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.machinery.manager.clock import SystemClock
from tests.support.fake_clock import FakeClock

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class Authority:
    """An authority, and a certificate of it for servers and clients."""

    def __init__(self, folder: Path, name: str) -> None:
        authority = pki.Authority(folder, name, SystemClock().now())
        pair = authority.issue(f"{name}-leaf", common_name=name, hosts=["127.0.0.1"])
        self.pem = authority.certificate.read_bytes()
        self.certificate, self.key = pair.certificate, pair.key


class ApiServer:
    """Answers everything; which certificates it shows and accepts can be changed."""

    def __init__(self) -> None:
        self.port = 0
        self.clients: list[str] = []
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def show(self, shown: Authority, *accepted: Authority) -> None:
        """Present another certificate on new connections, and request one of these authorities."""
        self.tls.load_cert_chain(shown.certificate, shown.key)
        for each in accepted:
            self.tls.load_verify_locations(cadata=each.pem.decode())
            self.tls.verify_mode = ssl.CERT_REQUIRED

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        peer = writer.get_extra_info("peercert") or {}
        self.clients.append(peer.get("serialNumber", ""))
        writer.write(ANSWER)
        writer.close()


@asynccontextmanager
async def serving(first: Authority, *accepted: Authority) -> AsyncIterator[ApiServer]:
    api = ApiServer()
    api.show(first, *accepted)
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0, ssl=api.tls)
    api.port = server.sockets[0].getsockname()[1]
    async with server:
        yield api


class TlsFiles:
    """Two authorities, and the files that name the one that is trusted."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.old, self.new = Authority(folder, "old"), Authority(folder, "new")
        self.folder = folder / "files"
        self.folder.mkdir()
        self.trust(self.old)
        (self.folder / "token").write_text("secret")

    def trust(self, *trusted: Authority) -> None:
        (self.folder / "ca.crt").write_bytes(b"".join(each.pem for each in trusted))

    def kubeconfig(self, port: int, cluster: dict[str, str], user: dict[str, str]) -> Path:
        server = {"server": f"https://127.0.0.1:{port}", **cluster}
        document = {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": server}],
            "users": [{"name": "x", "user": user}],
        }
        path = self.folder / "kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


async def connect(
    files: TlsFiles, how: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> Connection:
    if how == "pod":
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        return await in_cluster(files.folder, clock=files.clock)
    cluster = {"certificate-authority": "ca.crt"}
    path = files.kubeconfig(port, cluster, {"token": "secret"})
    return await load_connection(path, clock=files.clock)


async def reaches(transport: HttpTransport) -> bool:
    try:
        await transport.request("PATCH", "/")
    except TransportError as error:
        if "certificate" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("how", ["pod", "kubeconfig"])
async def test_rotated_authority_is_trusted_without_a_restart(
    files: TlsFiles, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(files.old) as api:
        connection = await connect(files, how, api.port, monkeypatch)
        async with HttpTransport(connection, user_agent="tests") as transport:
            assert await reaches(transport)
            files.trust(files.old, files.new)  # as Kubernetes publishes it at first
            await files.clock.advance(CHECK_EVERY)
            assert await reaches(transport)
            api.show(files.new)
            assert await reaches(transport), "no request is lost between the two"
            files.trust(files.new)
            await files.clock.advance(CHECK_EVERY)
            assert await reaches(transport)
            api.show(files.old)
            assert not await reaches(transport), "an authority that was withdrawn is not trusted"


async def test_authority_in_the_kubeconfig_itself_is_read_again(files: TlsFiles) -> None:
    def kubeconfig(trusted: Authority, port: int) -> Path:
        text = b64encode(trusted.pem).decode()
        return files.kubeconfig(port, {"certificate-authority-data": text}, {"token": "secret"})

    async with serving(files.old) as api:
        path = kubeconfig(files.old, api.port)
        connection = await load_connection(path, clock=files.clock)
        async with HttpTransport(connection, user_agent="tests") as transport:
            assert await reaches(transport)
            api.show(files.new)
            kubeconfig(files.new, api.port)
            await files.clock.advance(CHECK_EVERY)
            assert await reaches(transport)


async def test_client_certificate_is_read_again(files: TlsFiles) -> None:
    certificate, key = files.folder / "client.crt", files.folder / "client.key"

    def write_client_certificate(client: Authority) -> None:
        certificate.write_bytes(client.certificate.read_bytes())
        key.write_bytes(client.key.read_bytes())

    async with serving(files.old, files.old, files.new) as api:
        write_client_certificate(files.old)
        user = {"client-certificate": "client.crt", "client-key": "client.key"}
        path = files.kubeconfig(api.port, {"certificate-authority": "ca.crt"}, user)
        connection = await load_connection(path, clock=files.clock)
        async with HttpTransport(connection, user_agent="tests") as transport:
            assert await reaches(transport)
            write_client_certificate(files.new)
            await files.clock.advance(CHECK_EVERY)
            assert await reaches(transport)
    assert len(set(api.clients)) == 2


async def test_file_that_cannot_be_used_leaves_the_last_one_in_place(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(files.old) as api:
        connection = await connect(files, "pod", api.port, monkeypatch)
        async with HttpTransport(connection, user_agent="tests") as transport:
            (files.folder / "ca.crt").write_bytes(files.new.pem[:100])
            with capture_logs() as logged:
                for _ in range(3):
                    await files.clock.advance(CHECK_EVERY)
                    assert await reaches(transport)
            assert [each["event"] for each in logged] == ["certificates_not_reloaded"]
            api.show(files.new)
            files.trust(files.new)
            await files.clock.advance(CHECK_EVERY)
            assert await reaches(transport)
