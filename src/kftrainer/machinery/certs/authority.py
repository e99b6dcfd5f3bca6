"""Decides when to renew the certificate authority and the server certificate. Pure.

Both are stored in a Secret. `next_content` returns what the Secret should contain instead, if
anything. Applied repeatedly, it converges from any state to a valid one; all state is in its input,
so a crash between two steps does no harm.

An authority is replaced in steps, so that no server presents a certificate that clients do not
trust yet:

    ca.crt: old         tls.crt: by old     the old authority expires soon
    ca.crt: new, old    tls.crt: by old     clients are configured to trust both
    ca.crt: new, old    tls.crt: by new     after all clients trust the new one for long enough
    ca.crt: new         tls.crt: by new     an hour later, when no server uses the old one
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from kftrainer.machinery.certs.x509 import (
    LEAF_LIFETIME,
    Identity,
    PrivateKey,
    certificates_in,
    is_authority,
    is_signed_by,
    is_valid,
    issue,
    key_in,
    key_pem,
    new_authority,
    pem_of,
    serves,
)

CA_CERTIFICATE, CA_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
RENEW_BEFORE = timedelta(days=90)
# A certificate of full lifetime always fits into the remaining lifetime of its authority.
RENEW_AUTHORITY_BEFORE = LEAF_LIFETIME + RENEW_BEFORE
# Seconds for which all clients must have trusted an authority before it is used, because some
# clients read the configuration later than this process; and before others are removed.
SETTLED_AFTER = 30.0
OVERLAP = 3600.0
MOST_AUTHORITIES = 8  # limits the bundle if authorities are repeatedly deleted

Content = Mapping[str, bytes]  # of a Secret, decoded
TrustedFor = Mapping[x509.Certificate, float]  # seconds; see Trust.trusted_for


@dataclass(frozen=True, slots=True)
class Renewal:
    """New content of the Secret, and the reason for the change."""

    content: Content
    because: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A server certificate with its key; `issuer` signed it."""

    certificate: x509.Certificate
    key: PrivateKey
    issuer: x509.Certificate

    def pem(self) -> tuple[bytes, bytes]:
        """Return certificate and key as PEM, without other data of the Secret."""
        return pem_of([self.certificate]), key_pem(self.key)


@dataclass(frozen=True, slots=True)
class Stored:
    """The usable parts of a Secret's content."""

    authorities: Sequence[x509.Certificate]
    ca_key: PrivateKey | None
    leaf: Leaf | None

    @property
    def issuer(self) -> x509.Certificate | None:
        """The authority whose key is in the Secret, so that it can sign."""
        if self.ca_key is None:
            return None
        public_key = self.ca_key.public_key()
        ours = (each for each in self.authorities if each.public_key() == public_key)
        return next(ours, None)


def read(
    content: Content,
    identity: Identity,
    now: datetime,
    also_known: Sequence[x509.Certificate] = (),
) -> Stored:
    """Parse the content; `also_known` are authorities from other sources."""
    found = [*certificates_in(content.get(CA_CERTIFICATE, b"")), *also_known]
    usable = (each for each in found if is_authority(each) and is_valid(each, now))
    authorities = list(dict.fromkeys(usable))
    return Stored(
        authorities, key_in(content.get(CA_KEY, b"")), _leaf(content, identity, now, authorities)
    )


def _leaf(
    content: Content, identity: Identity, now: datetime, authorities: Sequence[x509.Certificate]
) -> Leaf | None:
    chain, key = certificates_in(content.get(CERTIFICATE, b"")), key_in(content.get(KEY, b""))
    if not chain or key is None or chain[0].public_key() != key.public_key():
        return None
    if not is_valid(chain[0], now) or not serves(chain[0], identity.host_names):
        return None
    issuers = (each for each in authorities if is_signed_by(chain[0], each))
    issuer = next(issuers, None)
    return Leaf(chain[0], key, issuer) if issuer is not None else None


def ours_in(bundle: bytes, identity: Identity) -> list[x509.Certificate]:
    """Return the certificates in a bundle that have our authority's name."""
    return [each for each in certificates_in(bundle) if each.subject == identity.authority_name]


def is_better(leaf: Leaf, current: Leaf | None, trusted_for: TrustedFor, now: datetime) -> bool:
    """Return whether a server should replace the certificate it presents with another.

    Not while all clients trust the current certificate and some may not trust the new issuer yet.
    """
    if current is None or not is_valid(current.certificate, now):
        return True
    if leaf.issuer == current.issuer:
        return leaf.certificate != current.certificate
    return current.issuer not in trusted_for or trusted_for.get(leaf.issuer, 0.0) >= SETTLED_AFTER


def next_content(
    content: Content,
    bundles: Sequence[bytes],
    trusted_for: TrustedFor,
    identity: Identity,
    now: datetime,
) -> Renewal | None:
    """Return what the Secret should contain instead; None if it needs no change.

    `bundles` are the CA bundles that clients use now.
    """
    stored = read(content, identity, now)
    if stored.issuer is None or trusted_for.get(stored.issuer, 0.0) < OVERLAP:
        # An authority that is missing from the Secret may be in the clients' bundles, and
        # authorities that other servers still use must stay trusted until those servers have
        # changed.
        known = [each for bundle in bundles for each in ours_in(bundle, identity)]
        stored = read(content, identity, now, known)
    issuer = stored.issuer
    if issuer is None or issuer.not_valid_after_utc - now < RENEW_AUTHORITY_BEFORE:
        return _with_new_authority(stored, issuer, identity, now)
    age = trusted_for.get(issuer, 0.0)
    if because := _reason_to_issue(stored, issuer, now, is_settled=age >= SETTLED_AFTER):
        return _with_new_leaf(stored, issuer, identity, now, because)
    return _tidied(content, stored, issuer, is_alone=age >= OVERLAP)


def _with_new_authority(
    stored: Stored, outgoing: x509.Certificate | None, identity: Identity, now: datetime
) -> Renewal:
    because = (
        "there is no authority with a key"
        if outgoing is None
        else f"the authority expires at {outgoing.not_valid_after_utc.isoformat()}"
    )
    authority, key = new_authority(identity.authority_name, now)
    in_use = [stored.leaf.issuer] if stored.leaf else []
    authorities = [*dict.fromkeys([authority, *in_use, *stored.authorities])][:MOST_AUTHORITIES]
    content = {CA_CERTIFICATE: pem_of(authorities), CA_KEY: key_pem(key)}
    if stored.leaf is None:
        content |= _issued(authority, key, identity, now)
    return Renewal(content, because)


def _reason_to_issue(
    stored: Stored, issuer: x509.Certificate, now: datetime, *, is_settled: bool
) -> str | None:
    leaf = stored.leaf
    if leaf is None:
        return "there is no usable certificate"
    if leaf.issuer != issuer:  # keep it until all clients trust the new authority
        return "the authority is new" if is_settled else None
    if leaf.certificate.not_valid_after_utc - now < RENEW_BEFORE:
        return f"the certificate expires at {leaf.certificate.not_valid_after_utc.isoformat()}"
    return None


def _with_new_leaf(
    stored: Stored, issuer: x509.Certificate, identity: Identity, now: datetime, because: str
) -> Renewal:
    assert stored.ca_key is not None  # noqa: S101  the issuer is selected by this key
    issued = _issued(issuer, stored.ca_key, identity, now)
    return Renewal({CA_CERTIFICATE: pem_of(stored.authorities), **issued}, because)


def _issued(
    authority: x509.Certificate, key: PrivateKey, identity: Identity, now: datetime
) -> dict[str, bytes]:
    certificate, own_key = issue(
        authority, key, now, name=identity.server_name, hosts=identity.host_names
    )
    return {CERTIFICATE: pem_of([certificate]), KEY: key_pem(own_key)}


def _tidied(
    content: Content, stored: Stored, issuer: x509.Certificate, *, is_alone: bool
) -> Renewal | None:
    """Remove authorities that have expired or are not needed any more."""
    uses_own = stored.leaf is not None and stored.leaf.issuer == issuer
    left = [issuer] if is_alone and uses_own else stored.authorities
    if left == certificates_in(content.get(CA_CERTIFICATE, b"")):
        return None
    return Renewal({CA_CERTIFICATE: pem_of(left)}, "the trusted authorities have changed")


class Trust:
    """The authorities in the CA bundles of all clients, and since when, by the local clock."""

    def __init__(self) -> None:
        self._since: dict[x509.Certificate, float] = {}

    def observe(
        self, bundles: Sequence[bytes], authorities: Collection[x509.Certificate], now: float
    ) -> None:
        """Record all bundles that exist; without any, the given authorities count as trusted."""
        known = [set(certificates_in(each)) for each in bundles] or [set(authorities)]
        trusted = set.intersection(*known)
        self._since = {each: self._since.get(each, now) for each in trusted}

    def trusted_for(self, now: float) -> TrustedFor:
        """Return the seconds for which all clients have trusted each authority."""
        return {each: now - since for each, since in self._since.items()}

    def changes_in(self, now: float) -> float | None:
        """Return the seconds until an authority reaches a threshold; None if none will."""
        ends = [
            since + enough for since in self._since.values() for enough in (SETTLED_AFTER, OVERLAP)
        ]
        return min((end - now for end in ends if end > now), default=None)
