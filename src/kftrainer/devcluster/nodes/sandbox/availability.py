"""The check that this machine permits the sandbox."""

import errno
import importlib.util
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from kftrainer.devcluster.nodes.sandbox.namespaces import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    MS_PRIVATE,
    MS_REC,
    mount,
    new_user_namespace,
    read_only,
)

# A process cannot leave a user namespace, so the check needs one of its own.
COMMAND = (sys.executable, "-P", "-m", __name__)


def _try() -> None:
    """Do once what the sandbox does; raise OSError if the kernel refuses."""
    new_user_namespace(
        CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS, 0, 0
    )
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs")  # noqa: S108 - only in the new mount namespace
    read_only("/tmp")  # noqa: S108


def explain(error: OSError, settings: dict[str, str]) -> str:
    """Describe in one sentence why namespaces are not available and which setting decides."""
    if settings.get("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor forbids user namespaces to programs without a profile: "
            "run `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`."
        )
    if settings.get("kernel/unprivileged_userns_clone") == "0":
        return (
            "The kernel forbids user namespaces: "
            "run `sudo sysctl kernel.unprivileged_userns_clone=1`."
        )
    if settings.get("user/max_user_namespaces") == "0":
        return (
            "The kernel forbids user namespaces: run `sudo sysctl user.max_user_namespaces=10000`."
        )
    if error.errno == errno.ENOSYS:
        return f"The kernel is too old, Linux 5.12 or newer is required ({error.strerror})."
    if error.errno in {errno.ENOSPC, errno.EUSERS}:
        return f"The limit of user namespaces is reached ({error.strerror})."
    return (
        f"The kernel or the container runtime of this machine forbids user namespaces "
        f"({error.strerror})."
    )


_SETTINGS = (
    "kernel/apparmor_restrict_unprivileged_userns",
    "kernel/unprivileged_userns_clone",
    "user/max_user_namespaces",
)


def _settings() -> dict[str, str]:
    found = {}
    for name in _SETTINGS:
        with suppress(OSError):
            found[name] = Path("/proc/sys", name).read_text().strip()
    return found


def unavailable() -> str | None:
    """Return one sentence why the sandbox cannot run on this machine, or None if it can."""
    if sys.platform != "linux":
        return "Processes as pods require the namespaces of Linux."
    if any(importlib.util.find_spec(name) is None for name in ("dns", "pyroute2")):
        return "Processes as pods require more packages: run `pip install 'kftrainer[nodes]'`."
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return done.stdout.strip() or f"The check of namespaces failed: {done.stderr.strip()}"


def main() -> int:
    """Try to create namespaces; print why this fails."""
    try:
        _try()
    except OSError as error:
        sys.stdout.write(explain(error, _settings()) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
