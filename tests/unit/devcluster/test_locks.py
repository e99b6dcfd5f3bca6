import subprocess
import sys
from pathlib import Path

from kftrainer.devcluster.locks import FileLock, exclusively, is_held
from kftrainer.devcluster.progress import SILENT

HOLD = """
import sys
from pathlib import Path
from kftrainer.devcluster.locks import FileLock
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


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        assert is_held(path)
        holder.kill()
    assert not is_held(path)


def test_a_lock_that_was_deleted_meanwhile_is_not_held(tmp_path: Path) -> None:
    sweeper, late = FileLock(tmp_path / "x.lock"), FileLock(tmp_path / "x.lock")
    assert sweeper.try_acquire()
    sweeper.remove()
    assert late.try_acquire()  # a new file under the old name
    assert is_held(tmp_path / "x.lock")
    late.remove()
    assert not is_held(tmp_path / "x.lock")


async def test_a_block_waits_for_the_holder_before_it(tmp_path: Path) -> None:
    order = []
    async with exclusively(tmp_path / "x.lock", SILENT):
        order.append("first")
    async with exclusively(tmp_path / "x.lock", SILENT):
        order.append("second")
    assert order == ["first", "second"]
