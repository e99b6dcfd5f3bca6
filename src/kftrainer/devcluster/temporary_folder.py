"""Folders for control planes that end with the program that started them."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.processes.locks import FileLock


def sweep(parent: Path) -> None:
    """Delete folders whose owners ended without cleaning up, for example after SIGKILL."""
    for path in parent.glob("*.lock"):
        lock = FileLock(path)
        if lock.try_acquire():
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            lock.remove()


@contextmanager
def own_folder(cache: Path) -> Iterator[Path]:
    """Create a folder and delete it after the block; after an error it stays for its logs.

    Such folders are deleted when the next control plane starts.
    """
    parent = cache_paths.runs(cache)
    sweep(parent)
    lock = FileLock(parent / f"{secrets.token_hex(4)}.lock")
    while not lock.try_acquire():
        lock = FileLock(parent / f"{secrets.token_hex(4)}.lock")
    folder = lock.path.with_suffix("")
    folder.mkdir(parents=True)
    try:
        yield folder
    except BaseException:
        lock.release()
        raise
    shutil.rmtree(folder, ignore_errors=True)
    lock.remove()
