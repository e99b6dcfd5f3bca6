"""Certificates that change under a running server."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from structlog.testing import capture_logs

from kftrainer.devcluster.pki import Authority
from kftrainer.machinery.metrics import Metrics
from kftrainer.machinery.serving_tls import (
    CertificateError,
    CertificateFiles,
    ServingCertificate,
    self_signed,
)
from tests.support.certificates import authority
from tests.support.fake_clock import START, FakeClock
from tests.support.odd_certificates import ODD, ODD_KEY


def pair(folder: Path, name: str) -> tuple[bytes, bytes]:
    """A certificate for this name, and its key."""
    made = Authority(folder / f"ca-{name}", "ca", START).issue("s", common_name=name)
    return made.certificate.read_bytes(), made.key.read_bytes()


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


def believing() -> ssl.SSLContext:
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    return trusting


async def name_shown_at(
    port: int, context: ssl.SSLContext | None = None, server_name: str | None = None
) -> str:
    """The name on the certificate that a server shows to a new connection."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context or believing(), server_hostname=server_name
    )
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).subject.rfc4514_string()


def new_serving(
    clock: FakeClock | None = None, metrics: Metrics | None = None
) -> ServingCertificate:
    return ServingCertificate(clock=clock or FakeClock(), metrics=metrics or Metrics())


class TestWhatAServerShows:
    async def test_is_nothing_at_first(self) -> None:
        serving = new_serving()
        assert serving.missing() == "there is no certificate yet"
        serving.trouble = "somebody is slow"
        assert serving.missing() == "there is no certificate yet: somebody is slow"
        async with listening(serving.context) as port:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await name_shown_at(port)

    async def test_is_the_newest_pair_from_then_on(self, tmp_path: Path) -> None:
        serving = new_serving()
        async with listening(serving.context) as port:
            for name in ("first", "second"):
                serving.show(*pair(tmp_path, name))
                assert await name_shown_at(port) == f"CN={name}"
        assert serving.missing() is None

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    @pytest.mark.parametrize("server_name", ["", "hooks.ours.svc"])
    async def test_is_the_same_for_every_client(
        self, tmp_path: Path, version: ssl.TLSVersion, server_name: str
    ) -> None:
        serving = new_serving()
        serving.show(*pair(tmp_path, "shown"))
        client = believing()
        client.minimum_version = client.maximum_version = version
        async with listening(serving.context) as port:
            assert await name_shown_at(port, client, server_name) == "CN=shown"

    def test_is_never_shown_with_an_old_tls(self, tmp_path: Path) -> None:
        serving = new_serving()
        serving.show(*pair(tmp_path, "shown"))
        assert serving.context.minimum_version == ssl.TLSVersion.TLSv1_2

    async def test_stays_when_the_next_pair_is_no_good(self, tmp_path: Path) -> None:
        serving = new_serving()
        first, second = pair(tmp_path, "first"), pair(tmp_path, "second")
        serving.show(*first)
        bad = [(second[0], first[1]), (b"", b""), (b"garbage", second[1]), (second[0], b"garbage")]
        async with listening(serving.context) as port:
            for each in bad:
                with pytest.raises(CertificateError):
                    serving.show(*each)
                assert await name_shown_at(port) == "CN=first"

    async def test_does_not_change_for_connections_that_are_there(self, tmp_path: Path) -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line)
            writer.close()

        serving = new_serving()
        serving.show(*pair(tmp_path, "first"))
        async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=serving.context) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=believing())
            serving.show(*pair(tmp_path, "second"))
            writer.write(b"still there?\n")
            assert await reader.readline() == b"still there?\n"
            writer.close()
            await writer.wait_closed()

    async def test_is_told_when_it_has_expired(self, tmp_path: Path) -> None:
        clock, metrics = FakeClock(), Metrics()
        serving = new_serving(clock, metrics)
        serving.show(*pair(tmp_path, "shown"))
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
        made, place = pair(tmp_path, "shown"), tmp_path / "temporary"
        place.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(place))
        if not has_memory_files:
            monkeypatch.delattr("os.memfd_create", raising=False)
        new_serving().show(*made)
        opened = sorted(os.listdir("/proc/self/fd"))
        new_serving().show(*made)
        with pytest.raises(CertificateError):
            new_serving().show(made[0], b"garbage")
        assert sorted(os.listdir("/proc/self/fd")) == opened
        assert list(place.iterdir()) == []

    @pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has files in memory")
    def test_never_touches_a_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = pair(tmp_path, "shown")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "read-only"))
        serving = new_serving()
        serving.show(*made)
        assert serving.missing() is None

    def test_is_told_if_others_do_not_trust_it(self, tmp_path: Path) -> None:
        serving = new_serving()
        serving.distrust = "somebody does not trust it"
        assert serving.missing() == "there is no certificate yet"
        serving.show(*pair(tmp_path, "shown"))
        serving.trouble = "we may not tell them"
        assert serving.missing() == "somebody does not trust it: we may not tell them"

    @pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
    def test_an_encrypted_key_is_told_and_nobody_asked(self, form: PrivateFormat) -> None:
        ca = authority(START)
        key = ca.key.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"secret"))
        with pytest.raises(CertificateError, match="the key is encrypted"):
            new_serving().show(ca.pem, key)

    @pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
    def test_is_never_a_certificate_that_we_cannot_read(self, odd: bytes) -> None:
        with pytest.raises(CertificateError, match="cannot be read"):
            new_serving().show(odd, ODD_KEY)


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
        kept = [entry for entry in logs if entry["event"] == "certificate.kept_old"]
        assert 1 <= len(kept) <= len(halves) + 1, "each trouble is told once"

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

    def test_that_are_missing_are_told_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(CertificateError, match=r"tls\.crt"):
            CertificateFiles(tmp_path, clock=FakeClock(), metrics=Metrics())

    async def test_that_are_missing_are_waited_for_where_that_can_be_told(
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
                assert (serving.missing(), serving.trouble) == (None, None)
                assert await name_shown_at(port) == "CN=late"
                stop.set()
        awaited = [entry for entry in logs if entry["log_level"] == "warning"]
        assert [entry["event"] for entry in awaited] == ["certificate.awaited"]


async def test_without_files_a_certificate_is_made_up() -> None:
    async with listening(self_signed(START)) as port:
        assert await name_shown_at(port) == "CN=localhost"
