"""Generates the SSH key pair of an MPI TrainJob.

It is called through `PlannedObject.generate`, so only when the Secret is created.
"""

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization import PublicFormat as Public


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key pair in the file formats that `ssh` and `sshd` read."""

    private: bytes = field(repr=False)  # keep it out of logs and tracebacks
    public: bytes  # a line of authorized_keys


def new_key_pair() -> KeyPair:
    """Generate an ECDSA P-521 key pair."""
    key = ec.generate_private_key(ec.SECP521R1())
    # The traditional format is SEC1, "EC PRIVATE KEY", which OpenSSH and Go's x509 can read.
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, Public.OpenSSH)
    return KeyPair(private, public + b"\n")
