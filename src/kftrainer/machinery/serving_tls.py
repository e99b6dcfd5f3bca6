"""Certificates that our servers show: from files, read again when they change, or made up."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kftrainer.machinery.clock import Clock
from kftrainer.machinery.metrics import Metrics
from kftrainer.machinery.pause import pause

log = structlog.get_logger(__name__)

LOOK_EVERY = 10.0
LIFETIME = timedelta(days=365)
CLOCK_SKEW = timedelta(hours=1)
NAME = "localhost"


class CertificateError(Exception):
    """A certificate or key cannot be used; the text is for the operator."""


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A TLS context that shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # which every error of the ssl module is
        raise CertificateError(f"{certificate} and {key} cannot be used: {error}") from error
    return context


def self_signed(now: datetime) -> ssl.SSLContext:
    """A context with a certificate that nobody knows: it encrypts, and proves nothing."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    names = [x509.DNSName(NAME), x509.IPAddress(ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    # OpenSSL takes them from files only; these are ours alone and gone when they are read.
    with TemporaryDirectory() as folder:
        files = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return server_context(*files)


class CertificateFiles:
    """A certificate in files that somebody replaces now and then; run it as a service.

    New connections see the newest pair that could be read. A pair that does not fit, as in the
    moment between two writes, is passed over.
    """

    name = "certificate-files"

    def __init__(self, folder: Path, *, clock: Clock, metrics: Metrics) -> None:
        self._certificate, self._key = folder / "tls.crt", folder / "tls.key"
        self._clock = clock
        self._metrics = metrics
        self._content = self._read()
        self._current = server_context(self._certificate, self._key)
        # Loading a bad pair into a context that serves would break it, so each pair gets a context
        # of its own and the one that listens only passes connections on.
        self.context = server_context(self._certificate, self._key)
        self.context.sni_callback = self._pass_on

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Look at the files until `stop` is set."""
        ready()
        while not await pause(self._clock, LOOK_EVERY, unless=stop):
            try:
                self._look()
            except CertificateError as error:
                self._metrics.certificate_read(usable=False)
                log.warning("certificate.kept_old", error=str(error))
            else:
                self._metrics.certificate_read(usable=True)

    def _look(self) -> None:
        content = self._read()
        if content != self._content:
            self._current = server_context(self._certificate, self._key)
            self._content = content
            log.info("certificate.replaced", file=str(self._certificate))

    def _read(self) -> tuple[bytes, bytes]:
        try:
            return self._certificate.read_bytes(), self._key.read_bytes()
        except OSError as error:
            raise CertificateError(f"A certificate cannot be read: {error}") from error

    def _pass_on(self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._current
