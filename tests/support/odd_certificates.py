"""Certificates that OpenSSL may accept and that cannot be parsed."""

from base64 import b64encode
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from tests.support.certificates import IDENTITY, authority
from tests.support.fake_clock import START

_AUTHORITY = authority(START)
_VERSION_3, _VERSION_2 = bytes.fromhex("a003020102"), bytes.fromhex("a003020101")
_X400_ADDRESS = bytes.fromhex("3004a3023000")
ODD_KEY = _AUTHORITY.key_pem  # of all of them


def pem(label: bytes, der: bytes) -> bytes:
    """Encode the bytes as PEM with this label."""
    text = b64encode(der)
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return b"\n".join([b"-----BEGIN " + label + b"-----", *lines, b"-----END " + label + b"-----"])


def _of_an_odd_version() -> bytes:
    der = _AUTHORITY.certificate.public_bytes(Encoding.DER)
    return pem(b"CERTIFICATE", der.replace(_VERSION_3, _VERSION_2, 1))


def _with_an_odd_name() -> bytes:
    names = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, _X400_ADDRESS)
    builder = (
        x509.CertificateBuilder()
        .subject_name(IDENTITY.authority_name)
        .issuer_name(IDENTITY.authority_name)
        .public_key(_AUTHORITY.key.public_key())
        .serial_number(1)
        .not_valid_before(START)
        .not_valid_after(START + timedelta(days=365))
        .add_extension(names, critical=False)
    )
    return builder.sign(_AUTHORITY.key, hashes.SHA256()).public_bytes(Encoding.PEM)


ODD = {"an odd version": _of_an_odd_version(), "an odd name": _with_an_odd_name()}
