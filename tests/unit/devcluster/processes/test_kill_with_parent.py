"""The wrapper is tried with real processes, as nothing else can show that they die."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kftrainer.devcluster.processes.subprocesses import killed_with_parent
from kftrainer.devcluster.waiting import until

WRITE_PID = "echo $$ > {file}; exec sleep 600"


async def is_deleted(pid: int) -> bool:
    try:
        # A zombie only waits for its new parent to notice.
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


async def read_pid(file: Path) -> int:
    async def written() -> int | None:
        return int(file.read_text()) if file.exists() and file.read_text().strip() else None

    return await until(written, within=30, what="the command writing its pid")


def start(argv: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(killed_with_parent(argv), stdin=subprocess.PIPE, start_new_session=True)


async def assert_dies(pid: int) -> None:
    async def dead() -> bool:
        return await is_deleted(pid)

    await until(dead, within=30, what=f"the end of process {pid}")


@pytest.mark.parametrize("code", [0, 3])
def test_passes_the_exit_code_on(code: int) -> None:
    with start(["sh", "-c", f"exit {code}"]) as wrapper:
        assert wrapper.wait(60) == code


def test_death_by_signal_is_reported_as_a_shell_does() -> None:
    with start(["sh", "-c", "kill -9 $$"]) as wrapper:
        assert wrapper.wait(60) == 128 + signal.SIGKILL


def test_reports_a_missing_program() -> None:
    with subprocess.Popen(
        killed_with_parent(["/nonesuch/etcd"]), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as wrapper:
        assert wrapper.wait(60) == 127
        assert wrapper.stderr
        assert wrapper.stderr.read() == b"cannot run /nonesuch/etcd: No such file or directory\n"


def test_kills_a_command_whose_owner_exits_immediately() -> None:
    for _ in range(20):  # the pipe may close before, while and after the command starts
        wrapper = start(["sleep", "600"])
        assert wrapper.stdin
        wrapper.stdin.close()
        assert wrapper.wait(60) == 128 + signal.SIGKILL


async def test_passes_sigterm_on(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with start(["sh", "-c", WRITE_PID.format(file=file)]) as wrapper:
        pid = await read_pid(file)
        wrapper.send_signal(signal.SIGTERM)
        assert wrapper.wait(60) == 128 + signal.SIGTERM
    assert await is_deleted(pid)


async def test_kills_the_command_and_its_children_when_the_pipe_closes(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    script = f"echo $$ > {parent}; (trap '' TERM; echo $BASHPID > {child}; sleep 600) & wait"
    wrapper = start(["bash", "-c", script])
    pids = [await read_pid(parent), await read_pid(child)]
    assert wrapper.stdin
    wrapper.stdin.close()
    wrapper.wait(60)
    for pid in pids:
        await assert_dies(pid)


async def test_kills_the_command_when_its_owner_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    argv = killed_with_parent(["sh", "-c", WRITE_PID.format(file=file)])
    owner_code = f"import subprocess; subprocess.Popen({argv!r}, stdin=subprocess.PIPE).wait()"
    owner = subprocess.Popen([sys.executable, "-c", owner_code])
    pid = await read_pid(file)
    owner.kill()
    owner.wait(60)
    await assert_dies(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG of Linux")
async def test_kills_the_command_when_it_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with start(["sh", "-c", WRITE_PID.format(file=file)]) as wrapper:
        pid = await read_pid(file)
        wrapper.kill()
    await assert_dies(pid)
