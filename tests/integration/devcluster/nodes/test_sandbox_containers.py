"""Containers in the sandbox: files, users, exit codes, errors at start, and commands."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from kftrainer.devcluster.nodes.sandbox.protocol import (
    ContainerStartError,
    ExecResult,
    Exit,
    Image,
    Mount,
    SandboxError,
)
from kftrainer.devcluster.waiting import until
from tests.support.pods import THIS_PYTHON, running


async def test_exit_code_and_output_of_a_container(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        ended = await pods.run("pod", "sh", "-c", "hostname; echo $WORD; exit 3", env={"WORD": "x"})
    assert ended == (Exit(3), "pod\nx\n")


async def test_folders_of_the_host_are_read_only_and_the_root_is_writable(tmp_path: Path) -> None:
    script = "touch /usr/x /etc/x /var/x; mkdir /workspace && touch /workspace/x /tmp/x /run/x"
    async with running(tmp_path) as pods:
        ended, output = await pods.run("pod", "sh", "-c", script)
    assert ended == Exit(0)
    assert output.count("Read-only file system") == 3
    assert not Path("/workspace/x").exists()


async def test_a_container_cannot_make_its_mounts_writable(tmp_path: Path) -> None:
    script = "mount -o remount,bind,rw /usr; umount /usr; mount -t tmpfs none /usr && touch /usr/x"
    async with running(tmp_path) as pods:
        ended, _ = await pods.run("pod", "sh", "-c", f"({script}) 2>&1; touch /usr/bin/x")
    assert ended.code != 0
    assert not Path("/usr/bin/x").exists()


async def test_home_folders_are_hidden_except_what_the_image_exposes(tmp_path: Path) -> None:
    list_home = f"ls -A {Path.home()} 2> /dev/null || true"
    async with running(tmp_path) as pods:
        seen = await pods.python("pod", f"import os; print(os.path.exists({str(tmp_path)!r}))")
        listed = await pods.run("pod", "sh", "-c", list_home, image=Image(["/usr/bin", "/bin"]))
    assert (seen, listed) == ("False\n", (Exit(0), ""))


async def test_mounts_below_read_only_folders_and_in_home_folders(tmp_path: Path) -> None:
    for name in ("hosts", "mpi/hostfile", "ssh/id", "opt/file", "sub/below/file"):
        file = tmp_path / "volume" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    volume = tmp_path / "volume"
    mounts = [
        Mount("/etc/mpi", str(volume / "mpi"), read_only=True),
        Mount("/etc/hosts", str(volume / "hosts")),
        Mount("/etc/new/deep/file", str(volume / "hosts")),
        Mount("/home/mpiuser/.ssh", str(volume / "ssh"), read_only=True),
        Mount("/var/run/secrets/kubernetes.io/serviceaccount", str(volume / "opt")),
        Mount("/data", str(volume / "sub")),
        Mount("/data/inner/deep", str(volume / "mpi"), read_only=True),
        Mount("/cache", None, size="1m"),
        Mount("/dev/termination-log", str(volume / "opt" / "file")),
    ]
    script = """
        cat /etc/mpi/hostfile /etc/hosts /etc/new/deep/file /home/mpiuser/.ssh/id
        cat /run/secrets/kubernetes.io/serviceaccount/file /data/below/file
        cat /data/inner/deep/hostfile; echo; head -c1 /etc/passwd; echo
        touch /etc/mpi/x /data/inner/deep/x /home/mpiuser/.ssh/x && echo writable
        touch /data/written; echo ended > /dev/termination-log
        head -c 2000000 /dev/zero > /cache/file
    """
    async with running(tmp_path) as pods:
        container = await pods.start("pod", "sh", "-c", script, mounts=mounts)
        await pods.sandbox.wait_container(container)
        out = [text for _, stream, _, text in pods.lines(container) if stream == "stdout"]
        errors = [text for _, stream, _, text in pods.lines(container) if stream == "stderr"]
    assert out == ["mpi/hostfilehostshostsssh/idopt/filesub/below/filempi/hostfile", "r"]
    assert [line.rpartition(": ")[2] for line in errors] == [
        "Read-only file system",
        "Read-only file system",
        "Read-only file system",
        "No space left on device",
    ]
    assert (volume / "sub" / "written").exists()
    assert (volume / "opt" / "file").read_text() == "ended\n"


async def test_containers_of_a_pod_share_volumes_but_not_their_root(tmp_path: Path) -> None:
    shared = [Mount("/shared", str(tmp_path / "volume"))]
    (tmp_path / "volume").mkdir()
    async with running(tmp_path) as pods:
        await pods.run("pod", "sh", "-c", "echo 1 > /shared/x; echo 1 > /run/x", mounts=shared)
        _, output = await pods.run("pod", "sh", "-c", "ls /run /shared", mounts=shared)
    assert output == "/run:\nlock\n\n/shared:\nx\n"


async def test_a_missing_working_folder_is_created(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        assert await pods.run("pod", "pwd", cwd="/usr/share/new/folder") == (
            Exit(0),
            "/usr/share/new/folder\n",
        )


async def test_a_missing_working_folder_in_a_volume_is_created(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    mounts = [Mount("/data", str(tmp_path / "volume"))]
    async with running(tmp_path) as pods:
        assert await pods.run("pod", "pwd", cwd="/data/a/b", mounts=mounts) == (
            Exit(0),
            "/data/a/b\n",
        )
    assert (tmp_path / "volume" / "a" / "b").is_dir()


async def test_special_files_and_file_systems(tmp_path: Path) -> None:
    script = """
        echo x > /dev/null && echo x > /dev/stdout && head -c1 /dev/urandom | wc -c
        df -k /dev/shm | tail -1 | awk '{print $2}'
        ls /sys/class/net | sort | tr '\\n' ' '
        python -c 'import os; os.openpty(); print(os.listdir("/dev/pts"))'
        ls /proc | grep -c '^[0-9]'
    """
    async with running(tmp_path) as pods:
        ended, output = await pods.run("pod", "sh", "-c", script)
    assert ended == Exit(0), output
    assert output.startswith("x\n1\n65536\neth0 lo ['0', 'ptmx']\n"), output


async def test_user_and_group_of_a_container(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        _, default = await pods.run("pod", "sh", "-c", "id -u; id -g; echo $HOME")
        _, other = await pods.run(
            "pod", "sh", "-c", "id -u; id -g; touch /tmp/x && stat -c %u /tmp/x", user=1000, group=7
        )
    assert (default, other) == ("0\n0\n/root\n", "1000\n7\n1000\n")


async def test_processes_cannot_gain_privileges(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        _, output = await pods.run("pod", "grep", "NoNewPrivs", "/proc/self/status")
    assert output.split() == ["NoNewPrivs:", "1"]


async def test_signals_reach_the_main_process_with_default_handlers(tmp_path: Path) -> None:
    handles = "trap 'echo got; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    async with running(tmp_path) as pods:
        container = await pods.start("pod", "sh", "-c", handles)

        async def ready() -> bool:
            return pods.output(container) == "ready\n"

        await until(ready, within=10, what="the handler")
        await pods.sandbox.signal_container(container, signal.SIGTERM)
        assert await pods.sandbox.wait_container(container) == Exit(7)
        assert pods.output(container) == "ready\ngot\n"
        _, ignored = await pods.run("pod", "grep", "^SigIgn", "/proc/self/status")
    assert int(ignored.split()[1], 16) & 0x7FFFFFFF == 0  # the C library keeps 32 and 33


async def test_sigkill_ends_all_processes_of_the_container(tmp_path: Path) -> None:
    script = "setsid sleep 600 & setsid sleep 600 & echo ready; wait"
    async with running(tmp_path) as pods:
        container = await pods.start("pod", "sh", "-c", script)
        await pods.sandbox.signal_container(container, signal.SIGKILL)
        async with asyncio.timeout(10):
            assert await pods.sandbox.wait_container(container) == Exit(137, 9)
        await pods.sandbox.signal_container(container, signal.SIGKILL)  # has ended: ignored


async def test_processes_in_the_background_end_with_the_main_process(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        async with asyncio.timeout(10):
            ended = await pods.run("pod", "sh", "-c", "sleep 600 & exit 4")
    assert ended == (Exit(4), "")


PREFIX = "failed to create task: unable to start container process: "


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nope"], 'exec: "nope": executable file not found in $PATH'),
        (["/nope"], 'exec: "/nope": stat /nope: no such file or directory'),
        (["/etc/passwd"], 'exec: "/etc/passwd": permission denied'),
        (["/etc"], 'exec: "/etc": is a directory'),
        (["/volume/broken"], 'exec: "/volume/broken": exec format error'),
        (["/volume/script"], 'exec: "/volume/script": no such file or directory'),
        ([], "no command specified"),
    ],
)
async def test_a_command_that_cannot_be_executed(
    tmp_path: Path, argv: list[str], message: str
) -> None:
    (tmp_path / "volume").mkdir()
    for name, text in (("broken", "\x7fELF"), ("script", "#!/nope\n")):
        (tmp_path / "volume" / name).write_text(text)
        (tmp_path / "volume" / name).chmod(0o755)
    async with running(tmp_path) as pods:
        with pytest.raises(ContainerStartError) as raised:
            await pods.start("pod", *argv, mounts=[Mount("/volume", str(tmp_path / "volume"))])
        assert (await pods.run("pod", "true"))[0] == Exit(0)
    assert (raised.value.reason, raised.value.code) == ("StartError", 128)
    assert str(raised.value) == PREFIX + message


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        (
            Mount("/data", "/nope"),
            "error mounting '/nope' to '/data': stat /nope: no such file or directory",
        ),
        (
            Mount("/etc/passwd", "/usr"),
            "error mounting '/usr' to rootfs at '/etc/passwd': bind: not a directory",
        ),
        (Mount("/", "/usr"), "/: cannot be the root folder"),
        (Mount("/proc/x", "/usr"), "/proc/x: is not in a folder that can contain mounts"),
    ],
)
async def test_a_mount_that_is_not_possible(tmp_path: Path, mount: Mount, message: str) -> None:
    async with running(tmp_path) as pods:
        with pytest.raises(ContainerStartError) as raised:
            await pods.start("pod", "true", mounts=[mount])
    assert str(raised.value) == PREFIX + message


async def test_an_image_selects_the_command_the_path_and_variables(tmp_path: Path) -> None:
    image = Image(["/usr/bin", "/bin"], env={"LANG": "C", "A": "1"}, command=["sh", "-c", "env"])
    async with running(tmp_path) as pods:
        _, output = await pods.run("pod", image=image, env={"A": "2"})
    assert {"PATH=/usr/bin:/bin", "LANG=C", "A=2"} <= set(output.splitlines())
    assert not any(line.startswith("VIRTUAL_ENV") for line in output.splitlines())


async def test_the_python_of_the_image_has_its_packages(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        output = await pods.python("pod", "import sys, pydantic; print(sys.prefix)")
    assert output == f"{sys.prefix}\n"


async def test_exec_runs_in_the_container(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        container = await pods.start(
            "pod", "sh", "-c", "echo 1 > /tmp/x; exec sleep 600", env={"A": "b"}, user=1000
        )

        async def execute(*argv: str) -> ExecResult:
            return await pods.sandbox.exec(container, argv, 20)

        script = "id -u; hostname; cat /proc/1/comm; echo $A; grep NoNew /proc/self/status; exit 5"
        done = await execute("sh", "-c", script)
        assert done == ExecResult(5, "1000\npod\nsleep\nb\nNoNewPrivs:\t1\n")
        assert await execute("sh", "-c", "kill -9 $$") == ExecResult(137, "")
        missing = 'exec: "nope": executable file not found in $PATH'
        assert await execute("nope") == ExecResult(127, missing)
        denied = 'exec: "/etc/passwd": permission denied'
        assert await execute("/etc/passwd") == ExecResult(126, denied)
        long = await execute("sh", "-c", "echo $0; yes | head -c 1000000")
        assert (long.code, len(long.output)) == (0, 10 * 1024)
        background = await execute("sh", "-c", "sleep 600 & echo started")
        assert background == ExecResult(0, "started\n")


async def test_exec_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        container = await pods.start("pod", "sleep", "600")
        with pytest.raises(TimeoutError):
            await pods.sandbox.exec(container, ["sleep", "601"], 0.2)

        async def gone() -> bool:
            listed = await pods.sandbox.exec(container, ["ps", "ax", "-o", "args"], 20)
            return "sleep 600" in listed.output and "sleep 601" not in listed.output

        await until(gone, within=10, what="the end of the command")


async def test_exec_in_a_container_that_has_ended(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        container = await pods.start("pod", "true")
        await pods.sandbox.wait_container(container)
        with pytest.raises(SandboxError, match="is not running"):
            await pods.sandbox.exec(container, ["true"], 5)
        ends = await pods.start("pod", "sleep", "0.3")
        assert await pods.sandbox.exec(ends, ["sleep", "600"], 20) == ExecResult(137, "")


async def test_stopping_a_pod_ends_its_containers_and_frees_its_address(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        await pods.pod("other", "10.244.0.3")
        await pods.server("pod", "first")
        assert await pods.fetch("other", ("10.244.0.2", 29500)) == "first\n"
        first, second = [await pods.start("pod", "sleep", "600") for _ in range(2)]
        stays = await pods.start("other", "sleep", "600")
        await pods.sandbox.stop_pod("pod")
        async with asyncio.timeout(5):
            assert await pods.sandbox.wait_container(first) == Exit(137, 9)
            assert await pods.sandbox.wait_container(second) == Exit(137, 9)
        await pods.sandbox.stop_pod("pod")
        with pytest.raises(SandboxError, match="does not exist"):
            await pods.start("pod", "true")
        await pods.pod("pod")
        await pods.server("pod", "again")
        assert await pods.fetch("other", ("10.244.0.2", 29500)) == "again\n"
        assert (await pods.sandbox.exec(stays, ["true"], 10)).code == 0


async def test_many_containers_start_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as pods, asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(pods.run("pod", "echo", str(n))) for n in range(30)]
    assert [run.result() for run in runs] == [(Exit(0), f"{n}\n") for n in range(30)]


async def test_standard_streams_and_descriptors(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        _, output = await pods.run("pod", "sh", "-c", "readlink /proc/self/fd/0; ls /proc/self/fd")
    assert output.splitlines() == ["/dev/null", "0", "1", "2", "3"]  # 3 is the folder that ls reads


async def test_the_environment_of_the_tool_is_not_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "1")
    async with running(tmp_path) as pods:
        _, output = await pods.run("pod", "env")
    assert "SECRET" not in output
    assert os.environ["SECRET_OF_THE_USER"]
    assert THIS_PYTHON.path[0] in output
