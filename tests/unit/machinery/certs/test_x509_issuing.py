"""What is signed under authorities that others have made."""

import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store

from kftrainer.machinery.certs.authority import CA_CERTIFICATE, CA_KEY, next_content, read
from kftrainer.machinery.certs.x509_issuing import issue, self_signed
from kftrainer.machinery.certs.x509_parsing import certificates_in, pem_of, serves
from tests.support.certificates import IDENTITY, Pair, authority
from tests.support.fake_clock import START

SHA1_OF_THE_KEY, OTHERWISE = "as RFC 5280 has it", "of its own"


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
def test_openssl_finds_the_authority_however_it_calls_its_key(
    identifier: str | None, tmp_path: Path
) -> None:
    ca = foreign_authority(identifier)
    made, _ = issue(ca.certificate, ca.key, IDENTITY, START)
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    (tmp_path / "leaf.pem").write_bytes(pem_of([made]))
    command = ["openssl", "verify", "-attime", f"{START.timestamp():.0f}", "-CAfile", "ca.pem"]
    verified = subprocess.run(
        [*command, "leaf.pem"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def test_strict_clients_trust_what_our_own_authority_signs() -> None:
    ca = authority(START)
    made, _ = issue(ca.certificate, ca.key, IDENTITY, START)
    policy = PolicyBuilder().store(Store([ca.certificate])).time(START)
    policy.build_server_verifier(x509.DNSName("hooks.ours.svc")).verify(made, [])


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
    leaf = read({**held, **renewal.content}, IDENTITY, now).leaf
    assert leaf is not None
    assert leaf.issuer == issuer


def test_a_certificate_that_nobody_vouches_for_is_good_for_its_hosts() -> None:
    made, key = self_signed(("localhost", "127.0.0.1"), START)
    assert serves(made, ["localhost", "127.0.0.1"])
    assert made.public_key() == key.public_key()
    assert made.not_valid_before_utc == START - timedelta(hours=1)
    assert made.not_valid_after_utc == START + timedelta(days=365)
