"""Writes the files of a volume so that readers get either all old or all new files.

The layout is the kubelet's: `..data` is a symbolic link to a folder with the files, which is
replaced, and each visible name is a symbolic link to `..data/<name>`.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

DATA, NEW_DATA = "..data", "..data_tmp"
TIMESTAMP = "..%Y_%m_%d_%H_%M_%S."
INTERNAL = ".."  # prefix of the names that are not visible
FOLDER_MODE = 0o755


@dataclass(frozen=True, slots=True)
class File:
    """A file of a volume."""

    content: bytes
    mode: int


def write_files(folder: Path, files: Mapping[str, File], now: datetime) -> bool:
    """Replace the files of the volume by these; return whether a write was necessary.

    The paths are normalized and relative. A failed write leaves the old files in place.
    """
    changed = _contents(folder / DATA) != {path: file.content for path, file in files.items()}
    if changed:
        _replace(folder, files, now)
    _link_names(folder, {path.partition("/")[0] for path in files})
    _remove_old_versions(folder)
    return changed


def _contents(folder: Path) -> dict[str, bytes] | None:
    """Return the content by path; None if there is no version or it cannot be read."""
    try:
        root = folder.resolve(strict=True)
        return {str(file.relative_to(root)): file.read_bytes() for file in _files_in(root)}
    except OSError:
        return None


def _files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if not path.is_dir())


def _replace(folder: Path, files: Mapping[str, File], now: datetime) -> None:
    version = Path(tempfile.mkdtemp(prefix=now.strftime(TIMESTAMP), dir=folder))
    try:
        version.chmod(FOLDER_MODE)
        for path, file in files.items():
            target = version / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.content)
            target.chmod(file.mode)
        new = folder / NEW_DATA
        new.unlink(missing_ok=True)
        new.symlink_to(version.name)
        new.replace(folder / DATA)
    except BaseException:
        shutil.rmtree(version, ignore_errors=True)
        raise


def _link_names(folder: Path, names: set[str]) -> None:
    for name in names:
        with suppress(FileExistsError):
            (folder / name).symlink_to(f"{DATA}/{name}")
    for entry in list(os.scandir(folder)):
        is_ours = entry.is_symlink() and not entry.name.startswith(INTERNAL)
        if is_ours and entry.name not in names:
            Path(entry).unlink()


def _remove_old_versions(folder: Path) -> None:
    current = (folder / DATA).readlink().name
    for entry in list(os.scandir(folder)):
        if entry.name.startswith(INTERNAL) and entry.name not in (DATA, current):
            shutil.rmtree(entry, ignore_errors=True)
