"""Certificates that change under a running server."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509

from kftrainer.devcluster.pki import Authority
from kftrainer.machinery.metrics import Metrics
from kftrainer.machinery.serving_tls import CertificateError, CertificateFiles, self_signed
from tests.support.fake_clock import START, FakeClock


def put_pair(folder: Path, name: str) -> None:
    """A certificate for this name, and its key."""
    pair = Authority(folder / f"ca-{name}", "ca", START).issue("s", common_name=name)
    pair.certificate.rename(folder / "tls.crt")
    pair.key.rename(folder / "tls.key")


async def close_at_once(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    async with await asyncio.start_server(close_at_once, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


async def name_shown_at(port: int) -> str:
    """The name on the certificate that a server shows to a new connection."""
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).subject.rfc4514_string()


async def test_new_connections_see_the_newest_pair_that_fits(tmp_path: Path) -> None:
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


def test_missing_files_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"tls\.crt"):
        CertificateFiles(tmp_path, clock=FakeClock(), metrics=Metrics())


async def test_without_files_a_certificate_is_made_up() -> None:
    async with listening(self_signed(START)) as port:
        assert await name_shown_at(port) == "CN=localhost"
