"""Runs a container without a container engine: read-only file system, not as root.

It shares the network of the machine. As in a pod, its first process does not receive signals that
it does not handle.
"""

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 60.0  # seconds; more than it takes on a busy machine
# The file system as the kubelet sets it up: only /tmp is writable, if it exists.
SET_UP = """
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro "$ROOT"
mount -t tmpfs -o mode=755,size=64k tmpfs "$ROOT/dev"
mknod -m 666 "$ROOT/dev/null" c 1 3
mknod -m 666 "$ROOT/dev/urandom" c 1 9
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=755,size=1m tmpfs "$ROOT/run"
mkdir -p "$ROOT/run/secrets/kubernetes.io/serviceaccount"
cp "$ACCOUNT"/* "$ROOT/run/secrets/kubernetes.io/serviceaccount"
mount -o remount,ro "$ROOT/run"
if [ "$WRITABLE_TMP" ]; then mount -t tmpfs -o mode=1777,size=1m tmpfs "$ROOT/tmp"; fi
exec setpriv --no-new-privs chroot --userspec="$USER" "$ROOT" /usr/bin/env -i "$@"
"""


class Container:
    """A running container."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.returncode

    @property
    def pid(self) -> int:
        """The process ID of its first process, outside of the container."""
        outer = self._process.pid
        [inner] = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        return int(inner)

    def status(self, key: str) -> str:
        """Return a field of the status of its first process, such as `Uid`."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:"))

    def open_files(self) -> list[str]:
        """Return the regular files that are open for writing, except its log."""
        found = []
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            flags = Path(f"/proc/{self.pid}/fdinfo/{entry.name}").read_text().split()[3]
            target = entry.readlink()
            if int(flags, 8) & 3 and target.is_absolute() and target != self.log:
                found.append(str(target))
        return [each for each in found if not each.startswith("/dev/")]

    def written(self) -> list[str]:
        """Return the files in its /tmp, if it is writable."""
        folder = Path(f"/proc/{self.pid}/root/tmp")
        return sorted(each.name for each in folder.iterdir()) if folder.is_mount() else []

    async def stop(self) -> int:
        """Stop it, as the kubelet does; returns the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        async with asyncio.timeout(TIMEOUT):
            return await self._process.wait()


@dataclass(frozen=True, slots=True)
class Pod:
    """What is run, and in what."""

    root: Path  # the image's tree of files
    command: Sequence[str]
    environment: Mapping[str, str]
    user: str
    account: Path  # folder with the files of the service account
    writable_tmp: bool

    def script(self) -> str:
        """The shell's script that sets it up; what is to be run are its arguments."""
        names = {
            "ROOT": self.root,
            "ACCOUNT": self.account,
            "USER": self.user,
            "WRITABLE_TMP": "yes" if self.writable_tmp else "",
        }
        assignments = (f"{name}={shlex.quote(str(value))}\n" for name, value in names.items())
        return "".join(assignments) + SET_UP


@asynccontextmanager
async def running(pod: Pod, log: Path) -> AsyncIterator[Container]:
    """The pod's container, until the block ends."""
    values = [f"{name}={value}" for name, value in pod.environment.items()]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
            *("sh", "-ec", pod.script(), "sh", *values, *pod.command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield Container(process, log)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
