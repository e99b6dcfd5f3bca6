"""Issues certificates: authorities, server certificates and self-signed ones."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kftrainer.machinery.certs.x509_parsing import PrivateKey, extension, general_name

CLOCK_SKEW = timedelta(hours=1)
AUTHORITY_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=365)
LONGEST_COMMON_NAME = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """The subjects of certificates: the authority, and the server with its names or addresses."""

    authority: str
    organization: str
    host_names: tuple[str, ...]

    @property
    def authority_name(self) -> x509.Name:
        """The authority's subject."""
        return _name(self.organization, self.authority)

    @property
    def server_name(self) -> x509.Name:
        """The server's subject; clients verify the alternative names instead."""
        return _name(self.organization, self.host_names[0])


def _name(organization: str, common_name: str) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)]
    if len(common_name) <= LONGEST_COMMON_NAME:
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
    return x509.Name(attributes)


def new_authority(identity: Identity, now: datetime) -> tuple[x509.Certificate, PrivateKey]:
    """Return a new authority that may only sign certificates."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = identity.authority_name
    builder = (
        _builder(name, name, key.public_key(), now)
        .not_valid_after(now + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return builder.sign(key, hashes.SHA256()), key


def issue(
    authority: x509.Certificate, key: PrivateKey, identity: Identity, now: datetime
) -> tuple[x509.Certificate, PrivateKey]:
    """Return a server certificate that does not outlive the authority."""
    own_key = ec.generate_private_key(ec.SECP256R1())
    expires = min(now + LEAF_LIFETIME, authority.not_valid_after_utc)
    builder = (
        _builder(identity.server_name, authority.subject, own_key.public_key(), now)
        .not_valid_after(expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        # Two authorities of the same name may be trusted at the same time.
        .add_extension(_identifier_of(authority), critical=False)
    )
    return _for_servers(builder, identity.host_names).sign(key, hashes.SHA256()), own_key


def self_signed(host_names: Sequence[str], now: datetime) -> tuple[x509.Certificate, PrivateKey]:
    """Return a self-signed server certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host_names[0])])
    builder = _builder(name, name, key.public_key(), now).not_valid_after(now + LEAF_LIFETIME)
    return _for_servers(builder, host_names).sign(key, hashes.SHA256()), key


def _for_servers(
    builder: x509.CertificateBuilder, host_names: Iterable[str]
) -> x509.CertificateBuilder:
    names = x509.SubjectAlternativeName(general_name(each) for each in host_names)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return builder.add_extension(usage, critical=False).add_extension(names, critical=False)


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
