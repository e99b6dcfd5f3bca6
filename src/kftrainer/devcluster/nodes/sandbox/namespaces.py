"""System calls for namespaces and mounts. Standard library only, with few imports."""

import ctypes
import os
from contextlib import suppress

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


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # not pathlib: it would double the imports
        file.write(text)


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
        _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {own_uid} 1")
    _write("/proc/self/gid_map", f"{gid} {own_gid} 1")
