"""A sandbox without processes: tests decide what containers do."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from signal import SIGKILL, SIGTERM

from kftrainer.devcluster.nodes.sandbox.protocol import (
    ContainerSpec,
    ContainerStartError,
    ExecResult,
    Exit,
    PodSandbox,
    SandboxError,
    ServicePort,
)

KILLED = 137


class FakeSandbox:
    """Implements the protocol; a container runs until a test or a signal ends it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pods: dict[str, PodSandbox] = {}
        self.specs: dict[str, ContainerSpec] = {}  # of running containers, by name
        self.start_error: ContainerStartError | None = None
        self.pod_errors = 0  # how many attempts to start a pod fail
        self.ignores_sigterm = False
        self.exec_result: Callable[[Sequence[str]], ExecResult] = lambda _: ExecResult(0, "")
        self.names: Mapping[str, Sequence[str]] = {}
        self.services: Sequence[ServicePort] = ()
        self._exits: dict[str, asyncio.Future[Exit]] = {}

    def end(self, name: str, code: int = 0) -> None:
        """Let a container end."""
        future = self._exits[self.specs[name].id]
        if not future.done():
            future.set_result(Exit(code))

    async def start_pod(self, pod: PodSandbox) -> None:
        if self.pod_errors:
            self.pod_errors -= 1
            raise SandboxError("no room")
        self.calls.append("start pod")
        self.pods[pod.id] = pod

    async def stop_pod(self, pod: str) -> None:
        if self.pods.pop(pod, None):
            self.calls.append("stop pod")

    async def start_container(self, spec: ContainerSpec) -> None:
        name = spec.log.split("/")[-2]
        self.calls.append(f"start {name}")
        if self.start_error is not None:
            raise self.start_error
        self.specs[name] = spec
        self._exits[spec.id] = asyncio.get_running_loop().create_future()

    async def wait_container(self, container: str) -> Exit:
        return await asyncio.shield(self._exits[container])

    async def signal_container(self, container: str, signum: int) -> None:
        name = next(name for name, spec in self.specs.items() if spec.id == container)
        self.calls.append(f"{'kill' if signum == SIGKILL else 'term'} {name}")
        if signum == SIGKILL:
            self.end(name, KILLED)
        elif signum == SIGTERM and not self.ignores_sigterm:
            self.end(name)

    async def exec(self, container: str, argv: Sequence[str], timeout: float) -> ExecResult:  # noqa: ASYNC109
        self.calls.append(f"exec {' '.join(argv)}")
        return self.exec_result(argv)

    async def probe_tcp(self, ip: str, port: int, timeout: float) -> str:  # noqa: ASYNC109
        return f"dial tcp {ip}:{port}: connect: connection refused"

    async def probe_http(
        self,
        url: str,
        headers: Mapping[str, str],
        timeout: float,  # noqa: ASYNC109
    ) -> tuple[int, str]:
        return 200, url

    async def set_names(self, records: Mapping[str, Sequence[str]]) -> None:
        self.names = records

    async def set_services(self, ports: Sequence[ServicePort]) -> None:
        self.services = ports
