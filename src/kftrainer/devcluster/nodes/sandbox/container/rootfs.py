"""Execution of the mount plan in the new mount namespace of a container. Standard library only."""

import os
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


def _step(root: str, step: list[str]) -> None:
    path = root + step[1]
    match [step[0], *step[2:]]:
        case ["folder", mode]:
            _folder(path, mode)
        case ["file"]:
            _file(path)
        case ["link", target]:
            os.symlink(target, path)
        case ["bind", source]:
            mount(source, path, "", MS_BIND | MS_REC)
        case ["read_only"]:
            namespaces.read_only(path)
        case ["tmpfs", mode, size]:
            _tmpfs(path, mode, size)
        case ["proc"]:
            _proc(path)
        case ["sysfs"]:
            _sysfs(path)
        case ["devpts"]:
            mount("devpts", path, "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")
        case ["mqueue"]:
            mount("mqueue", path, "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        case _:
            raise ValueError(step)


def build(root: str, steps: list[list[str]]) -> None:
    """Build a root file system below `root`, an empty folder, and make it the root."""
    os.umask(0o022)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for step in steps:
        try:
            _step(root, step)
        except OSError as error:
            what = error.strerror if error.strerror.count(":") else f"{step[0]}: {error.strerror}"
            raise OSError(error.errno, f"error mounting to {step[1]!r}: {what}") from error
    namespaces.change_root(root)
