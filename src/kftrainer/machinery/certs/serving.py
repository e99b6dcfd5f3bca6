"""Serving certificates: from files that are reloaded when they change, or self-signed."""

import asyncio
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, NoReturn

import structlog

from kftrainer.machinery.certs import x509
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause
from kftrainer.machinery.metrics.registry import Metrics

log = structlog.get_logger(__name__)

CHECK_EVERY = 10.0
CHECK_FOR_FIRST_EVERY = 1.0
OWN_NAMES = ("localhost", "127.0.0.1")


class CertificateError(Exception):
    """A certificate or key cannot be used; the text is for the operator."""


def server_context(
    certificate: bytes, key: bytes, client_authorities: bytes | None = None
) -> ssl.SSLContext:
    """Return a TLS context that presents this certificate; everything is PEM.

    With client authorities, clients must present a certificate that one of them has signed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_authorities is not None:
        _require_clients_of(client_authorities, context)
    try:
        with _as_file(certificate) as certificate_file, _as_file(key) as key_file:
            context.load_cert_chain(certificate_file, key_file, password=_no_password)
    except OSError as error:  # every error of the ssl module is an OSError
        raise CertificateError(f"The pair cannot be used: {error}") from error
    return context


def _require_clients_of(authorities: bytes, context: ssl.SSLContext) -> None:
    """Accept only clients with a certificate of these authorities."""
    _require_certificates(context)
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(f"The client authorities cannot be used: {error}") from error


def _require_certificates(context: ssl.SSLContext) -> None:
    """Require a client certificate in every handshake.

    Resumed TLS sessions are not verified again, so session tickets are disabled: after the
    authority is replaced, new connections with certificates of the old one are rejected.
    """
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # supported by API servers since 1.12
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED


def _no_password() -> NoReturn:
    """Raise instead of prompting for a password, which would block the process."""
    raise CertificateError("The pair cannot be used: the key is encrypted")


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Provide the content as a temporary file, because OpenSSL only reads from paths."""
    file, path = _new_file()
    with file:
        file.write(content)
        file.flush()
        yield path


def _new_file() -> tuple[IO[bytes], str]:
    """Return a new file and its path, in memory if possible.

    The disk may be read-only, and a file on disk would remain if the process were killed.
    """
    try:
        memory = os.memfd_create("tls")
    except (AttributeError, OSError):  # only on Linux, and may be forbidden
        file = NamedTemporaryFile()  # noqa: SIM115  the caller closes it; only we can read it
        return file, file.name
    return os.fdopen(memory, "wb"), f"/proc/self/fd/{memory}"


def self_signed(now: datetime) -> ssl.SSLContext:
    """Return a TLS context with a self-signed certificate: encryption without authentication."""
    certificate, key = x509.self_signed(OWN_NAMES, now)
    return server_context(x509.pem_of([certificate]), x509.key_pem(key))


class ServingCertificate:
    """The certificate of a TLS server; it can be replaced at any time and is initially absent.

    New connections use the newest certificate. Until there is one they are rejected.
    """

    def __init__(self, *, clock: Clock, metrics: Metrics, server: str = "webhooks") -> None:
        self._server = server  # its name in logs and metrics
        self._clock = clock
        self._metrics = metrics
        # Set by the provider of the certificate: why there is no newer certificate, and why clients
        # will not trust the current one.
        self.failure: str | None = None
        self.untrusted_because: str | None = None
        self._current: ssl.SSLContext | None = None
        self._pair: tuple[bytes, bytes] | None = None
        self._client_authorities: bytes | None = None
        self._expires: datetime | None = None
        # Loading an invalid pair would break a context in use. Each pair therefore gets its own
        # context, and the listening context only hands connections over.
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.sni_callback = self._hand_over

    def present(self, certificate: bytes, key: bytes) -> None:
        """Present this PEM pair from now on; raise CertificateError if it cannot be used.

        Existing connections are not affected. If the pair is invalid, nothing changes.
        """
        context = server_context(certificate, key, self._client_authorities)
        try:
            leaf = x509.first_certificate(certificate)
        except (
            x509.UnreadableError
        ) as error:  # OpenSSL accepts certificates that cannot be parsed here
            raise CertificateError(str(error)) from error
        self._current, self._expires = context, leaf.not_valid_after_utc
        self._pair = certificate, key
        self._metrics.certificate_expires(self._server, self._expires.timestamp())
        log.info(
            "certificate_presented",
            server=self._server,
            serial=f"{leaf.serial_number:x}",
            expires=self._expires.isoformat(),
        )

    def require_clients_of(self, authorities: bytes) -> None:
        """Accept only clients with a certificate of these authorities, as PEM.

        Raises CertificateError if the authorities cannot be used; then nothing changes. Call it
        before the server listens, and again when the authorities change. Existing connections are
        not affected.
        """
        if self._pair is None:
            _require_clients_of(authorities, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        else:
            self._current = server_context(*self._pair, authorities)
        self._client_authorities = authorities
        # Whether a certificate is required is decided before the handover to the current context;
        # which authorities are trusted is decided after it.
        _require_certificates(self.context)

    def missing(self) -> str | None:
        """Return why the server is not ready to serve, for a readiness probe; None if it is."""
        if self._expires is None:
            missing = "there is no certificate yet"
        elif self._expires <= self._clock.now():
            missing = f"the certificate expired at {self._expires.isoformat()}"
        elif self.untrusted_because is not None:
            missing = self.untrusted_because
        else:
            return None
        return f"{missing}: {self.failure}" if self.failure else missing

    def _hand_over(
        self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext
    ) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


class CertificateFiles:
    """A certificate in files that are replaced from time to time; a Runnable.

    New connections use the newest valid pair. A pair that does not match, as between two writes, is
    ignored. Without a usable pair the constructor raises CertificateError; with `serving`, it does
    not read the files, and `run` waits for them.
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
        self._content: tuple[bytes, bytes] | None = None  # the pair in use
        if serving is not None:
            self._serving = serving
        else:
            self._serving = ServingCertificate(clock=clock, metrics=metrics, server="metrics")
            self._check()

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context for the server."""
        return self._serving.context

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Check the files until `stop` is set."""
        ready()
        if self._content is None:
            self._check_again()
        while not await pause(self._clock, self._interval, stop=stop):
            self._check_again()

    @property
    def _interval(self) -> float:
        return CHECK_FOR_FIRST_EVERY if self._content is None else CHECK_EVERY

    def _check_again(self) -> None:
        try:
            self._check()
        except CertificateError as error:
            self._metrics.certificate_read(usable=False)
            self._report(str(error))
        else:
            self._metrics.certificate_read(usable=True)
            self._serving.failure = None

    def _report(self, failure: str) -> None:
        if failure == self._serving.failure:
            return
        self._serving.failure = failure
        if self._content is None:
            log.warning("certificate_missing", error=failure)
        else:
            log.warning("certificate_not_reloaded", error=failure)

    def _check(self) -> None:
        content = self._read("tls.crt"), self._read("tls.key")
        if content == self._content:
            return
        try:
            self._serving.present(*content)
        except CertificateError as error:
            raise CertificateError(f"tls.crt and tls.key in {self._folder}: {error}") from error
        self._content = content

    def _read(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise CertificateError(f"A certificate cannot be read: {error}") from error


class ClientAuthorityFile:
    """The authorities of client certificates in a file; a Runnable.

    The file is read by the constructor, and again when it changes. An invalid file is an error at
    construction and ignored later: the current authorities stay in effect.
    """

    name = "client-authority-file"

    def __init__(self, file: Path, serving: ServingCertificate, *, clock: Clock) -> None:
        self._file = file
        self._serving = serving
        self._clock = clock
        self._content: bytes | None = None
        self._failure: str | None = None
        self._reload()

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Check the file every few seconds until `stop` is set."""
        ready()
        while not await pause(self._clock, CHECK_EVERY, stop=stop):
            try:
                self._reload()
            except CertificateError as error:
                if self._failure != str(error):
                    self._failure = str(error)
                    log.warning("client_authorities_not_reloaded", error=self._failure)
            else:
                self._failure = None

    def _reload(self) -> None:
        try:
            content = self._file.read_bytes()
            if content == self._content:
                return
            self._serving.require_clients_of(content)
        except OSError as error:
            raise CertificateError(f"The client authorities cannot be read: {error}") from error
        except CertificateError as error:
            raise CertificateError(f"{self._file}: {error}") from error
        self._content = content
        log.info("client_authorities_loaded", file=str(self._file))
