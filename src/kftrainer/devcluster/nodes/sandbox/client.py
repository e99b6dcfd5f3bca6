"""The kubelet's side of the sandbox."""

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kftrainer.devcluster.nodes.sandbox import messages
from kftrainer.devcluster.nodes.sandbox.host_ports import HostPorts
from kftrainer.devcluster.nodes.sandbox.protocol import (
    ContainerSpec,
    ExecResult,
    Exit,
    PodSandbox,
    SandboxError,
    ServicePort,
)

START_SECONDS = 30.0
MOST_RESULTS = 10_000  # of ended containers that are remembered
MODULE = "kftrainer.devcluster.nodes.sandbox.main"


def hidden_folders(hide: Sequence[str]) -> list[str]:
    """Return the folders that containers must not see: the user's home folder and others."""
    homes = [os.path.expanduser("~")]
    with suppress(KeyError):  # a user without entry in /etc/passwd
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    return sorted({os.path.realpath(folder) for folder in [*homes, *hide]} - {"/"})


class Sandbox:
    """Starts the sandbox and sends requests to it; everything in it ends with the block.

    It implements `protocol.Sandbox`. `log` is the file for the messages of the sandbox itself,
    `hide` are folders of the host that containers must not see, besides the home folder.
    """

    def __init__(self, *, log: Path, hide: Sequence[str] = ()) -> None:
        self._log = log
        self._hide = hide
        self._stack = AsyncExitStack()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._exits: OrderedDict[str, asyncio.Future[Exit]] = OrderedDict()
        self._count = 0
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self.host_socket = Path()  # of connections to ports of this machine

    async def __aenter__(self) -> Self:
        """Start the sandbox; raise SandboxError if this fails."""
        try:
            await self._enter()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill everything in the sandbox."""
        await self._stack.aclose()  # an error of the block is not one of the tasks here

    async def _enter(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="kftrainer-sandbox-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "root").mkdir()
        tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self.host_socket = folder / "host"
        self._host_ports = HostPorts(tasks, self.host_socket)
        await self._stack.enter_async_context(self._host_ports)
        reader = await self._start(folder)
        reading = tasks.create_task(self._read(reader))
        self._stack.callback(reading.cancel)
        await self._until_ready()

    async def _start(self, folder: Path) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-P", "-m", MODULE, "--folder", str(folder)]
        for hidden in hidden_folders(self._hide):
            argv += ["--hide", hidden]
        with theirs, self._log.open("ab") as log:
            process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        self._stack.callback(process.wait)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=messages.MOST_BYTES)
        self._stack.callback(ours.close)
        self._stack.callback(self._writer.transport.abort)
        return reader

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise SandboxError(f"the sandbox did not start within {START_SECONDS:g} s") from None
        if self._ended.is_set():
            raise self._end()

    def _end(self) -> SandboxError:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return SandboxError(": ".join(["the sandbox has ended", *lines]))

    async def ended(self) -> None:
        """Return when the sandbox has ended by itself, and with it all containers."""
        await self._ended.wait()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._received(messages.decode(line))
        except ConnectionError:
            pass
        finally:
            self._ended.set()
            self._ready.set()
            for future in [*self._requests.values(), *self._exits.values()]:
                if not future.done():
                    future.set_exception(self._end())
                    future.exception()  # nobody has to wait for it

    def _received(self, message: messages.Message) -> None:
        match message:
            case {"event": "ready"}:
                self._ready.set()
            case {"event": "container_exited", "params": params}:
                future = self._exits.get(params["container"])
                if future is not None and not future.done():
                    future.set_result(Exit(params["code"], params["signal"]))
            case {"id": number}:
                self._answered(message, self._requests.pop(number, None))
            case _:
                raise SandboxError(f"unexpected message of the sandbox: {message}")

    def _answered(self, message: messages.Message, future: asyncio.Future[Any] | None) -> None:
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(messages.decode_error(message["error"]))
        else:
            future.set_result(message["result"])

    async def _request(self, method: str, **params: object) -> Any:
        if self._ended.is_set():
            raise self._end()
        self._count += 1
        number = self._count
        self._writer.write(messages.encode({"id": number, "method": method, "params": params}))
        self._requests[number] = asyncio.get_running_loop().create_future()
        try:
            return await self._requests[number]
        finally:
            self._requests.pop(number, None)

    async def start_pod(self, pod: PodSandbox) -> None:
        """Create the namespaces of a pod."""
        await self._request("start_pod", pod=messages.encode_value(pod))

    async def stop_pod(self, pod: str) -> None:
        """Kill all processes of the pod and delete its namespaces; ignore unknown pods."""
        await self._request("stop_pod", pod=pod)

    async def start_container(self, spec: ContainerSpec) -> None:
        """Start a container; return when its command has been executed (execve succeeded)."""
        self._exits[spec.id] = asyncio.get_running_loop().create_future()
        try:
            await self._request("start_container", spec=messages.encode_value(spec))
        except BaseException:
            self._exits.pop(spec.id, None)
            raise
        while len(self._exits) > MOST_RESULTS:
            self._exits.popitem(last=False)

    async def wait_container(self, container: str) -> Exit:
        """Return when the container has ended; its output is in the log by then."""
        if container not in self._exits:
            raise SandboxError(f"the container {container} is unknown")
        return await asyncio.shield(self._exits[container])

    async def signal_container(self, container: str, signum: int) -> None:
        """Send a signal to the main process; SIGKILL ends all processes of the container."""
        await self._request("signal_container", container=container, signum=int(signum))

    async def exec(
        self,
        container: str,
        argv: Sequence[str],
        timeout: float,  # noqa: ASYNC109 - enforced in the sandbox, which kills the command
    ) -> ExecResult:
        """Run a command in the container; TimeoutError if it does not end in time."""
        return ExecResult(
            **await self._request("exec", container=container, argv=list(argv), timeout=timeout)
        )

    async def probe_tcp(self, ip: str, port: int, timeout: float) -> str:  # noqa: ASYNC109
        """Connect to a port; return "" or why this failed."""
        return str(await self._request("probe_tcp", ip=ip, port=port, timeout=timeout))

    async def probe_http(
        self,
        url: str,
        headers: Mapping[str, str],
        timeout: float,  # noqa: ASYNC109
    ) -> tuple[int, str]:
        """Send GET; return the status code and the start of the body, or 0 and the reason."""
        status, body = await self._request(
            "probe_http", url=url, headers=dict(headers), timeout=timeout
        )
        return int(status), str(body)

    async def set_names(self, records: Mapping[str, Sequence[str]]) -> None:
        """Replace the DNS zone: fully qualified names (without trailing dot) to IPv4 addresses."""
        await self._request("set_names", records={name: list(ips) for name, ips in records.items()})

    async def set_services(self, ports: Sequence[ServicePort]) -> None:
        """Replace the Service ports that the hub accepts connections for."""
        self._host_ports.allow(ports)
        await self._request("set_services", ports=[messages.encode_value(port) for port in ports])
