"""Pods in a sandbox, for tests: short ways to start containers and to read their output."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kftrainer.devcluster.nodes.sandbox.client import Sandbox
from kftrainer.devcluster.nodes.sandbox.namespaces import unavailable
from kftrainer.devcluster.nodes.sandbox.protocol import (
    ContainerSpec,
    Exit,
    Image,
    Mount,
    PodSandbox,
)
from kftrainer.devcluster.pytest_plugin import REQUIRE_REAL
from kftrainer.devcluster.waiting import until

SYSTEM_PATH = ["/usr/local/bin", "/usr/bin", "/bin"]
THIS_PYTHON = Image(
    path=[str(Path(sys.executable).parent), *SYSTEM_PATH],
    expose=[sys.prefix, sys.base_prefix],
)
DOMAIN = "team.svc.cluster.local"


def require_namespaces() -> None:
    """Skip the test, or fail it if real programs are required, where there is no sandbox."""
    reason = unavailable()
    if reason is None:
        return
    if os.environ.get(REQUIRE_REAL) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


class Pods:
    """Pods and containers in a sandbox."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.folder = folder
        self.messages = folder / "sandbox.log"
        self._containers = 0
        self._resolver = folder / "resolv.conf"
        self._resolver.write_text(f"nameserver 10.0.0.10\nsearch {DOMAIN}\noptions ndots:5\n")

    async def pod(self, name: str, ip: str = "10.244.0.2", *, host_network: bool = False) -> None:
        """Create a pod."""
        await self.sandbox.start_pod(PodSandbox(name, ip, name, host_network))

    def spec(self, pod: str, *argv: str, **fields: object) -> ContainerSpec:
        """Return a container that resolves names by the sandbox's DNS server."""
        self._containers += 1
        name = f"c{self._containers}"
        values: dict[str, object] = {
            "id": name,
            "pod": pod,
            "argv": list(argv),
            "env": {},
            "cwd": "",
            "mounts": [],
            "image": THIS_PYTHON,
            "log": str(self.folder / f"{name}.log"),
            **fields,
        }
        mounts = [*values["mounts"], Mount("/etc/resolv.conf", str(self._resolver))]  # type: ignore[misc]
        return ContainerSpec(**{**values, "mounts": mounts})  # type: ignore[arg-type]

    async def start(self, pod: str, *argv: str, **fields: object) -> str:
        """Start a container; return its id."""
        spec = self.spec(pod, *argv, **fields)
        await self.sandbox.start_container(spec)
        return spec.id

    async def run(self, pod: str, *argv: str, **fields: object) -> tuple[Exit, str]:
        """Run a container to its end; return how it ended and its output."""
        container = await self.start(pod, *argv, **fields)
        ended = await self.sandbox.wait_container(container)
        return ended, self.output(container)

    async def python(self, pod: str, source: str, **fields: object) -> str:
        """Run Python code in a pod; return its output."""
        ended, output = await self.run(pod, "python", "-c", source, **fields)
        assert ended == Exit(0), output
        return output

    async def server(self, pod: str, name: str, port: int = 29500) -> None:
        """Start a TCP server that sends its name to each client; return when it listens."""
        source = (
            "import socket\n"
            f"server = socket.create_server(('', {port}))\n"
            "while True:\n"
            f"    server.accept()[0].sendall(b'{name}')\n"
        )
        container = await self.start(pod, "python", "-c", source)

        async def listens() -> bool:
            probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
            done = await self.sandbox.exec(container, ["python", "-c", probe], 10)
            return done.code == 0

        await until(listens, within=20, what=f"the server {name}")

    async def fetch(self, pod: str, *addresses: tuple[str, int]) -> str:
        """Connect to servers from a pod; return what they send, or the error, one per line."""
        source = (
            "import socket\n"
            f"for address in {addresses!r}:\n"
            "    try:\n"
            "        print(socket.create_connection(address, 10).recv(100).decode())\n"
            "    except OSError as error:\n"
            "        print(error.strerror)\n"
        )
        return await self.python(pod, source)

    def output(self, container: str) -> str:
        """Return the output of a container without times, streams and tags."""
        lines = self.lines(container)
        return "".join(text + ("\n" if tag == "F" else "") for _, _, tag, text in lines)

    def lines(self, container: str) -> list[tuple[str, str, str, str]]:
        """Return the lines of a log: time, stream, tag and text."""
        log = self.folder / f"{container}.log"
        found = []
        for line in log.read_text().splitlines():
            time, stream, tag, text = line.split(" ", 3)
            found.append((time, stream, tag, text))
        return found


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Pods]:
    """Start a sandbox with one pod, named `pod`."""
    async with Sandbox(log=folder / "sandbox.log") as sandbox:
        pods = Pods(sandbox, folder)
        await pods.pod("pod")
        yield pods


def processes(marker: str) -> Mapping[int, Sequence[str]]:
    """Return the command lines of all processes of this machine that contain a marker."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(marker in argument for argument in argv):
            found[int(entry.name)] = argv
    return found


async def all_ended(marker: str) -> None:
    """Wait until no process has the marker in its command line."""

    async def none() -> bool:
        return not processes(marker)

    await until(none, within=10, what=f"the end of the processes with {marker}")


def parents(pid: int) -> list[int]:
    """Return the ids of a process' parents, the closest first."""
    found = []
    while pid > 1:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(status[1])
        found.append(pid)
    return found


def kill(pid: int) -> None:
    """Kill one process."""
    os.kill(pid, signal.SIGKILL)
