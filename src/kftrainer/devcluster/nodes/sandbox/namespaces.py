"""System calls for namespaces and mounts, and the check that the kernel permits them.

It uses only the standard library, imports little, and runs also as a script: the check needs a
process of its own, because a process cannot leave a user namespace.
"""

import ctypes
import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38

_MOUNT_SETATTR = 442  # the number is the same on all architectures that Python supports
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1

_LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str, path: str = "") -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", path or None)


def unshare(flags: int) -> None:
    """Move the process (a PID namespace: its children) into new namespaces."""
    _check(_LIBC.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Move the process (a PID namespace: its children) into an existing namespace."""
    _check(_LIBC.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system, or change the propagation of a mount."""
    result = _LIBC.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        options.encode(),
    )
    _check(result, "mount", target)


def read_only(target: str) -> None:
    """Make a mount and all mounts below it read-only."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _LIBC.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_AT_RECURSIVE),
        attributes,
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(result, "mount_setattr", target)


def change_root(folder: str) -> None:
    """Make a mount the root of this mount namespace and detach the old root."""
    os.chdir(folder)
    _check(_LIBC.pivot_root(b".", b"."), "pivot_root", folder)
    _check(_LIBC.umount2(b".", MNT_DETACH), "umount2", folder)
    os.chdir("/")


def die_with_parent(signum: int) -> None:
    """Have the kernel send a signal when the parent ends; cleared when credentials change."""
    _check(_LIBC.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0), "prctl")


def no_new_privileges() -> None:
    """Make programs with the set-user-ID bit run without it."""
    _check(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def new_user_namespace(flags: int, uid: int, gid: int) -> None:
    """Enter new namespaces in which the current user and group have these ids.

    Supplementary groups are dropped if the kernel permits it. Otherwise they stay, as the group
    `nogroup`: processes can still use files of these groups.
    """
    own_uid, own_gid = os.geteuid(), os.getegid()
    with suppress(OSError):
        os.setgroups([])
    unshare(CLONE_NEWUSER | flags)
    with suppress(OSError):  # already denied in a nested namespace
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {own_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {own_gid} 1")


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
    done = subprocess.run(
        [sys.executable, "-I", "-S", __file__], capture_output=True, text=True, check=False
    )
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
