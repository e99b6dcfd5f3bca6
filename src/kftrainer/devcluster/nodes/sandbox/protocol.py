"""The messages between the kubelet and the sandbox: one JSON object per line.

kubelet ── {"id": 7, "method": "start_container", "params": {…}} ──> sandbox
kubelet <── {"id": 7, "result": {…}} or {"id": 7, "error": {…}} ──── sandbox
kubelet <── {"event": "container_exited", "params": {…}} ─────────── sandbox
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PodSandbox:
    """The namespaces that the containers of a pod share: network, IPC and hostname."""

    id: str  # the UID of the pod
    ip: str
    hostname: str
    host_network: bool = False  # uses the network of the sandbox's hub instead of its own


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of a container."""

    target: str
    source: str | None  # a path on this machine; None for a new tmpfs
    read_only: bool = False
    size: str | None = None  # of a tmpfs, for example "64m"


@dataclass(frozen=True, slots=True)
class Image:
    """What an image name selects: folders of this machine."""

    path: Sequence[str]  # the folders of PATH
    expose: Sequence[str] = ()  # folders below /root or /home that are visible, read-only
    env: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()  # run if the container has no command


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container to start."""

    id: str
    pod: str  # the id of its PodSandbox
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str  # "" selects /
    mounts: Sequence[Mount]
    image: Image
    log: str  # the file to which its output is appended, in the format of CRI
    user: int | None = None  # the uid that its processes see; None is 0
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended."""

    code: int  # 128 + signal number if it was killed by a signal
    signal: int = 0


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a command in a container."""

    code: int
    output: str  # the first 10 KiB


@dataclass(frozen=True, slots=True)
class Backend:
    """Where a connection to a Service port goes."""

    ip: str  # a pod's IP, or 127.0.0.1 for a port of this machine outside the sandbox
    port: int


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service with a cluster IP; connections are spread over the backends."""

    ip: str
    port: int
    backends: Sequence[Backend]


class SandboxError(Exception):
    """A request to the sandbox failed."""


class ContainerStartError(SandboxError):
    """A container could not be started: `reason` as a kubelet reports it."""

    def __init__(self, reason: str, message: str, code: int = 128) -> None:
        super().__init__(message)
        self.reason = reason  # for example ContainerCannotRun or CreateContainerError
        self.code = code


class Sandbox(Protocol):
    """What the kubelet requires of the sandbox; `client.Sandbox` is the real one."""

    async def start_pod(self, pod: PodSandbox) -> None:
        """Create the namespaces of a pod."""
        ...

    async def stop_pod(self, pod: str) -> None:
        """Kill all processes of the pod and delete its namespaces; ignore unknown pods."""
        ...

    async def start_container(self, spec: ContainerSpec) -> None:
        """Start a container; return when its command has been executed (execve succeeded)."""
        ...

    async def wait_container(self, container: str) -> Exit:
        """Return when the container has ended; its output is in the log by then."""
        ...

    async def signal_container(self, container: str, signum: int) -> None:
        """Send a signal to the main process; SIGKILL ends all processes of the container."""
        ...

    async def exec(self, container: str, argv: Sequence[str], timeout: float) -> ExecResult:  # noqa: ASYNC109
        """Run a command in the container; TimeoutError if it does not end in time."""
        ...

    async def probe_tcp(self, ip: str, port: int, timeout: float) -> str:  # noqa: ASYNC109
        """Connect to a port; return "" or why this failed."""
        ...

    async def probe_http(
        self,
        url: str,
        headers: Mapping[str, str],
        timeout: float,  # noqa: ASYNC109
    ) -> tuple[int, str]:
        """Send GET; return the status code and the start of the body, or 0 and the reason."""
        ...

    async def set_names(self, records: Mapping[str, Sequence[str]]) -> None:
        """Replace the DNS zone: fully qualified names (without trailing dot) to IPv4 addresses."""
        ...

    async def set_services(self, ports: Sequence[ServicePort]) -> None:
        """Replace the Service ports that the hub accepts connections for."""
        ...
