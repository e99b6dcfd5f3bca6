"""Certificates and keys out of PEM that anybody may have written, and what they are good for."""

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

# No dash is in a certificate: so a beginning without an end costs no more than its own length.
BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]++-----END CERTIFICATE-----")
UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
# What every client and server of TLS can do.
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
SHORTEST_RSA = 2048
STRONG = (hashes.SHA256, hashes.SHA384, hashes.SHA512)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
Extension = TypeVar("Extension", bound=x509.ExtensionType)


class UnreadableError(ValueError):
    """What should be a certificate is none, or of a kind that we do not know."""


def certificate_at_the_head_of(pem: bytes) -> x509.Certificate:
    """The first certificate; UnreadableError if it cannot be read, and all of it."""
    try:
        with warnings.catch_warnings():
            # Others make authorities with the serial number 0, which works as well as any.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            certificate = x509.load_pem_x509_certificate(pem)
            # These are only read when they are asked for, and may turn out to be nonsense then.
            _ = certificate.subject, certificate.issuer, certificate.extensions
            _ = certificate.public_key(), certificate.signature_hash_algorithm
    except UNREADABLE as error:
        raise UnreadableError(f"The certificate cannot be read: {error}") from error
    return certificate


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """All certificates that can be read; what is between them, and what cannot, is passed over."""
    found = (_certificate(block) for block in BLOCK.findall(pem))
    return [each for each in found if each is not None]


@lru_cache(maxsize=32)  # the same few are looked at again and again
def _certificate(block: bytes) -> x509.Certificate | None:
    try:
        return certificate_at_the_head_of(block)
    except UnreadableError:
        return None


def key_in(pem: bytes) -> PrivateKey | None:
    """The private key, if it can be read and is of use for TLS."""
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
    """All of them, one after the other."""
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def key_pem(key: PrivateKey) -> bytes:
    """The key, readable by anyone."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether its time has come, and is not over."""
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether it may sign others, and nobody else vouches for it."""
    constraints = extension(certificate, x509.BasicConstraints)
    usage = extension(certificate, x509.KeyUsage)
    may_sign = constraints is not None and constraints.ca and (usage is None or usage.key_cert_sign)
    return may_sign and is_signed_by(certificate, certificate)


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority vouches for it, in a way that can be trusted today."""
    if not isinstance(certificate.signature_hash_algorithm, STRONG):
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except (*UNREADABLE, InvalidSignature):
        return False
    return True


def serves(certificate: x509.Certificate, hosts: Iterable[str]) -> bool:
    """Whether a server at all of these names or addresses may show it."""
    usage = extension(certificate, x509.ExtendedKeyUsage)
    names = extension(certificate, x509.SubjectAlternativeName)
    if usage is None or ExtendedKeyUsageOID.SERVER_AUTH not in usage or names is None:
        return False
    return {general_name(each) for each in hosts} <= set(names)


def general_name(host: str) -> x509.GeneralName:
    """A host name or an address, as certificates have it."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def extension(certificate: x509.Certificate, kind: type[Extension]) -> Extension | None:
    """What it says of this kind, if anything."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
