"""Certificates and keys that anybody may have written: they are read, or passed over."""

import random
import time
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kftrainer.machinery.certs.x509_parsing import (
    certificates_in,
    is_authority,
    is_signed_by,
    is_valid,
    key_in,
    key_pem,
    pem_of,
    serves,
)
from tests.support.certificates import IDENTITY, Pair, authority, leaf
from tests.support.fake_clock import START
from tests.support.odd_certificates import ODD, pem

GOOD = authority(START)
SHOWN = leaf(GOOD, START)
MUTATIONS = 4000
SEED = 20260101


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


@pytest.mark.parametrize("made", [GOOD, SHOWN], ids=["authority", "leaf"])
def test_whatever_happens_to_a_certificate_it_is_read_or_passed_over(made: Pair) -> None:
    der, read = made.certificate.public_bytes(Encoding.DER), 0
    rng = random.Random(SEED)  # noqa: S311  the same each time
    for _ in range(MUTATIONS):
        for each in certificates_in(pem(b"CERTIFICATE", mutated(der, rng))):
            read += 1
            is_valid(each, START)
            is_authority(each)
            serves(each, IDENTITY.host_names)
            is_unchanged = each == made.certificate
            assert is_signed_by(each, GOOD.certificate) == is_unchanged
            assert certificates_in(pem_of([each])) == [each]
    assert 0 < read < MUTATIONS


def test_whatever_happens_to_a_key_it_is_read_or_passed_over() -> None:
    der = GOOD.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    rng, read = random.Random(SEED), 0  # noqa: S311  the same each time
    for _ in range(MUTATIONS):
        key = key_in(pem(b"PRIVATE KEY", mutated(der, rng)))
        if key is not None:
            read += 1
            assert key_in(key_pem(key)) is not None
    assert read < MUTATIONS


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_one_that_cannot_be_read_does_not_hide_others(odd: bytes) -> None:
    assert certificates_in(GOOD.pem + odd + SHOWN.pem) == [GOOD.certificate, SHOWN.certificate]


def test_a_beginning_without_an_end_does_not_hide_others() -> None:
    begun = GOOD.pem[: len(GOOD.pem) // 2] + b"\n"
    assert certificates_in(begun + SHOWN.pem) == [SHOWN.certificate]


BEGIN, END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
MUCH = 256 * 1024  # a quarter of what fits into a Secret


@pytest.mark.parametrize(
    "unit",
    [BEGIN, BEGIN + b"\n", BEGIN + b"A" * 1000, END, b"-", BEGIN + b"-", BEGIN + END],
)
@pytest.mark.parametrize("reads", [certificates_in, key_in])
def test_nonsense_of_any_size_is_read_in_no_time(
    unit: bytes, reads: Callable[[bytes], object]
) -> None:
    nonsense = unit * (MUCH // len(unit))
    began = time.process_time()
    assert not reads(nonsense)
    assert time.process_time() - began < 1.0, "more than ten, if it were quadratic"
