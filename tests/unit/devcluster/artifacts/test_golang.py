import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from kftrainer.devcluster.artifacts import golang
from kftrainer.devcluster.artifacts.golang import (
    GoError,
    explain,
    find_go,
    install_go,
    run_command,
)
from kftrainer.devcluster.progress import SILENT
from kftrainer.devcluster.waiting import until


def fake_go(folder: Path, version: str) -> Path:
    """A `go` that only prints its version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "go"
    path.write_text(f"#!/bin/sh\necho go version go{version} linux/amd64\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("write /tmp/x: no space left on device", "the disk is full"),
        (
            'Get "https://proxy": dial tcp: lookup proxy: no such host',
            "run this once with a network",
        ),
        ("pkg/a.go:1: undefined: x", "undefined: x"),
    ],
)
def test_a_failed_build_is_explained(output: str, advice: str) -> None:
    assert advice in str(explain("Building etcd", output))


async def test_a_go_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path / "bin", "1.21.3")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert await find_go(tmp_path) is None


async def test_go_on_path_is_used_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_go(tmp_path / "bin", "1.26.0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert await find_go(tmp_path) == golang.Go(path)


async def test_installed_toolchain_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_go(tmp_path / golang.OWN_TOOLCHAIN / "go" / "bin", "1.26.6")
    fake_go(tmp_path / "bin", "1.21.3")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert await find_go(tmp_path) == golang.Go(path)


async def test_missing_go_without_network_is_reported_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(GoError) as raised:
        await install_go(tmp_path, SILENT)
    message = str(raised.value)
    assert message.startswith("Go 1.26 or newer is needed to build the control plane")
    assert "PyPI cannot be reached" in message
    assert "install Go, or set KUBEBUILDER_ASSETS" in message
    assert "\n" not in message
    assert not (tmp_path / golang.OWN_TOOLCHAIN).exists()


async def cancel_when_it_runs(folder: Path, cancelled: asyncio.Event) -> None:
    """Cancel a command once it and its child run; both must end."""
    started = folder / "started"
    argv = ["sh", "-c", f"sleep 600 & echo $$ $! > {started}.new; mv {started}.new {started}; wait"]

    async def began() -> list[int] | None:
        return [*map(int, started.read_text().split())] if started.exists() else None

    async with asyncio.TaskGroup() as group:
        env = {"PATH": os.environ["PATH"]}
        command = group.create_task(run_command(argv, cwd=folder, env=env))
        pids = await until(began, within=30, what="the command starting")
        command.cancel()
        cancelled.set()
    assert command.cancelled()
    assert not runs(pids[0])

    async def child_ended() -> bool:
        return not runs(pids[1])

    await until(child_ended, within=10, what="the end of the command's child")


def runs(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_cancelling_a_command_kills_it_and_its_children(tmp_path: Path) -> None:
    await cancel_when_it_runs(tmp_path, asyncio.Event())


async def test_cancelling_while_the_command_is_being_started_kills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, cancelled = asyncio.create_subprocess_exec, asyncio.Event()

    async def start_slowly(*argv: str, **options: Any) -> asyncio.subprocess.Process:
        """Return after the command has run for a while, as on a machine that is busy."""
        process = await start(*argv, **options)
        await cancelled.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    await cancel_when_it_runs(tmp_path, cancelled)


async def test_stderr_lines_are_delivered_immediately_and_stdout_is_separate(
    tmp_path: Path,
) -> None:
    messages: list[str] = []
    script = "echo out; echo one >&2; echo two >&2; exit 3"
    env = {"PATH": "/bin:/usr/bin"}
    result = await run_command(["sh", "-c", script], cwd=tmp_path, env=env, on_line=messages.append)
    assert result == (3, "out\n", "one\ntwo")
    assert messages == ["one", "two"]


def test_settings_that_would_change_the_binaries_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOPROXY", "https://example.com")
    environment = golang.Go(Path("go")).environment()
    assert "GOOS" not in environment
    assert environment["GOPROXY"] == "https://example.com"
