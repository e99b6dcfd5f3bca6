"""The lifetime of the sandbox: nothing is left when one of its processes ends, for any reason."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import kftrainer
from kftrainer.devcluster.nodes.sandbox.client import Sandbox
from kftrainer.devcluster.nodes.sandbox.protocol import Exit, SandboxError
from kftrainer.devcluster.waiting import until
from tests.support.pods import all_ended, kill, parents, processes, running

OWNER = """
import asyncio, os, sys
from pathlib import Path
from kftrainer.devcluster.nodes.sandbox.client import Sandbox
from kftrainer.devcluster.nodes.sandbox.protocol import ContainerSpec, Image, PodSandbox

async def main(folder, *argv):
    async with Sandbox(log=Path(folder, "sandbox.log")) as sandbox:
        await sandbox.start_pod(PodSandbox("pod", "10.244.0.2", "pod"))
        image = Image(["/usr/bin", "/bin"])
        log = folder + "/log"
        await sandbox.start_container(ContainerSpec("c", "pod", argv, {}, "", [], image, log))
        print("started", flush=True)
        print(await sandbox.wait_container("c"), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
SLEEPS = ["sh", "-c", "setsid sleep 600 & trap '' TERM; sleep 600; : $0"]


@pytest.fixture
def marker() -> str:
    """A word that is only in the command lines of one test's processes."""
    return f"marker-{os.urandom(8).hex()}"


@pytest.fixture
def owner(tmp_path: Path, marker: str) -> Iterator[subprocess.Popen[str]]:
    """A process with a sandbox in which a container runs."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), *SLEEPS, marker],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
        process.kill()


def container_of(marker: str) -> int:
    """Return the main process of the container: the oldest shell with the marker."""
    return min(pid for pid, argv in processes(marker).items() if argv[0] == "sh")


async def test_nothing_is_left_after_the_owner_was_killed(
    owner: subprocess.Popen[str], marker: str
) -> None:
    container = container_of(marker)
    others = parents(container)[:3]  # the shim, the server, the outer process
    argv = Path(f"/proc/{others[2]}/cmdline").read_text().split("\0")
    folder = Path(argv[argv.index("--folder") + 1])
    assert folder.is_dir()
    kill(owner.pid)
    await all_ended(marker)

    async def gone() -> bool:
        return not any(Path(f"/proc/{pid}/cmdline").exists() for pid in others)

    await until(gone, within=10, what="the end of the sandbox")
    assert not folder.exists()


@pytest.mark.parametrize("which", [1, 2], ids=["server", "outer process"])
async def test_nothing_is_left_after_a_process_of_the_sandbox_was_killed(
    owner: subprocess.Popen[str], marker: str, which: int
) -> None:
    kill(parents(container_of(marker))[which])
    assert owner.wait(10) == 1
    await all_ended(marker)


async def test_nothing_is_left_of_a_server_that_does_not_respond(
    owner: subprocess.Popen[str], marker: str
) -> None:
    os.kill(parents(container_of(marker))[1], signal.SIGSTOP)
    kill(owner.pid)
    await all_ended(marker)


async def test_a_container_ends_with_its_shim(tmp_path: Path, marker: str) -> None:
    async with running(tmp_path) as pods:
        container = await pods.start("pod", *SLEEPS, marker)
        kill(parents(container_of(marker))[0])
        async with asyncio.timeout(10):
            assert await pods.sandbox.wait_container(container) == Exit(137, 9)
        await all_ended(marker)


async def test_a_killed_container_is_reported(owner: subprocess.Popen[str], marker: str) -> None:
    kill(container_of(marker))
    assert owner.wait(10) == 0
    assert owner.stdout is not None
    assert owner.stdout.read() == f"{Exit(137, 9)}\n"


async def test_requests_fail_after_the_sandbox_has_ended(tmp_path: Path, marker: str) -> None:
    async with running(tmp_path) as pods:
        container = await pods.start("pod", *SLEEPS, marker)
        kill(parents(container_of(marker))[2])
        async with asyncio.timeout(10):
            await pods.sandbox.ended()
            with pytest.raises(SandboxError, match="the sandbox has ended"):
                await pods.sandbox.wait_container(container)
            with pytest.raises(SandboxError, match="the sandbox has ended"):
                await pods.start("pod", "true")
    await all_ended(marker)


async def test_the_end_of_the_block_kills_containers_and_removes_files(
    tmp_path: Path, marker: str
) -> None:
    folders = []

    async def fail() -> None:
        async with running(tmp_path) as pods:
            await pods.start("pod", *SLEEPS, marker)
            folders.append(pods.sandbox.host_socket.parent)
            assert folders[0].exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not processes(marker)
    assert not folders[0].exists()


async def test_a_sandbox_that_cannot_start_reports_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kftrainer.devcluster.nodes.sandbox.client.MODULE", "no.such.module")
    with pytest.raises(SandboxError, match=r"the sandbox has ended: .*No module named 'no'"):
        async with Sandbox(log=tmp_path / "log"):
            pass


UNPRIVILEGED = 65534  # nobody


def python_for_everybody() -> str | None:
    """Return a Python that users without privileges can execute."""
    for candidate in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        try:
            done = subprocess.run(
                [candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                user=UNPRIVILEGED,
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests here run without privileges")
def test_a_sandbox_of_a_user_without_privileges(marker: str) -> None:
    python = python_for_everybody()
    if python is None:
        pytest.skip("no Python here can be executed by other users")
    import dns
    import pyroute2

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for package in (kftrainer, pyroute2, dns):
            source = Path(str(package.__file__)).parent
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("tests"))
        (folder / "logs").mkdir()
        shutil.chown(folder / "logs", UNPRIVILEGED, UNPRIVILEGED)
        folder.chmod(0o755)
        script = "id -u; cat /etc/shadow; touch /root/x && echo private; hostname"
        done = subprocess.run(
            [python, "-P", "-c", OWNER, str(folder / "logs"), "sh", "-c", script, marker],
            user=UNPRIVILEGED,
            group=UNPRIVILEGED,
            extra_groups=[],
            env={"PYTHONPATH": name, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == (f"started\n{Exit(0)}\n", "")
        lines = (folder / "logs" / "log").read_text().splitlines()
    assert [line.split(" F ")[1] for line in lines if " stdout " in line] == ["0", "private", "pod"]
    assert next(line for line in lines if " stderr " in line).endswith("Permission denied")
    assert processes(marker) == {}
