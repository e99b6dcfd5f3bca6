"""Certificates that change under a running server."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from structlog.testing import capture_logs

from kftrainer.devcluster.components.pki import Authority, KeyPair
from kftrainer.machinery.certs.serving import (
    CertificateError,
    CertificateFiles,
    ClientAuthorityFile,
    ServingCertificate,
    self_signed,
)
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.lifetime import Budget, running
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.webhook.server import HttpRequest, HttpResponse, WebServer
from tests.support.certificates import authority
from tests.support.fake_clock import START, FakeClock
from tests.support.odd_certificates import ODD, ODD_KEY


def pair(folder: Path, name: str) -> tuple[bytes, bytes]:
    """A certificate for this name, and its key."""
    issued = Authority(folder / f"ca-{name}", "ca", START).issue("s", common_name=name)
    return issued.certificate.read_bytes(), issued.key.read_bytes()


def put_pair(folder: Path, name: str) -> None:
    certificate, key = pair(folder, name)
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "tls.key").write_bytes(key)


async def close_at_once(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    async with await asyncio.start_server(close_at_once, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


def trusting_context() -> ssl.SSLContext:
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    return trusting


async def name_shown_at(
    port: int, context: ssl.SSLContext | None = None, server_name: str | None = None
) -> str:
    """The name on the certificate that a server shows to a new connection."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context or trusting_context(), server_hostname=server_name
    )
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).subject.rfc4514_string()


def new_serving(
    clock: FakeClock | None = None, metrics: Metrics | None = None
) -> ServingCertificate:
    return ServingCertificate(clock=clock or FakeClock(), metrics=metrics or Metrics())


class TestServedCertificate:
    async def test_is_nothing_at_first(self) -> None:
        serving = new_serving()
        assert serving.missing() == "there is no certificate yet"
        serving.failure = "somebody is slow"
        assert serving.missing() == "there is no certificate yet: somebody is slow"
        async with listening(serving.context) as port:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await name_shown_at(port)

    async def test_is_the_newest_pair_from_then_on(self, tmp_path: Path) -> None:
        serving = new_serving()
        async with listening(serving.context) as port:
            for name in ("first", "second"):
                serving.present(*pair(tmp_path, name))
                assert await name_shown_at(port) == f"CN={name}"
        assert serving.missing() is None

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    @pytest.mark.parametrize("server_name", ["", "hooks.ours.svc"])
    async def test_is_the_same_for_every_client(
        self, tmp_path: Path, version: ssl.TLSVersion, server_name: str
    ) -> None:
        serving = new_serving()
        serving.present(*pair(tmp_path, "shown"))
        client = trusting_context()
        client.minimum_version = client.maximum_version = version
        async with listening(serving.context) as port:
            assert await name_shown_at(port, client, server_name) == "CN=shown"

    def test_is_never_shown_with_an_old_tls(self, tmp_path: Path) -> None:
        serving = new_serving()
        serving.present(*pair(tmp_path, "shown"))
        assert serving.context.minimum_version == ssl.TLSVersion.TLSv1_2

    async def test_stays_when_the_next_pair_is_invalid(self, tmp_path: Path) -> None:
        serving = new_serving()
        first, second = pair(tmp_path, "first"), pair(tmp_path, "second")
        serving.present(*first)
        bad = [(second[0], first[1]), (b"", b""), (b"garbage", second[1]), (second[0], b"garbage")]
        async with listening(serving.context) as port:
            for each in bad:
                with pytest.raises(CertificateError):
                    serving.present(*each)
                assert await name_shown_at(port) == "CN=first"

    async def test_does_not_change_for_connections_that_are_there(self, tmp_path: Path) -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line)
            writer.close()

        serving = new_serving()
        serving.present(*pair(tmp_path, "first"))
        async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=serving.context) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusting_context()
            )
            serving.present(*pair(tmp_path, "second"))
            writer.write(b"still there?\n")
            assert await reader.readline() == b"still there?\n"
            writer.close()
            await writer.wait_closed()

    async def test_is_reported_when_it_has_expired(self, tmp_path: Path) -> None:
        clock, metrics = FakeClock(), Metrics()
        serving = new_serving(clock, metrics)
        serving.present(*pair(tmp_path, "shown"))
        expires = metrics.registry.get_sample_value(
            "machinery_certificate_expiry_timestamp_seconds", {"server": "webhooks"}
        )
        assert expires == (START + timedelta(days=365)).timestamp()
        await clock.advance(timedelta(days=364).total_seconds())
        assert serving.missing() is None
        await clock.advance(timedelta(days=2).total_seconds())
        assert serving.missing() == "the certificate expired at 2027-01-01T00:00:00+00:00"

    @pytest.mark.parametrize("has_memory_files", [True, False])
    def test_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory_files: bool
    ) -> None:
        issued, place = pair(tmp_path, "shown"), tmp_path / "temporary"
        place.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(place))
        if not has_memory_files:
            monkeypatch.delattr("os.memfd_create", raising=False)
        new_serving().present(*issued)
        opened = sorted(os.listdir("/proc/self/fd"))
        new_serving().present(*issued)
        with pytest.raises(CertificateError):
            new_serving().present(issued[0], b"garbage")
        assert sorted(os.listdir("/proc/self/fd")) == opened
        assert list(place.iterdir()) == []

    @pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has files in memory")
    def test_never_touches_a_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        issued = pair(tmp_path, "shown")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "read-only"))
        serving = new_serving()
        serving.present(*issued)
        assert serving.missing() is None

    def test_is_reported_if_clients_do_not_trust_it(self, tmp_path: Path) -> None:
        serving = new_serving()
        serving.untrusted_because = "somebody does not trust it"
        assert serving.missing() == "there is no certificate yet"
        serving.present(*pair(tmp_path, "shown"))
        serving.failure = "writing is forbidden"
        assert serving.missing() == "somebody does not trust it: writing is forbidden"

    @pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
    def test_encrypted_key_is_reported_without_a_prompt(self, form: PrivateFormat) -> None:
        ca = authority(START)
        key = ca.key.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"secret"))
        with pytest.raises(CertificateError, match="the key is encrypted"):
            new_serving().present(ca.pem, key)

    @pytest.mark.parametrize("unreadable", ODD.values(), ids=ODD.keys())
    def test_unreadable_certificate_is_never_presented(self, unreadable: bytes) -> None:
        with pytest.raises(CertificateError, match="cannot be read"):
            new_serving().present(unreadable, ODD_KEY)


class TestClientCertificates:
    """A server that requires them, on a loop of each kind: they accept sockets differently."""

    @pytest.fixture(params=["asyncio", "uvloop"])
    def run(self, request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
        if request.param == "asyncio":
            return asyncio.run
        return pytest.importorskip("uvloop").run  # type: ignore[no-any-return]

    def test_are_required_in_the_handshake(
        self, tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        ours, other = (Authority(tmp_path / name, "ca", START) for name in ("ours", "other"))
        good = ours.issue("good", common_name="good")
        serving = new_serving()
        serving.require_clients_of(ours.certificate.read_bytes())
        serving.present(*pair(tmp_path, "shown"))

        async def check() -> None:
            async with answering(serving, names=["good"]) as port:
                assert await answers(port, good)
                assert not await answers(port, None)
                assert not await answers(port, other.issue("good", common_name="good"))
                assert not await answers(port, ours.issue("bad", common_name="bad"))
                assert not await answers(port, good, ssl.TLSVersion.TLSv1_2)
                serving.require_clients_of(other.certificate.read_bytes())
                assert not await answers(port, good)
                serving.present(*pair(tmp_path, "newer"))
                assert not await answers(port, good)
                assert await answers(port, other.issue("good", common_name="good"))

        run(check())

    def test_of_unusable_authorities_change_nothing(self, tmp_path: Path) -> None:
        serving = new_serving()
        for bad in (b"", b"garbage", "ä".encode()):
            with pytest.raises(CertificateError, match="client authorities cannot be used"):
                serving.require_clients_of(bad)
        assert serving.context.verify_mode != ssl.CERT_REQUIRED
        serving.present(*pair(tmp_path, "shown"))
        ours = Authority(tmp_path / "ours", "ca", START).certificate.read_bytes()
        serving.require_clients_of(ours)
        with pytest.raises(CertificateError):
            serving.require_clients_of(b"garbage")
        assert serving.context.verify_mode.name == "CERT_REQUIRED"

    async def test_are_reloaded_when_the_file_changes(self, tmp_path: Path) -> None:
        clock, stop, file = FakeClock(), asyncio.Event(), tmp_path / "clients.crt"
        with pytest.raises(CertificateError, match=r"cannot be read: .*clients\.crt"):
            ClientAuthorityFile(file, new_serving(), clock=clock)
        file.write_bytes(b"garbage")
        with pytest.raises(CertificateError, match=r"clients\.crt: The client authorities"):
            ClientAuthorityFile(file, new_serving(), clock=clock)
        first, second = (Authority(tmp_path / name, "ca", START) for name in ("a", "b"))
        client = second.issue("client", common_name="client")
        serving = new_serving()
        serving.present(*pair(tmp_path, "shown"))
        file.write_bytes(first.certificate.read_bytes())
        service = ClientAuthorityFile(file, serving, clock=clock)
        with capture_logs() as logs:
            async with answering(serving) as port, asyncio.TaskGroup() as group:
                group.create_task(service.run(lambda: None, stop))
                await asyncio.sleep(0)
                assert not await answers(port, None)
                assert not await answers(port, client)
                file.unlink()
                await clock.advance(20)
                assert not await answers(port, client)
                file.write_bytes(second.certificate.read_bytes())
                await clock.advance(10)
                assert await answers(port, client)
                stop.set()
        assert [each["event"] for each in logs].count("client_authorities_not_reloaded") == 1


@asynccontextmanager
async def answering(serving: ServingCertificate, names: Sequence[str] = ()) -> AsyncIterator[int]:
    """A web server with this certificate."""

    async def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, "")

    server = WebServer("test", "127.0.0.1:0", answer, tls=serving.context, client_names=names)
    async with asyncio.timeout(60), running(server, budget=Budget(SystemClock(), 5)):
        assert server.port is not None
        yield server.port


async def answers(
    port: int, client: KeyPair | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> bool:
    """Whether a request with this certificate is answered."""
    tls = trusting_context()
    tls.maximum_version = version
    if client is not None:
        tls.load_cert_chain(client.certificate, client.key)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    except (ssl.SSLError, ConnectionError):
        return False
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return (await reader.read(100)).startswith(b"HTTP/1.1 200")
    except (ssl.SSLError, ConnectionError):
        return False
    finally:
        writer.transport.abort()


class TestFiles:
    async def test_new_connections_see_the_newest_pair_that_fits(self, tmp_path: Path) -> None:
        clock, metrics, stop = FakeClock(), Metrics(), asyncio.Event()
        put_pair(tmp_path, "first")
        files = CertificateFiles(tmp_path, clock=clock, metrics=metrics)

        def count(name: str) -> float | None:
            return metrics.registry.get_sample_value(f"certwatcher_read_certificate_{name}")

        async with listening(files.context) as port, asyncio.TaskGroup() as group:
            group.create_task(files.run(lambda: None, stop))
            assert await name_shown_at(port) == "CN=first"

            key = (tmp_path / "tls.key").read_bytes()
            put_pair(tmp_path, "second")
            fitting = (tmp_path / "tls.key").read_bytes()
            (tmp_path / "tls.key").write_bytes(key)
            await clock.advance(10)
            assert await name_shown_at(port) == "CN=first"
            assert count("errors_total") == 1

            (tmp_path / "tls.key").write_bytes(fitting)
            await clock.advance(10)
            assert await name_shown_at(port) == "CN=second"
            assert (count("total"), count("errors_total")) == (2, 1)
            stop.set()

    async def test_a_half_written_pair_is_passed_over(self, tmp_path: Path) -> None:
        clock, stop = FakeClock(), asyncio.Event()
        put_pair(tmp_path, "first")
        files = CertificateFiles(tmp_path, clock=clock, metrics=Metrics())
        certificate, key = pair(tmp_path, "second")
        halves = [
            (certificate[:300], key),
            (certificate, key[:100]),
            (b"", key),
            (certificate, b""),
        ]
        with capture_logs() as logs:
            async with listening(files.context) as port, asyncio.TaskGroup() as group:
                group.create_task(files.run(lambda: None, stop))
                for half in halves:
                    (tmp_path / "tls.crt").write_bytes(half[0])
                    (tmp_path / "tls.key").write_bytes(half[1])
                    await clock.advance(20)
                    assert await name_shown_at(port) == "CN=first"
                (tmp_path / "tls.key").unlink()
                await clock.advance(10)
                assert await name_shown_at(port) == "CN=first"
                (tmp_path / "tls.key").write_bytes(key)
                await clock.advance(10)
                assert await name_shown_at(port) == "CN=second"
                stop.set()
        assert "PRIVATE KEY" not in repr(logs)
        kept = [entry for entry in logs if entry["event"] == "certificate_not_reloaded"]
        assert 1 <= len(kept) <= len(halves) + 1, "each error is logged once"

    async def test_a_projected_volume_is_swapped_as_a_whole(self, tmp_path: Path) -> None:
        """As the kubelet does it: a link to a link that is renamed over the old one."""
        clock, stop, volume = FakeClock(), asyncio.Event(), tmp_path / "volume"
        volume.mkdir()

        def publish(name: str) -> None:
            version = volume / f"..{name}"
            version.mkdir()
            put_pair(version, name)
            (volume / "..data_tmp").symlink_to(version.name)
            (volume / "..data_tmp").rename(volume / "..data")

        publish("first")
        for name in ("tls.crt", "tls.key"):
            (volume / name).symlink_to(f"..data/{name}")
        files = CertificateFiles(volume, clock=clock, metrics=Metrics())
        async with listening(files.context) as port, asyncio.TaskGroup() as group:
            group.create_task(files.run(lambda: None, stop))
            assert await name_shown_at(port) == "CN=first"
            publish("second")
            await clock.advance(10)
            assert await name_shown_at(port) == "CN=second"
            stop.set()

    def test_that_are_missing_are_reported_immediately(self, tmp_path: Path) -> None:
        with pytest.raises(CertificateError, match=r"tls\.crt"):
            CertificateFiles(tmp_path, clock=FakeClock(), metrics=Metrics())

    async def test_that_are_missing_are_waited_for_when_waiting_can_be_reported(
        self, tmp_path: Path
    ) -> None:
        clock, stop, ready = FakeClock(), asyncio.Event(), asyncio.Event()
        serving = new_serving(clock)
        files = CertificateFiles(tmp_path / "certs", serving, clock=clock, metrics=Metrics())
        with capture_logs() as logs:
            async with listening(serving.context) as port, asyncio.TaskGroup() as group:
                group.create_task(files.run(ready.set, stop))
                await clock.advance(60)
                assert ready.is_set()
                assert "tls.crt" in (serving.missing() or "")
                (tmp_path / "certs").mkdir()
                put_pair(tmp_path / "certs", "late")
                await clock.advance(1)
                assert (serving.missing(), serving.failure) == (None, None)
                assert await name_shown_at(port) == "CN=late"
                stop.set()
        awaited = [entry for entry in logs if entry["log_level"] == "warning"]
        assert [entry["event"] for entry in awaited] == ["certificate_missing"]


async def test_self_signed_certificate_is_generated_without_files() -> None:
    async with listening(self_signed(START)) as port:
        assert await name_shown_at(port) == "CN=localhost"
