import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from kftrainer.devcluster.components.pki import Authority, client_tls, new_signing_key

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_client_certificate_carries_user_and_groups(tmp_path: Path) -> None:
    pair = Authority(tmp_path, "ca", NOW).issue("ada", common_name="ada", organizations=["a", "b"])
    subject = load(pair.certificate).subject
    assert [each.value for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["ada"]
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert [each.value for each in groups] == ["a", "b"]


def test_certificate_is_valid_only_for_its_own_authority(tmp_path: Path) -> None:
    own, other = Authority(tmp_path / "mine", "ca", NOW), Authority(tmp_path / "other", "ca", NOW)
    leaf = load(own.issue("ada", common_name="ada", hosts=["localhost"]).certificate)

    def verify(authority: Authority) -> None:
        store = Store([load(authority.certificate)])
        policy = PolicyBuilder().store(store).time(NOW)
        policy.build_server_verifier(x509.DNSName("localhost")).verify(leaf, [])

    verify(own)
    with pytest.raises(VerificationError):
        verify(other)


def test_private_keys_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    pair = Authority(tmp_path, "ca", NOW).issue("ada", common_name="ada")
    signing = new_signing_key(tmp_path, "tokens")
    for key in (pair.key, signing.private):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert load_pem_public_key(signing.public.read_bytes())


def test_tls_settings_load(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca", NOW)
    context = client_tls(authority.certificate, authority.issue("ada", common_name="ada"))
    assert len(context.get_ca_certs()) == 1
