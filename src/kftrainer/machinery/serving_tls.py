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
LOOK_FOR_THE_FIRST_EVERY = 1.0
LIFETIME = timedelta(days=365)
CLOCK_SKEW = timedelta(hours=1)
NAME = "localhost"


class CertificateError(Exception):
    """A certificate or key cannot be used; the text is for the operator."""


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """A TLS context that shows this certificate, both as PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # OpenSSL takes them from files only; these are ours alone and gone when they are read.
        with TemporaryDirectory() as folder:
            files = Path(folder) / "tls.crt", Path(folder) / "tls.key"
            for file, content in zip(files, (certificate, key), strict=True):
                file.write_bytes(content)
            context.load_cert_chain(*files)
    except OSError as error:  # which every error of the ssl module is
        raise CertificateError(f"The pair cannot be used: {error}") from error
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
    return server_context(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


class ServingCertificate:
    """What a TLS server shows; it may be replaced at any time, and is not there at first.

    New connections see the newest pair. Until there is one they are refused.
    """

    def __init__(self, *, clock: Clock, metrics: Metrics, server: str = "webhooks") -> None:
        self._server = server  # its name in logs and metrics
        self._clock = clock
        self._metrics = metrics
        self.trouble: str | None = None  # why there is nothing newer, from who sees to that
        self._current: ssl.SSLContext | None = None
        self._expires: datetime | None = None
        # Loading a bad pair into a context that serves would break it, so each pair gets a context
        # of its own and the one that listens only passes connections on.
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.sni_callback = self._pass_on

    def show(self, certificate: bytes, key: bytes) -> None:
        """Show this pair from now on, both as PEM; CertificateError if it cannot be used.

        Nothing changes for connections that are there, nor for anyone if the pair is no good.
        """
        context = server_context(certificate, key)
        try:
            leaf = x509.load_pem_x509_certificate(certificate)
        except ValueError as error:  # OpenSSL is content with less
            raise CertificateError(f"The certificate cannot be read: {error}") from error
        self._current, self._expires = context, leaf.not_valid_after_utc
        self._metrics.certificate_expires(self._server, self._expires.timestamp())
        log.info(
            "certificate.shown",
            server=self._server,
            serial=f"{leaf.serial_number:x}",
            expires=self._expires.isoformat(),
        )

    def missing(self) -> str | None:
        """What is wrong with what is shown, for a readiness probe; None if all is well."""
        if self._expires is None:
            missing = "there is no certificate yet"
        elif self._expires <= self._clock.now():
            missing = f"the certificate expired at {self._expires.isoformat()}"
        else:
            return None
        return f"{missing}: {self.trouble}" if self.trouble else missing

    def _pass_on(
        self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext
    ) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


class CertificateFiles:
    """A certificate in files that somebody replaces now and then; run it as a service.

    New connections see the newest pair that could be read. A pair that does not fit, as in the
    moment between two writes, is passed over. Where there is none yet, CertificateError says so
    at once; with a `serving` that can say so itself, it is waited for.
    """

    name = "certificate-files"

    def __init__(
        self,
        folder: Path,
        serving: ServingCertificate | None = None,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._metrics = metrics
        self._content: tuple[bytes, bytes] | None = None  # that is shown
        if serving is not None:
            self._serving = serving
        else:
            self._serving = ServingCertificate(clock=clock, metrics=metrics, server="metrics")
            self._look()

    @property
    def context(self) -> ssl.SSLContext:
        """For the server."""
        return self._serving.context

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Look at the files until `stop` is set."""
        ready()
        if self._content is None:
            self._look_again()
        while not await pause(self._clock, self._interval, unless=stop):
            self._look_again()

    @property
    def _interval(self) -> float:
        return LOOK_FOR_THE_FIRST_EVERY if self._content is None else LOOK_EVERY

    def _look_again(self) -> None:
        try:
            self._look()
        except CertificateError as error:
            self._metrics.certificate_read(usable=False)
            self._tell(str(error))
        else:
            self._metrics.certificate_read(usable=True)
            self._serving.trouble = None

    def _tell(self, trouble: str) -> None:
        if trouble == self._serving.trouble:
            return
        self._serving.trouble = trouble
        event = "certificate.awaited" if self._content is None else "certificate.kept_old"
        log.warning(event, error=trouble)

    def _look(self) -> None:
        content = self._read("tls.crt"), self._read("tls.key")
        if content == self._content:
            return
        try:
            self._serving.show(*content)
        except CertificateError as error:
            raise CertificateError(f"tls.crt and tls.key in {self._folder}: {error}") from error
        self._content = content

    def _read(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise CertificateError(f"A certificate cannot be read: {error}") from error
