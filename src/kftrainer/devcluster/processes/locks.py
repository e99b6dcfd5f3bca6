"""Locks between processes; the kernel releases them when the holder ends."""

import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.waiting import until

LONGEST_BUILD = 3600.0


class FileLock:
    """An exclusive lock on a file, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether it was."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        if os.fstat(fd).st_nlink == 0:  # `sweep` deleted it between the two calls
            os.close(fd)
            return False
        os.truncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
        self._fd = fd
        return True

    def remove(self) -> None:
        """Delete the lock file and release the lock."""
        self.path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def holder(path: Path) -> int | None:
    """Return the pid of the process that holds the lock on this file, or None."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.read(fd, 32) or 0)  # 0: it holds the lock but has not written its pid yet
    finally:
        os.close(fd)
    return None


@asynccontextmanager
async def exclusively(path: Path, progress: Progress) -> AsyncIterator[None]:
    """Hold the lock for the duration of the block; wait if another process holds it."""
    lock = FileLock(path)
    if not lock.try_acquire():

        async def taken() -> bool:
            return lock.try_acquire()

        with progress.step(f"waiting for another process to finish {path.stem}"):
            await until(
                taken, within=LONGEST_BUILD, what=f"the lock {path} to be released", every=0.5
            )
    try:
        yield
    finally:
        lock.release()
