"""Certificates are issued so that clients trust them, and read from any input."""

import random
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.verification import PolicyBuilder, Store

from kftrainer.machinery.certs.authority import CA_CERTIFICATE, CA_KEY, next_content, read
from kftrainer.machinery.certs.x509 import (
    certificates_in,
    is_authority,
    is_signed_by,
    is_valid,
    key_in,
    key_pem,
    pem_of,
    self_signed,
    serves,
)
from tests.support.certificates import IDENTITY, Pair, authority, leaf
from tests.support.fake_clock import START
from tests.support.odd_certificates import ODD, pem

GOOD = authority(START)
SHOWN = leaf(GOOD, START)
MUTATIONS = 4000
SEED = 20260101
SHA1_OF_THE_KEY, OTHERWISE = "as RFC 5280 has it", "of its own"


def mutated(der: bytes, rng: random.Random) -> bytes:
    """With a few bytes changed, lost or added."""
    changed = bytearray(der)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed))
        match rng.randrange(3):
            case 0:
                changed[place] = rng.randrange(256)
            case 1:
                del changed[place]
            case _:
                changed.insert(place, rng.randrange(256))
    return bytes(changed)


@pytest.mark.parametrize("pair", [GOOD, SHOWN], ids=["authority", "leaf"])
def test_corrupted_certificate_is_parsed_or_skipped(pair: Pair) -> None:
    der, read = pair.certificate.public_bytes(Encoding.DER), 0
    rng = random.Random(SEED)  # noqa: S311  the same each time
    for _ in range(MUTATIONS):
        for each in certificates_in(pem(b"CERTIFICATE", mutated(der, rng))):
            read += 1
            is_valid(each, START)
            is_authority(each)
            serves(each, IDENTITY.host_names)
            is_unchanged = each == pair.certificate
            assert is_signed_by(each, GOOD.certificate) == is_unchanged
            assert certificates_in(pem_of([each])) == [each]
    assert 0 < read < MUTATIONS


def test_corrupted_key_is_parsed_or_skipped() -> None:
    der = GOOD.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    rng, read = random.Random(SEED), 0  # noqa: S311  the same each time
    for _ in range(MUTATIONS):
        key = key_in(pem(b"PRIVATE KEY", mutated(der, rng)))
        if key is not None:
            read += 1
            assert key_in(key_pem(key)) is not None
    assert read < MUTATIONS


@pytest.mark.parametrize("unreadable", ODD.values(), ids=ODD.keys())
def test_one_that_cannot_be_read_does_not_hide_others(unreadable: bytes) -> None:
    assert certificates_in(GOOD.pem + unreadable + SHOWN.pem) == [
        GOOD.certificate,
        SHOWN.certificate,
    ]


def test_a_beginning_without_an_end_does_not_hide_others() -> None:
    truncated = GOOD.pem[: len(GOOD.pem) // 2] + b"\n"
    assert certificates_in(truncated + SHOWN.pem) == [SHOWN.certificate]


BEGIN, END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
LARGE_SIZE = 256 * 1024  # a quarter of what fits into a Secret


@pytest.mark.parametrize(
    "unit",
    [BEGIN, BEGIN + b"\n", BEGIN + b"A" * 1000, END, b"-", BEGIN + b"-", BEGIN + END],
)
@pytest.mark.parametrize("reads", [certificates_in, key_in])
def test_garbage_of_any_size_is_parsed_quickly(
    unit: bytes, reads: Callable[[bytes], object]
) -> None:
    garbage = unit * (LARGE_SIZE // len(unit))
    began = time.process_time()
    assert not reads(garbage)
    assert time.process_time() - began < 1.0, "more than ten, if it were quadratic"


def foreign_authority(identifier: str | None) -> Pair:
    """An authority whose key is called like this."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(IDENTITY.authority_name)
        .issuer_name(IDENTITY.authority_name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(START - timedelta(hours=1))
        .not_valid_after(START + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    if identifier == SHA1_OF_THE_KEY:
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(own, critical=False)
    elif identifier == OTHERWISE:
        builder = builder.add_extension(x509.SubjectKeyIdentifier(b"\x01" * 20), critical=False)
    return Pair(builder.sign(key, hashes.SHA256()), key)


@pytest.mark.parametrize("identifier", [SHA1_OF_THE_KEY, OTHERWISE, None])
def test_openssl_finds_the_authority_for_any_key_identifier(
    identifier: str | None, tmp_path: Path
) -> None:
    ca = foreign_authority(identifier)
    pair = leaf(ca, START).certificate
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    (tmp_path / "leaf.pem").write_bytes(pem_of([pair]))
    command = ["openssl", "verify", "-attime", f"{START.timestamp():.0f}", "-CAfile", "ca.pem"]
    verified = subprocess.run(
        [*command, "leaf.pem"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def test_strict_clients_trust_certificates_of_our_authority() -> None:
    ca = authority(START)
    pair = leaf(ca, START).certificate
    policy = PolicyBuilder().store(Store([ca.certificate])).time(START)
    policy.build_server_verifier(x509.DNSName("hooks.ours.svc")).verify(pair, [])


def test_an_authority_with_the_serial_number_zero_is_used(tmp_path: Path) -> None:
    """As cert-controller makes them."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 3650"
    names = ["-set_serial", "0", "-subj", "/O=our-organization/CN=our-ca"]
    usage = "keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign"
    subprocess.run(
        [*command.split(), *names, "-addext", usage],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    held = {name: (tmp_path / name).read_bytes() for name in (CA_CERTIFICATE, CA_KEY)}
    now = certificates_in(held[CA_CERTIFICATE])[0].not_valid_before_utc
    issuer = read(held, IDENTITY, now).issuer
    assert issuer is not None
    renewal = next_content(held, [], {}, IDENTITY, now)
    assert renewal is not None
    stored = read({**held, **renewal.content}, IDENTITY, now).leaf
    assert stored is not None
    assert stored.issuer == issuer


def test_self_signed_certificate_is_valid_for_its_hosts() -> None:
    pair, key = self_signed(("localhost", "127.0.0.1"), START)
    assert serves(pair, ["localhost", "127.0.0.1"])
    assert pair.public_key() == key.public_key()
    assert pair.not_valid_before_utc == START - timedelta(hours=1)
    assert pair.not_valid_after_utc == START + timedelta(days=365)
