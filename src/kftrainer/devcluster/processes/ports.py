"""Free loopback ports, reserved across control planes that start concurrently."""

import errno
import random
import socket
from pathlib import Path

from kftrainer.devcluster.errors import PortTakenError
from kftrainer.devcluster.processes.locks import FileLock

LOOPBACK = "127.0.0.1"
# Below the range that kernels use for outgoing connections (32768 and up on Linux): a port from
# that range could be in use before its server listens.
FIRST, LAST = 20_000, 29_999
ATTEMPTS = 200


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            if error.errno == errno.EACCES:
                raise PortTakenError(f"Port {port} requires root: choose 1024 or higher.") from None
            raise
    return True


class PortReservations:
    """Ports that no other control plane on this machine selects while they are reserved."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: list[FileLock] = []

    def reserve(self) -> int:
        """Select a free port and reserve it until `release_all`."""
        for _ in range(ATTEMPTS):
            port = random.randint(FIRST, LAST)  # noqa: S311
            lock = FileLock(self._folder / f"{port}.lock")
            if lock.try_acquire():
                if is_free(port):
                    self._locks.append(lock)
                    return port
                lock.release()
        raise PortTakenError(
            f"No free port was found between {FIRST} and {LAST} on {LOOPBACK}; "
            f"stop some of the servers that run there and try again."
        )

    def claim(self, port: int) -> int:
        """Reserve this port, which the user selected."""
        lock = FileLock(self._folder / f"{port}.lock")
        if not lock.try_acquire() or not is_free(port):
            lock.release()
            raise PortTakenError(
                f"Port {port} on {LOOPBACK} is in use by another program: "
                f"stop that program, choose another port, or let one be chosen."
            )
        self._locks.append(lock)
        return port

    def release_all(self) -> None:
        """Release all ports."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()
