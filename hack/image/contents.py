"""Inspects the file system of an image."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

PREFIX = "opt/kftrainer"
# Names of files, in any folder.
COMPILERS = {"cc", "c++", "gcc", "g++", "clang", "rustc", "go", "ld", "as", "make"}
INSTALLERS = {"pip", "pip3", "setuptools", "ensurepip", "wheel", "easy_install"}
SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID


def entries(root: Path) -> Iterator[Path]:
    """Yield everything below the root, except mounted file systems."""
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if not (Path(folder) / each).is_mount()]
        for name in (*folders, *files):
            yield Path(folder) / name


def fingerprints(root: Path) -> Mapping[str, tuple[object, ...]]:
    """Return mode, owner, modification time and digest or link target of each entry."""
    return {str(path.relative_to(root)): _fingerprint(path) for path in entries(root)}


def _fingerprint(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    content = ""
    if path.is_symlink():
        content = str(path.readlink())
    elif path.is_file():
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    return found.st_mode, found.st_uid, found.st_gid, int(found.st_mtime), content


def size(root: Path, pattern: str = "*") -> int:
    """Return the total size of the files below the root whose names match."""
    files = (path for path in root.rglob(pattern) if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def problems(root: Path, epoch: int) -> Iterator[str]:
    """Yield what must not be in the image."""
    for path in entries(root):
        name = "/" + str(path.relative_to(root))
        if path.name in COMPILERS and os.access(path, os.X_OK) and path.is_file():
            yield f"{name} is a compiler"
        if path.name in INSTALLERS or path.suffix == ".whl":
            yield f"{name} installs packages"
        if name.startswith(f"/{PREFIX}/"):
            yield from _problems_of_own_file(path, name, epoch)


def _problems_of_own_file(path: Path, name: str, epoch: int) -> Iterator[str]:
    found = path.lstat()
    if found.st_mode & SPECIAL_BITS:
        yield f"{name} changes the user"
    if found.st_uid or found.st_gid or (not path.is_symlink() and found.st_mode & stat.S_IWOTH):
        yield f"{name} can be written by others than root"
    if found.st_mtime > epoch:
        yield f"{name} is younger than {epoch}"
