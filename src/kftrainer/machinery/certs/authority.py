"""A certificate authority of our own and the server certificate that it signs: pure decisions.

Both live in a Secret. `next_content` says what should be in it instead, if anything: called again
and again with what is there, it leads from any state to a good one. Who may have died between two
steps does not matter, for all that is known is in what is read.

An authority is replaced in two steps, so that no server ever shows what clients do not trust yet:

    ca.crt: old         tls.crt: by old     the old one will expire before long
    ca.crt: new, old    tls.crt: by old     clients are told to trust both
    ca.crt: new, old    tls.crt: by new     once all have been told, for long enough
    ca.crt: new         tls.crt: by new     an hour later, when nobody shows the old one any more
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from kftrainer.machinery.certs.secrets import Content
from kftrainer.machinery.certs.x509_issuing import LEAF_LIFETIME, Identity, issue, new_authority
from kftrainer.machinery.certs.x509_parsing import (
    PrivateKey,
    certificates_in,
    is_authority,
    is_signed_by,
    is_valid,
    key_in,
    key_pem,
    pem_of,
    serves,
)

CA_CERTIFICATE, CA_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
RENEW_BEFORE = timedelta(days=90)
# A certificate of full length always fits into what is left of its authority's time.
RENEW_AUTHORITY_BEFORE = LEAF_LIFETIME + RENEW_BEFORE
# Seconds for which all clients must have been told of an authority, by what we see of it: before
# it is relied on, as some may hear later than we do; and before others are not trusted any more.
SETTLED_AFTER = 30.0
OVERLAP = 3600.0
MOST_AUTHORITIES = 8  # however often somebody throws them away

ToldFor = Mapping[x509.Certificate, float]  # seconds, of authorities that all clients know


@dataclass(frozen=True, slots=True)
class Renewal:
    """What is to be written over what is there, and why."""

    content: Content
    because: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate that a server can show, with its key; `issuer` has signed it."""

    certificate: x509.Certificate
    key: PrivateKey
    issuer: x509.Certificate

    def pem(self) -> tuple[bytes, bytes]:
        """Certificate and key, without anything else that may have stood beside them."""
        return pem_of([self.certificate]), key_pem(self.key)


@dataclass(frozen=True, slots=True)
class Stored:
    """What of a Secret's content is of use now."""

    authorities: Sequence[x509.Certificate]
    ca_key: PrivateKey | None
    leaf: Leaf | None

    @property
    def issuer(self) -> x509.Certificate | None:
        """The authority that can sign, because its key is here."""
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
    """Make what can be made of this content; `also_known` are authorities from elsewhere."""
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
    """The certificates in a bundle that bear our authority's name."""
    return [each for each in certificates_in(bundle) if each.subject == identity.authority_name]


def is_better(leaf: Leaf, shown: Leaf | None, told_for: ToldFor, now: datetime) -> bool:
    """Whether a server that shows one certificate should show another from now on.

    It should not while all clients trust what it shows, and some may not have heard yet of whom
    they are to trust then.
    """
    if shown is None or not is_valid(shown.certificate, now):
        return True
    if leaf.issuer == shown.issuer:
        return leaf.certificate != shown.certificate
    return shown.issuer not in told_for or told_for.get(leaf.issuer, 0.0) >= SETTLED_AFTER


def next_content(
    content: Content,
    bundles: Sequence[bytes],
    told_for: ToldFor,
    identity: Identity,
    now: datetime,
) -> Renewal | None:
    """What the Secret should hold instead, or None if it is good as it is.

    `bundles` are what clients are told to trust now.
    """
    stored = read(content, identity, now)
    if stored.issuer is None or told_for.get(stored.issuer, 0.0) < OVERLAP:
        # What is lost here may be in what clients were told; and what other servers still show
        # must stay trusted until they show something else.
        known = [each for bundle in bundles for each in ours_in(bundle, identity)]
        stored = read(content, identity, now, known)
    issuer = stored.issuer
    if issuer is None or issuer.not_valid_after_utc - now < RENEW_AUTHORITY_BEFORE:
        return _with_new_authority(stored, issuer, identity, now)
    age = told_for.get(issuer, 0.0)
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
    authority, key = new_authority(identity, now)
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
        return "there is no certificate that can be shown"
    if leaf.issuer != issuer:  # what is there is good until all know the new one
        return "the authority is a new one" if is_settled else None
    if leaf.certificate.not_valid_after_utc - now < RENEW_BEFORE:
        return f"the certificate expires at {leaf.certificate.not_valid_after_utc.isoformat()}"
    return None


def _with_new_leaf(
    stored: Stored, issuer: x509.Certificate, identity: Identity, now: datetime, because: str
) -> Renewal:
    assert stored.ca_key is not None  # noqa: S101  the issuer is the one that it belongs to
    issued = _issued(issuer, stored.ca_key, identity, now)
    return Renewal({CA_CERTIFICATE: pem_of(stored.authorities), **issued}, because)


def _issued(
    authority: x509.Certificate, key: PrivateKey, identity: Identity, now: datetime
) -> dict[str, bytes]:
    certificate, its_key = issue(authority, key, identity, now)
    return {CERTIFICATE: pem_of([certificate]), KEY: key_pem(its_key)}


def _tidied(
    content: Content, stored: Stored, issuer: x509.Certificate, *, is_alone: bool
) -> Renewal | None:
    """Without authorities that have expired, or that nobody needs any more."""
    shows_own = stored.leaf is not None and stored.leaf.issuer == issuer
    left = [issuer] if is_alone and shows_own else stored.authorities
    if left == certificates_in(content.get(CA_CERTIFICATE, b"")):
        return None
    return Renewal({CA_CERTIFICATE: pem_of(left)}, "other authorities are to be trusted")
