"""Certificates for a control plane, issued by CAs that are created with it."""

import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from kftrainer.machinery.certs import x509


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key pair as PEM files."""

    private: Path
    public: Path


def _write_private(path: Path, key: x509.PrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(x509.key_pem(key))


def new_signing_key(folder: Path, name: str) -> SigningKey:
    """Create a key for signing tokens; it has no certificate."""
    key = x509.new_key()
    files = SigningKey(folder / f"{name}.key", folder / f"{name}.pub")
    _write_private(files.private, key)
    files.public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return files


class Authority:
    """A certificate authority whose files are in one folder."""

    def __init__(self, folder: Path, name: str, now: datetime) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._now = now
        self._own, self._key = x509.new_authority(x509.subject(name), now)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(x509.pem_of([self._own]))

    def issue(
        self,
        file_name: str,
        *,
        common_name: str,
        organizations: Iterable[str] = (),
        hosts: Sequence[str] = (),
    ) -> KeyPair:
        """Issue a certificate for a client and, if hosts are given, also for a server."""
        name = x509.subject(common_name, *organizations)
        certificate, key = x509.issue(
            self._own, self._key, self._now, name=name, hosts=hosts, is_client=True
        )
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        pair.certificate.write_bytes(x509.pem_of([certificate]))
        _write_private(pair.key, key)
        return pair


def client_tls(authority: Path, client: KeyPair) -> ssl.SSLContext:
    """Return TLS settings that trust only this CA and present this certificate."""
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(client.certificate, client.key)
    return context
