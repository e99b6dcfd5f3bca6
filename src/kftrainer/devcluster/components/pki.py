"""Certificates for a control plane, issued by CAs that are created with it."""

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=365)
CLOCK_SKEW = timedelta(minutes=5)
SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


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


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def new_signing_key(folder: Path, name: str) -> SigningKey:
    """Create a key for signing tokens; it has no certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    files = SigningKey(folder / f"{name}.key", folder / f"{name}.pub")
    _write_private(files.private, key)
    files.public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return files


def _name(common_name: str, organizations: Iterable[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Authority:
    """A certificate authority whose files are in one folder."""

    def __init__(self, folder: Path, name: str, now: datetime) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(name)
        builder = self._builder(self._subject, self._key.public_key())
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        builder = builder.add_extension(SIGNS_CERTIFICATES, critical=True)
        self._own = builder.sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(self._own.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file_name: str,
        *,
        common_name: str,
        organizations: Iterable[str] = (),
        hosts: Iterable[str] = (),
    ) -> KeyPair:
        """Issue a certificate for a client and, if hosts are given, also for a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_alternative_name(host) for host in hosts]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = self._builder(_name(common_name, organizations), key.public_key())
        if names:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        certificate = builder.sign(self._key, hashes.SHA256())
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_private(pair.key, key)
        return pair

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - CLOCK_SKEW)
            .not_valid_after(self._now + LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )


def client_tls(authority: Path, client: KeyPair) -> ssl.SSLContext:
    """Return TLS settings that trust only this CA and present this certificate."""
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(client.certificate, client.key)
    return context
