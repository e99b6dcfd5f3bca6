"""X.509: issues certificates, and reads untrusted PEM into certificates and keys."""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCK_SKEW = timedelta(hours=1)
AUTHORITY_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=365)
LONGEST_COMMON_NAME = 64
# A certificate contains no dash, so an unterminated block costs only its own length.
BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]++-----END CERTIFICATE-----")
UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
# Supported by all TLS clients and servers.
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
SHORTEST_RSA = 2048
STRONG = (hashes.SHA256, hashes.SHA384, hashes.SHA512)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
Extension = TypeVar("Extension", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class Identity:
    """The subjects of certificates: the authority, and the server with its names or addresses."""

    authority: str
    organization: str
    host_names: tuple[str, ...]

    @property
    def authority_name(self) -> x509.Name:
        """The authority's subject."""
        return subject(self.authority, self.organization)

    @property
    def server_name(self) -> x509.Name:
        """The server's subject; clients verify the alternative names instead."""
        return subject(self.host_names[0], self.organization)


def subject(common_name: str, *organizations: str) -> x509.Name:
    """Return the subject; a common name that is too long for X.509 is omitted."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    if len(common_name) <= LONGEST_COMMON_NAME:
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
    return x509.Name(attributes)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def new_authority(name: x509.Name, now: datetime) -> tuple[x509.Certificate, PrivateKey]:
    """Return a new authority that may only sign certificates."""
    key = new_key()
    builder = (
        _builder(name, name, key.public_key(), now)
        .not_valid_after(now + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return builder.sign(key, hashes.SHA256()), key


def issue(
    authority: x509.Certificate,
    key: PrivateKey,
    now: datetime,
    *,
    name: x509.Name,
    hosts: Sequence[str] = (),
    is_client: bool = False,
) -> tuple[x509.Certificate, PrivateKey]:
    """Return a certificate that does not outlive the authority.

    It is valid for a server if hosts are given, and for a client if `is_client` is set.
    """
    own_key = new_key()
    expires = min(now + LEAF_LIFETIME, authority.not_valid_after_utc)
    builder = (
        _builder(name, authority.subject, own_key.public_key(), now)
        .not_valid_after(expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        # Two authorities of the same name may be trusted at the same time.
        .add_extension(_identifier_of(authority), critical=False)
    )
    signed = _for_peers(builder, hosts, is_client=is_client).sign(key, hashes.SHA256())
    return signed, own_key


def self_signed(hosts: Sequence[str], now: datetime) -> tuple[x509.Certificate, PrivateKey]:
    """Return a self-signed server certificate."""
    key, name = new_key(), subject(hosts[0])
    builder = _builder(name, name, key.public_key(), now).not_valid_after(now + LEAF_LIFETIME)
    return _for_peers(builder, hosts, is_client=False).sign(key, hashes.SHA256()), key


def _for_peers(
    builder: x509.CertificateBuilder, hosts: Sequence[str], *, is_client: bool
) -> x509.CertificateBuilder:
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH] if is_client else []
    if hosts:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = x509.SubjectAlternativeName(general_name(each) for each in hosts)
        builder = builder.add_extension(names, critical=False)
    return builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)


def _identifier_of(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the authority's own key identifier, which is not always the SHA-1 of its key."""
    own = extension(authority, x509.SubjectKeyIdentifier)
    if own is not None:
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())  # type: ignore[arg-type]


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class UnreadableError(ValueError):
    """The certificate is invalid or of an unsupported kind."""


def first_certificate(pem: bytes) -> x509.Certificate:
    """Return the first certificate; raise UnreadableError unless it can be parsed completely."""
    try:
        with warnings.catch_warnings():
            # Some tools create authorities with the serial number 0, which works.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            certificate = x509.load_pem_x509_certificate(pem)
            # These are parsed on access and may raise then.
            _ = certificate.subject, certificate.issuer, certificate.extensions
            _ = certificate.public_key(), certificate.signature_hash_algorithm
    except UNREADABLE as error:
        raise UnreadableError(f"The certificate cannot be read: {error}") from error
    return certificate


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Return all certificates that can be parsed; everything else is ignored."""
    found = (_certificate(block) for block in BLOCK.findall(pem))
    return [each for each in found if each is not None]


@lru_cache(maxsize=32)  # the same few are parsed repeatedly
def _certificate(block: bytes) -> x509.Certificate | None:
    try:
        return first_certificate(block)
    except UnreadableError:
        return None


def key_in(pem: bytes) -> PrivateKey | None:
    """Return the private key if it can be parsed and is suitable for TLS."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except UNREADABLE:
        return None
    if isinstance(key, rsa.RSAPrivateKey):
        return key if key.key_size >= SHORTEST_RSA else None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key if isinstance(key.curve, CURVES) else None
    return None


def pem_of(certificates: Iterable[x509.Certificate]) -> bytes:
    """Return the certificates as concatenated PEM."""
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def key_pem(key: PrivateKey) -> bytes:
    """Return the key as unencrypted PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    """Return whether the current time is in the validity period."""
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether it is a self-signed certificate that may sign others."""
    constraints = extension(certificate, x509.BasicConstraints)
    usage = extension(certificate, x509.KeyUsage)
    may_sign = constraints is not None and constraints.ca and (usage is None or usage.key_cert_sign)
    return may_sign and is_signed_by(certificate, certificate)


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether the authority signed it with a strong hash algorithm."""
    if not isinstance(certificate.signature_hash_algorithm, STRONG):
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except (*UNREADABLE, InvalidSignature):
        return False
    return True


def serves(certificate: x509.Certificate, hosts: Iterable[str]) -> bool:
    """Return whether a server with all of these names or addresses may present it."""
    usage = extension(certificate, x509.ExtendedKeyUsage)
    names = extension(certificate, x509.SubjectAlternativeName)
    if usage is None or ExtendedKeyUsageOID.SERVER_AUTH not in usage or names is None:
        return False
    return {general_name(each) for each in hosts} <= set(names)


def general_name(host: str) -> x509.GeneralName:
    """Convert a host name or an IP address to its X.509 form."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def extension(certificate: x509.Certificate, kind: type[Extension]) -> Extension | None:
    """Return the extension of this type, or None."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
