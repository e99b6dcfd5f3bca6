"""Execution of the mount plan in the new mount namespace of a container. Standard library only."""

import os
from collections.abc import Callable
from contextlib import suppress

from kftrainer.devcluster.nodes.sandbox import namespaces
from kftrainer.devcluster.nodes.sandbox.namespaces import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    mount,
)


def _tmpfs(path: str, mode: str, size: str) -> None:
    options = f"mode={mode}" + (f",size={size}" if size else "")
    mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options)


def _folder(path: str, mode: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(path)
        os.chmod(path, int(mode, 8))


def _file(path: str) -> None:
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _proc(path: str) -> None:
    try:
        mount("proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:  # inside a container whose own /proc has hidden parts
        mount("/proc", path, "", MS_BIND | MS_REC)


def _sysfs(path: str) -> None:
    try:
        mount("sysfs", path, "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    except OSError:  # as for /proc
        mount("/sys", path, "", MS_BIND | MS_REC)
        namespaces.read_only(path)


def _bind(path: str, source: str) -> None:
    mount(source, path, "", MS_BIND | MS_REC)


def _link(path: str, target: str) -> None:
    os.symlink(target, path)


def _devpts(path: str) -> None:
    mount("devpts", path, "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")


def _mqueue(path: str) -> None:
    mount("mqueue", path, "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)


STEPS: dict[str, Callable[..., None]] = {
    "bind": _bind,
    "devpts": _devpts,
    "file": _file,
    "folder": _folder,
    "link": _link,
    "mqueue": _mqueue,
    "proc": _proc,
    "read_only": namespaces.read_only,
    "sysfs": _sysfs,
    "tmpfs": _tmpfs,
}


def build(root: str, steps: list[list[str]]) -> None:
    """Build a root file system on `root`, an empty folder, and make it the root."""
    os.umask(0o022)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for name, path, *arguments in steps:
        try:
            STEPS[name](root + path, *arguments)
        except OSError as error:
            what = os.strerror(error.errno or 0).lower()
            source = f"{arguments[0]!r} " if name == "bind" else ""
            message = f"error mounting {source}to rootfs at {path!r}: {name}: {what}"
            raise OSError(error.errno, message) from error
    namespaces.change_root(root)
