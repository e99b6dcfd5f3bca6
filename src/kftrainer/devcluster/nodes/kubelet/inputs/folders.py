"""Folders and files of volumes on this machine."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from kftrainer.devcluster.nodes.kubelet.inputs.errors import InputError

FOLDER_MODE, FILE_MODE = 0o755, 0o644
OWNER = stat.S_IRWXU
# The type of a hostPath volume, the check of its mode, and the name of it in messages.
CHECKS: dict[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "directory"),
    "File": (stat.S_ISREG, "file"),
    "FileOrCreate": (stat.S_ISREG, "file"),
    "Socket": (stat.S_ISSOCK, "socket file"),
    "CharDevice": (stat.S_ISCHR, "character device"),
    "BlockDevice": (stat.S_ISBLK, "block device"),
}


def create_folder(path: Path, mode: int) -> None:
    """Create the folder if it does not exist, and set its mode whatever the umask is."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)


def check_host_path(text: str, kind: str) -> Path:
    """Return the path of a hostPath volume after checking its type; create it if required.

    Without a type, a missing path becomes a folder, as container runtimes do.
    """
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts:
        raise InputError(f"invalid HostPath `{text}`: must be absolute and must not contain '..'")
    if kind and kind not in CHECKS:
        raise InputError(f"{kind} is an invalid volume type")
    if not path.exists():
        if kind in ("", "DirectoryOrCreate"):
            path.mkdir(FOLDER_MODE, parents=True)
        elif kind == "FileOrCreate":
            path.touch(FILE_MODE)
    if kind:
        check, name = CHECKS[kind]
        if not (path.exists() and check(path.stat().st_mode)):
            raise InputError(f"hostPath type check failed: {text} is not a {name}")
    return path


def sub_path(volume: Path, relative: str) -> Path:
    """Return a path in the volume without symbolic links; create missing folders.

    Raises OSError if it cannot be created, or if symbolic links lead out of the volume.
    """
    root = volume.resolve(strict=True)
    path = (root / relative).resolve()
    if not path.is_relative_to(root):
        raise OSError("a symbolic link leads out of the volume")
    mode = stat.S_IMODE(root.stat().st_mode)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir()
        each.chmod(mode)
    return path


def remove_tree(folder: Path) -> bool:
    """Delete the folder, also with read-only folders in it; return whether it is gone.

    Symbolic links are not followed.
    """
    if folder.is_dir():
        folder.chmod(OWNER)
    for where, names, _ in os.walk(folder):
        for path in (Path(where, name) for name in names):
            if not path.is_symlink():
                path.chmod(OWNER)
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
