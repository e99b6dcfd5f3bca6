"""Certificates of any age and form, for Secrets and files."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509

from kftrainer.machinery.certs.authority import CA_CERTIFICATE, CA_KEY, CERTIFICATE, KEY, Content
from kftrainer.machinery.certs.x509 import (
    AUTHORITY_LIFETIME,
    LEAF_LIFETIME,
    Identity,
    PrivateKey,
    issue,
    key_pem,
    new_authority,
    pem_of,
)

IDENTITY = Identity("our-ca", "our-organization", ("hooks.ours.svc", "127.0.0.1"))
OTHER_IDENTITY = replace(IDENTITY, authority="their-ca")
ELSEWHERE = replace(IDENTITY, host_names=("hooks.theirs.svc",))


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: PrivateKey

    @property
    def pem(self) -> bytes:
        """The certificate."""
        return pem_of([self.certificate])

    @property
    def key_pem(self) -> bytes:
        """The key."""
        return key_pem(self.key)


def authority(now: datetime, days_left: float = 3650, identity: Identity = IDENTITY) -> Pair:
    """An authority that expires in this number of days; negative if it has expired."""
    created = now - AUTHORITY_LIFETIME + timedelta(days=days_left)
    return Pair(*new_authority(identity.authority_name, created))


def leaf(
    issuer: Pair, now: datetime, days_left: float = 365, identity: Identity = IDENTITY
) -> Pair:
    """A certificate valid for a year that expires in this number of days."""
    created = now - LEAF_LIFETIME + timedelta(days=days_left)
    name, hosts = identity.server_name, identity.host_names
    return Pair(*issue(issuer.certificate, issuer.key, created, name=name, hosts=hosts))


def content(ca: Pair, shown: Pair, *others: Pair) -> Content:
    """What a Secret holds with this authority and certificate; `others` are trusted as well."""
    return {
        CA_CERTIFICATE: b"".join(each.pem for each in (ca, *others)),
        CA_KEY: ca.key_pem,
        CERTIFICATE: shown.pem,
        KEY: shown.key_pem,
    }
