"""Parses untrusted PEM into certificates and keys, and checks their use."""

import re
import warnings
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID

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


class UnreadableError(ValueError):
    """The certificate is invalid or of an unsupported kind."""


def certificate_at_the_head_of(pem: bytes) -> x509.Certificate:
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
        return certificate_at_the_head_of(block)
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
