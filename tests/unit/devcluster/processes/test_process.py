import os
import socket
import sys
from pathlib import Path

import pytest

from kftrainer.devcluster.errors import PortTakenError, ProcessDiedError
from kftrainer.devcluster.processes.process import ManagedProcess, tail
from kftrainer.devcluster.waiting import until

LISTEN = """
import os, socket, sys
try:
    socket.socket().bind(("127.0.0.1", int(sys.argv[1])))
except OSError as error:
    sys.exit("listen: " + os.strerror(error.errno).lower())
"""


def process(tmp_path: Path, *argv: str) -> ManagedProcess:
    return ManagedProcess("part", argv, tmp_path / "logs" / "part.log", tmp_path)


async def test_exited_process_error_has_exit_code_and_last_output(tmp_path: Path) -> None:
    part = process(tmp_path, "sh", "-c", "echo cannot go on >&2; exit 7")
    part.start()
    await part.ended()
    with pytest.raises(ProcessDiedError, match=r"part ended by itself \(exit code 7\)") as raised:
        part.check()
    assert "cannot go on" in str(raised.value)
    await part.stop()


async def test_one_that_was_killed_names_the_signal(tmp_path: Path) -> None:
    part = process(tmp_path, "sh", "-c", "kill -SEGV $$")
    part.start()
    await part.ended()
    with pytest.raises(ProcessDiedError, match="killed by SIGSEGV"):
        part.check()
    await part.stop()


async def test_taken_port_is_recognized(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        part = process(tmp_path, sys.executable, "-c", LISTEN, str(taken.getsockname()[1]))
        part.start()
        await part.ended()
    with pytest.raises(PortTakenError, match="another program listens on its port"):
        part.check()
    await part.stop()


async def test_one_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    part = process(tmp_path, "bash", "-c", f"trap '' TERM; touch {ready}; sleep 600 & wait; wait")
    part.start()

    async def trapped() -> bool:
        return ready.exists()

    await until(trapped, within=30, what="the trap being set")
    await part.stop(grace=0.2)
    assert not part.alive()
    assert part.ending() == "killed by SIGKILL"


async def test_it_can_be_started_again(tmp_path: Path) -> None:
    part = process(tmp_path, "sh", "-c", "echo once more")
    for _ in range(2):
        part.start()
        await part.ended()
        await part.stop()
    assert (tmp_path / "logs" / "part.log").read_text() == "once more\n" * 2


async def test_nothing_of_the_users_environment_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/somewhere/else")
    part = process(tmp_path, "env")
    part.start()
    await part.ended()
    await part.stop()
    variables = dict(line.split("=", 1) for line in part.log.read_text().splitlines())
    assert "KUBECONFIG" not in variables
    assert variables["HOME"] == str(tmp_path)


async def test_it_leaks_no_file_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    part = process(tmp_path, "sleep", "600")
    part.start()
    await part.stop()
    assert not part.alive()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_full_disk_is_recognized(tmp_path: Path) -> None:
    part = process(tmp_path, "sh", "-c", "echo 'wal: no space left on device'; echo panic; exit 2")
    part.start()
    await part.ended()
    with pytest.raises(ProcessDiedError, match=r"^part ended because the disk of .* is full: free"):
        part.check()
    await part.stop()


async def test_exit_code_that_is_not_a_signal_is_reported_unchanged(tmp_path: Path) -> None:
    script = (
        'echo "F0102 03:04:05 no luck"; for n in $(seq 50); do echo "goroutine $n"; done; exit 255'
    )
    part = process(tmp_path, "bash", "-c", script)
    part.start()
    await part.ended()
    with pytest.raises(ProcessDiedError, match=r"\(exit code 255\)") as raised:
        part.check()
    assert "F0102 03:04:05 no luck" in str(raised.value)
    await part.stop()


def test_tail_reads_from_the_given_offset(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n1\n2\n3\n")
    assert tail(log, 2, start=len("before\n")) == "2\n3"
    assert tail(log, 9, start=len("before\n")) == "1\n2\n3"
    assert tail(log, 0) == ""
    assert tail(tmp_path / "nonesuch", 5) == ""
