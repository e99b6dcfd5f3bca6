import asyncio
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kftrainer.devcluster.processes.locks import FileLock, exclusively, holder
from kftrainer.devcluster.progress import SILENT

HOLD = """
import sys
from pathlib import Path
from kftrainer.devcluster.processes.locks import FileLock
assert FileLock(Path(sys.argv[1])).try_acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "x.lock"), FileLock(tmp_path / "x.lock")
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert second.try_acquire()
    second.release()


def test_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        assert holder(path) == process.pid
        process.kill()
    assert holder(path) is None


def test_lock_whose_file_was_deleted_is_not_acquired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lock"
    flock = fcntl.flock

    def delete_first(fd: int, how: int) -> None:
        path.unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", delete_first)
    assert not FileLock(path).try_acquire()


async def test_blocks_with_the_same_lock_never_overlap(tmp_path: Path) -> None:
    inside: list[str] = []
    overlapping: list[list[str]] = []

    async def enter(name: str) -> None:
        async with exclusively(tmp_path / "x.lock", SILENT):
            inside.append(name)
            await asyncio.sleep(0)
            overlapping.append(list(inside))
            inside.remove(name)

    async with asyncio.TaskGroup() as group:
        for name in ("a", "b", "c"):
            group.create_task(enter(name))
    assert sorted(overlapping) == [["a"], ["b"], ["c"]]


def test_the_holder_is_known(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "x.lock")
    assert holder(lock.path) is None
    assert lock.try_acquire()
    assert holder(lock.path) == os.getpid()
    lock.release()
    assert holder(lock.path) is None
