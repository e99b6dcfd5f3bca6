"""What a Secret with certificates should hold: from every state a good one, in few steps."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.machinery.certs.authority import (
    CA_CERTIFICATE,
    CA_KEY,
    CERTIFICATE,
    KEY,
    MOST_AUTHORITIES,
    OVERLAP,
    RENEW_AUTHORITY_BEFORE,
    RENEW_BEFORE,
    SETTLED_AFTER,
    Content,
    Stored,
    Trust,
    is_better,
    next_content,
    read,
)
from kftrainer.machinery.certs.x509 import certificates_in, key_pem, pem_of
from tests.support.certificates import (
    ELSEWHERE,
    IDENTITY,
    OTHER_IDENTITY,
    Pair,
    authority,
    content,
    leaf,
)
from tests.support.fake_clock import START as NOW

NONE_TRUSTED: Mapping[x509.Certificate, float] = {}
GOOD = authority(NOW)
SHOWN = leaf(GOOD, NOW)


def renewed(
    held: Content,
    bundles: Sequence[bytes] = (),
    trusted_for: Mapping[x509.Certificate, float] = NONE_TRUSTED,
) -> Content | None:
    """The whole content after the next step, or None if there is nothing to do."""
    renewal = next_content(held, bundles, trusted_for, IDENTITY, NOW)
    return None if renewal is None else {**held, **renewal.content}


def understood(held: Content | None) -> Stored:
    assert held is not None
    return read(held, IDENTITY, NOW)


def seconds_trusted(
    *pairs: Pair, seconds: float = SETTLED_AFTER
) -> Mapping[x509.Certificate, float]:
    return {each.certificate: seconds for each in pairs}


class TestEmptyContent:
    def test_authority_and_certificate_are_created(self) -> None:
        stored = understood(renewed({}))
        assert stored.leaf is not None
        assert list(stored.authorities) == [stored.issuer] == [stored.leaf.issuer]

    def test_the_authority_signs_certificates_and_nothing_else(self) -> None:
        created = understood(renewed({})).authorities[0]
        usage = created.extensions.get_extension_for_class(x509.KeyUsage).value
        assert (usage.key_cert_sign, usage.crl_sign) == (True, True)
        assert not any((usage.digital_signature, usage.key_encipherment, usage.key_agreement))
        assert created.subject.rfc4514_string() == "CN=our-ca,O=our-organization"
        assert created.not_valid_before_utc == NOW - timedelta(hours=1)
        assert created.not_valid_after_utc == NOW + timedelta(days=3650)

    def test_the_certificate_is_for_the_server_alone(self) -> None:
        stored = understood(renewed({}))
        assert stored.leaf is not None
        created = stored.leaf.certificate
        names = created.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["hooks.ours.svc"]
        assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
        usages = created.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usages) == [x509.ExtendedKeyUsageOID.SERVER_AUTH]
        assert created.not_valid_before_utc == NOW - timedelta(hours=1)
        assert created.not_valid_after_utc == NOW + timedelta(days=365)
        assert isinstance(stored.leaf.key.curve, ec.SECP256R1)

    def test_no_two_serial_numbers_are_the_same(self) -> None:
        serials = set()
        for _ in range(5):
            stored = understood(renewed({}))
            assert stored.leaf is not None
            serials |= {stored.leaf.certificate.serial_number, stored.authorities[0].serial_number}
        assert len(serials) == 10

    def test_a_long_host_name_does_not_have_to_fit_into_the_subject(self) -> None:
        long = f"{'s' * 63}.{'n' * 63}.svc"
        identity = type(IDENTITY)("our-ca", "our-organization", (long,))
        renewal = next_content({}, (), NONE_TRUSTED, identity, NOW)
        assert renewal is not None
        assert read(renewal.content, identity, NOW).leaf is not None


class TestValidContent:
    def test_is_unchanged(self) -> None:
        assert renewed(content(GOOD, SHOWN), [GOOD.pem], seconds_trusted(GOOD)) is None

    def test_is_unchanged_in_any_encoding(self) -> None:
        held = {**content(GOOD, SHOWN), CA_CERTIFICATE: b"# ours\n\n" + GOOD.pem + b"\n\n"}
        assert renewed(held, [GOOD.pem], seconds_trusted(GOOD)) is None

    def test_keys_of_other_kinds_are_as_good(self) -> None:
        """As another operator may have left them."""
        ca = Pair(*_rsa_authority())
        assert renewed(content(ca, leaf(ca, NOW)), [ca.pem], seconds_trusted(ca)) is None
        reissued = understood(renewed(content(ca, leaf(ca, NOW, days_left=-1)), [ca.pem]))
        assert reissued.leaf is not None
        assert reissued.leaf.issuer == ca.certificate


def _rsa_authority() -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    key = rsa.generate_private_key(65537, 2048)
    name = IDENTITY.authority_name
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return builder.sign(key, hashes.SHA256()), key


class TestExpiringCertificate:
    def test_is_replaced_ninety_days_before(self) -> None:
        for days_left, is_due in ((90.1, False), (89.9, True)):
            held = content(GOOD, leaf(GOOD, NOW, days_left))
            assert (renewed(held, [GOOD.pem], seconds_trusted(GOOD)) is not None) == is_due

    def test_is_replaced_regardless_of_trust_in_its_authority(self) -> None:
        assert renewed(content(GOOD, leaf(GOOD, NOW, 89.9))) is not None

    def test_is_issued_by_the_same_authority(self) -> None:
        after = understood(
            renewed(content(GOOD, leaf(GOOD, NOW, 10)), [GOOD.pem], seconds_trusted(GOOD))
        )
        assert after.leaf is not None
        assert (after.leaf.issuer, list(after.authorities)) == (
            GOOD.certificate,
            [GOOD.certificate],
        )

    def test_never_expires_after_its_authority(self) -> None:
        # Such an authority is replaced, but what is in its place cannot be relied on yet.
        ca = authority(NOW, days_left=3)
        issued = leaf(ca, NOW)
        assert issued.certificate.not_valid_after_utc == ca.certificate.not_valid_after_utc


class TestExpiringAuthority:
    OLD = authority(NOW, days_left=400)
    HELD = content(OLD, leaf(OLD, NOW, 200))

    def test_is_replaced_while_a_certificate_of_full_length_still_fits(self) -> None:
        for days_left, is_due in ((455.1, False), (454.9, True)):
            ca = authority(NOW, days_left)
            assert (
                renewed(content(ca, leaf(ca, NOW)), [ca.pem], seconds_trusted(ca)) is not None
            ) == is_due

    def test_first_both_are_to_be_trusted_and_nothing_else_changes(self) -> None:
        after = renewed(self.HELD, [self.OLD.pem], seconds_trusted(self.OLD))
        assert after is not None
        new, old = certificates_in(after[CA_CERTIFICATE])
        assert (old, understood(after).issuer) == (self.OLD.certificate, new)
        assert (after[CERTIFICATE], after[KEY]) == (self.HELD[CERTIFICATE], self.HELD[KEY])

    def test_the_new_one_signs_when_all_have_been_trusted_for_long_enough(self) -> None:
        between = renewed(self.HELD, [self.OLD.pem], seconds_trusted(self.OLD))
        assert between is not None
        new, old = understood(between).authorities
        bundle = [pem_of([new, old])]
        assert renewed(between, bundle, {new: SETTLED_AFTER - 1, old: 999}) is None
        after = understood(renewed(between, bundle, {new: SETTLED_AFTER, old: 999}))
        assert after.leaf is not None
        assert (after.leaf.issuer, list(after.authorities)) == (new, [new, old])

    def test_old_authority_is_removed_when_its_certificates_are_unused(self) -> None:
        new = authority(NOW)
        held, bundle = content(new, leaf(new, NOW), self.OLD), [new.pem + self.OLD.pem]
        assert renewed(held, bundle, seconds_trusted(new, self.OLD, seconds=OVERLAP - 1)) is None
        after = understood(renewed(held, bundle, seconds_trusted(new, self.OLD, seconds=OVERLAP)))
        assert list(after.authorities) == [new.certificate]

    def test_the_old_one_stays_as_long_as_its_certificate_is_shown(self) -> None:
        new = authority(NOW)
        held = content(new, leaf(self.OLD, NOW, 10), self.OLD)
        after = understood(
            renewed(held, [new.pem + self.OLD.pem], seconds_trusted(new, seconds=OVERLAP))
        )
        assert list(after.authorities) == [new.certificate, self.OLD.certificate]

    def test_expired_authority_is_removed_immediately(self) -> None:
        expired = authority(NOW, days_left=-1)
        after = understood(
            renewed(content(GOOD, SHOWN, expired), [GOOD.pem], seconds_trusted(GOOD))
        )
        assert list(after.authorities) == [GOOD.certificate]


GARBAGE = b"-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n"
OTHER = authority(NOW)


def shows(pair: Pair) -> Mapping[str, bytes]:
    return {CERTIFICATE: pair.pem, KEY: pair.key_pem}


DAMAGES = {
    "the certificate is garbage": {CERTIFICATE: b"garbage"},
    "the certificate looks like one": {CERTIFICATE: GARBAGE},
    "the certificate is empty": {CERTIFICATE: b""},
    "the key is garbage": {KEY: b"garbage"},
    "the key is of another one": {KEY: leaf(GOOD, NOW).key_pem},
    "the certificate has expired": shows(leaf(GOOD, NOW, -1)),
    "the certificate is not valid yet": shows(leaf(GOOD, NOW, 367)),
    "the certificate is for another host": shows(leaf(GOOD, NOW, identity=ELSEWHERE)),
    "the certificate is of another authority": shows(leaf(OTHER, NOW)),
    "the certificate is the authority's own": shows(GOOD),
}


@pytest.mark.parametrize("damaged_files", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_certificate_is_replaced_at_once_by_the_same_authority(
    damaged_files: Mapping[str, bytes],
) -> None:
    after = understood(renewed({**content(GOOD, SHOWN), **damaged_files}, [GOOD.pem]))
    assert after.leaf is not None
    assert (after.leaf.issuer, list(after.authorities)) == (GOOD.certificate, [GOOD.certificate])


@pytest.mark.parametrize("missing", [CERTIFICATE, KEY])
def test_a_missing_half_is_replaced_at_once(missing: str) -> None:
    held = {name: value for name, value in content(GOOD, SHOWN).items() if name != missing}
    after = understood(renewed(held, [GOOD.pem]))
    assert after.leaf is not None
    assert after.leaf.issuer == GOOD.certificate


class TestMissingAuthorityKey:
    @pytest.mark.parametrize(
        "key", [b"", b"garbage", OTHER.key_pem], ids=["no", "bad", "another's"]
    )
    def test_without_its_key_it_is_replaced_and_trusted_further(self, key: bytes) -> None:
        held = {**content(GOOD, SHOWN), CA_KEY: key}
        after = renewed(held, [GOOD.pem], seconds_trusted(GOOD))
        stored = understood(after)
        assert stored.leaf is not None
        assert stored.leaf.certificate == SHOWN.certificate
        assert (len(stored.authorities), stored.authorities[1]) == (2, GOOD.certificate)
        assert stored.issuer == stored.authorities[0]

    def test_expired_authority_removes_its_certificate(self) -> None:
        expired = authority(NOW, days_left=-1)
        after = understood(renewed(content(expired, leaf(expired, NOW, 10)), [expired.pem]))
        assert after.leaf is not None
        assert list(after.authorities) == [after.leaf.issuer] == [after.issuer]

    def test_authority_is_recovered_from_the_published_bundle(self) -> None:
        held = {**content(GOOD, SHOWN), CA_CERTIFICATE: b"garbage"}
        after = renewed(held, [GOOD.pem])
        assert after is not None
        assert after == {**held, CA_CERTIFICATE: GOOD.pem}

    def test_served_certificates_stay_trusted_after_loss_of_all_data(self) -> None:
        after = understood(renewed({}, [GOOD.pem, GOOD.pem]))
        assert after.leaf is not None
        assert list(after.authorities) == [after.leaf.issuer, GOOD.certificate]

    def test_both_authorities_are_trusted_during_replacement(self) -> None:
        held = content(OTHER, leaf(OTHER, NOW))
        after = understood(renewed(held, [GOOD.pem], seconds_trusted(GOOD)))
        assert list(after.authorities) == [OTHER.certificate, GOOD.certificate]
        assert after.issuer == OTHER.certificate

    def test_foreign_certificates_in_a_bundle_are_not_adopted(self) -> None:
        other_authority = authority(NOW, identity=OTHER_IDENTITY)
        after = understood(renewed({}, [other_authority.pem]))
        assert other_authority.certificate not in after.authorities

    def test_bundle_size_is_bounded_after_repeated_deletion(self) -> None:
        bundle = b""
        for _ in range(2 * MOST_AUTHORITIES):
            bundle = (renewed({}, [bundle]) or {})[CA_CERTIFICATE]
        assert len(certificates_in(bundle)) == MOST_AUTHORITIES


def _weak_keys() -> list[bytes]:
    return [
        key_pem(ec.generate_private_key(ec.SECP192R1())),
        rsa.generate_private_key(65537, 1024).private_bytes(  # noqa: S505
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        ),
    ]


@pytest.mark.parametrize("key", _weak_keys(), ids=["curve", "rsa"])
def test_keys_that_clients_refuse_are_invalid(key: bytes) -> None:
    assert read({CA_KEY: key}, IDENTITY, NOW).ca_key is None


def _shown(pair: Pair, by: Pair) -> Stored:
    return read(content(by, pair), IDENTITY, NOW)


class TestServedCertificates:
    def test_anything_is_better_than_nothing(self) -> None:
        new = _shown(SHOWN, GOOD).leaf
        assert new is not None
        assert is_better(new, None, NONE_TRUSTED, NOW)

    def test_a_newer_one_of_the_same_authority_is_better(self) -> None:
        old, new = _shown(SHOWN, GOOD).leaf, _shown(leaf(GOOD, NOW), GOOD).leaf
        assert old is not None
        assert new is not None
        assert is_better(new, old, NONE_TRUSTED, NOW)
        assert not is_better(old, old, NONE_TRUSTED, NOW)

    def test_one_that_some_may_not_trust_yet_is_not(self) -> None:
        old, new = _shown(SHOWN, GOOD).leaf, _shown(leaf(OTHER, NOW), OTHER).leaf
        assert old is not None
        assert new is not None
        assert not is_better(new, old, seconds_trusted(GOOD), NOW)
        assert not is_better(new, old, seconds_trusted(GOOD, OTHER, seconds=SETTLED_AFTER - 1), NOW)
        assert is_better(new, old, seconds_trusted(GOOD, OTHER), NOW)

    def test_it_is_replaced_if_the_old_one_is_unusable(self) -> None:
        old, new = _shown(SHOWN, GOOD).leaf, _shown(leaf(OTHER, NOW), OTHER).leaf
        assert old is not None
        assert new is not None
        assert is_better(new, old, seconds_trusted(OTHER, seconds=0), NOW), (
            "the old one is not trusted"
        )
        assert is_better(new, old, seconds_trusted(GOOD), NOW + timedelta(days=366)), (
            "it has expired"
        )


AUTHORITIES = [
    *(GOOD, OTHER, authority(NOW, 400), authority(NOW, 30), authority(NOW, -1)),
    *(authority(NOW, 3660), authority(NOW, identity=OTHER_IDENTITY)),
]
LEAVES = [
    leaf(each, NOW, days_left, identity)
    for each in AUTHORITIES
    for days_left in (300, 20)
    for identity in (IDENTITY, ELSEWHERE)
    if each.certificate.not_valid_after_utc > NOW
] + [leaf(GOOD, NOW, -1), leaf(GOOD, NOW, 370), SHOWN]
FRAGMENTS = st.one_of(st.just(b""), st.just(GARBAGE), st.binary(max_size=60))
CERTIFICATES = st.lists(
    st.one_of(st.sampled_from([each.pem for each in AUTHORITIES + LEAVES]), FRAGMENTS), max_size=4
).map(b"".join)
KEYS = st.one_of(st.sampled_from([each.key_pem for each in AUTHORITIES + LEAVES]), FRAGMENTS)
PAIRS = st.sampled_from(AUTHORITIES + LEAVES).map(lambda each: (each.pem, each.key_pem))
HALVES = st.one_of(PAIRS, st.tuples(CERTIFICATES, KEYS))


@st.composite
def any_content(draw: st.DrawFn) -> Content:
    """Possible contents of a Secret written by any client."""
    ca, shown = draw(HALVES), draw(HALVES)
    extra = draw(st.one_of(st.just(b""), CERTIFICATES))
    held = {CA_CERTIFICATE: ca[0] + extra, CA_KEY: ca[1], CERTIFICATE: shown[0], KEY: shown[1]}
    return {name: held[name] for name in held if draw(st.integers(0, 9))}


MOST_STEPS = 4


@given(any_content(), st.lists(CERTIFICATES, max_size=3))
def test_from_any_state_a_few_steps_lead_to_a_good_one(held: Content, bundles: list[bytes]) -> None:
    for step in range(MOST_STEPS + 1):
        authorities = read(held, IDENTITY, NOW).authorities
        trusted_for = {
            each: OVERLAP
            for each in authorities
            if all(each in certificates_in(bundle) for bundle in bundles)
        }
        after = renewed(held, bundles, trusted_for)
        if after is None and all(certificates_in(each) == list(authorities) for each in bundles):
            break
        held = after if after is not None else held
        if step == 0:
            assert understood(held).leaf is not None, "there is nothing to show after one step"
        bundles = [pem_of(understood(held).authorities) for _ in bundles]
    else:
        pytest.fail("it never comes to rest")
    stored = understood(held)
    assert stored.leaf is not None
    assert stored.issuer is not None
    assert stored.leaf.issuer == stored.issuer
    assert list(stored.authorities) == [stored.issuer]
    assert stored.issuer.not_valid_after_utc - NOW >= RENEW_AUTHORITY_BEFORE
    assert stored.leaf.certificate.not_valid_after_utc - NOW >= RENEW_BEFORE
    assert stored.leaf.certificate.not_valid_after_utc <= stored.issuer.not_valid_after_utc


@given(any_content(), st.lists(CERTIFICATES, max_size=3))
def test_step_never_removes_a_certificate_in_use(held: Content, bundles: list[bytes]) -> None:
    """Unless it is by the same authority, or all clients trust that of its successor."""
    before = read(held, IDENTITY, NOW).leaf
    after = renewed(held, bundles, {})
    if before is not None and after is not None:
        stored = understood(after)
        assert stored.leaf is not None
        assert stored.leaf.issuer == before.issuer
        assert before.issuer in stored.authorities


class TestTrust:
    def test_starts_when_all_bundles_contain_the_authority(self) -> None:
        trust = Trust()
        trust.observe([GOOD.pem, b""], [], 0)
        assert trust.trusted_for(5) == {}
        trust.observe([GOOD.pem, OTHER.pem + GOOD.pem], [], 10)
        trust.observe([OTHER.pem + GOOD.pem, OTHER.pem + GOOD.pem], [], 12)
        assert trust.trusted_for(15) == {GOOD.certificate: 5, OTHER.certificate: 3}

    def test_restarts_after_a_bundle_was_lost(self) -> None:
        trust = Trust()
        trust.observe([GOOD.pem], [], 0)
        trust.observe([b""], [], 10)
        trust.observe([GOOD.pem], [], 20)
        assert trust.trusted_for(21) == {GOOD.certificate: 1}

    def test_without_bundles_the_given_authorities_count(self) -> None:
        trust = Trust()
        trust.observe([], [GOOD.certificate], 0)
        assert trust.trusted_for(7) == {GOOD.certificate: 7}

    def test_reports_when_a_threshold_is_reached(self) -> None:
        trust = Trust()
        assert trust.changes_in(0) is None
        trust.observe([GOOD.pem], [], 0)
        assert trust.changes_in(1) == SETTLED_AFTER - 1
        assert trust.changes_in(SETTLED_AFTER) == OVERLAP - SETTLED_AFTER
        assert trust.changes_in(OVERLAP) is None
