import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from kftrainer.runtime.plugins.mpi.ssh_keys import new_key_pair

Program = Callable[..., str]


@pytest.fixture
def ssh_keygen() -> Program:
    """The real ssh-keygen: arguments in, output out."""
    program = shutil.which("ssh-keygen")
    if program is None:
        missing = "ssh-keygen is not installed"
        if os.environ.get("KFTRAINER_REQUIRE_REAL") == "1":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)

    def run(*arguments: str | Path) -> str:
        command = [program, *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    return run


def test_ssh_keygen_finds_the_public_half_in_the_private_one(
    ssh_keygen: Program, tmp_path: Path
) -> None:
    keys = new_key_pair()
    file = tmp_path / "id_rsa"
    file.write_bytes(keys.private)
    file.chmod(0o600)
    assert ssh_keygen("-y", "-f", file) == keys.public.decode()


def test_ssh_keygen_accepts_both_halves_as_the_same_key_of_521_bits(
    ssh_keygen: Program, tmp_path: Path
) -> None:
    keys = new_key_pair()
    private, public = tmp_path / "id_rsa", tmp_path / "authorized_keys"
    private.write_bytes(keys.private)
    private.chmod(0o600)
    public.write_bytes(keys.public)
    size, fingerprint, *_, kind = ssh_keygen("-l", "-f", public).split()
    assert (size, kind) == ("521", "(ECDSA)")
    assert ssh_keygen("-l", "-f", private).split()[:2] == [size, fingerprint]


def test_the_private_half_is_a_sec1_key_in_pem() -> None:
    private = new_key_pair().private
    assert private.startswith(b"-----BEGIN EC PRIVATE KEY-----\n")
    assert private.endswith(b"\n-----END EC PRIVATE KEY-----\n")
    key = load_pem_private_key(private, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp521r1"


def test_the_public_half_is_one_line_of_authorized_keys_without_a_comment() -> None:
    kind, key, end = new_key_pair().public.decode().replace("\n", " \n").split(" ")
    assert (kind, len(key), end) == ("ecdsa-sha2-nistp521", 232, "\n")


def test_each_key_is_new() -> None:
    assert new_key_pair().private != new_key_pair().private


def test_the_private_half_is_not_shown_by_accident() -> None:
    keys = new_key_pair()
    assert repr(keys) == f"KeyPair(public={keys.public!r})"
