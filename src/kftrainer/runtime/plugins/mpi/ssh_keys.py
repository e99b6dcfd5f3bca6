"""SSH keys for nodes that log in to each other."""

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization import PublicFormat as Public


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both halves of a key, as the files that `ssh` and `sshd` read."""

    private: bytes = field(repr=False)  # so that no log and no traceback shows it
    public: bytes  # a line of authorized_keys


def new_key_pair() -> KeyPair:
    """Draw an ECDSA P-521 key; the one thing here that is never the same twice."""
    key = ec.generate_private_key(ec.SECP521R1())
    # The traditional format is SEC1, "EC PRIVATE KEY": what every OpenSSH and Go's x509 read.
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, Public.OpenSSH)
    return KeyPair(private, public + b"\n")
