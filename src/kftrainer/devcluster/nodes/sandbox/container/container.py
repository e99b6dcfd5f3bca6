"""The containers of the sandbox: one shim process each."""

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kftrainer.devcluster.nodes.sandbox import messages
from kftrainer.devcluster.nodes.sandbox.container import mounts, shim
from kftrainer.devcluster.nodes.sandbox.container.mounts import Kind, PlanError
from kftrainer.devcluster.nodes.sandbox.network.bridge import PodNamespaces
from kftrainer.devcluster.nodes.sandbox.protocol import (
    ContainerSpec,
    ContainerStartError,
    ExecResult,
    Exit,
    SandboxError,
)

SOURCE = str(Path(__file__).parents[5])  # the folder of the package kftrainer
KILLED = 137
START_ERROR = "StartError"  # the reason that a kubelet with containerd reports


class Host:
    """The file system of this machine."""

    def kind(self, path: str) -> Kind:
        """Return what is at a path."""
        if os.path.islink(path):
            return "link"
        if os.path.isdir(path):
            return "folder"
        return "file" if os.path.lexists(path) else ""

    def target(self, path: str) -> str:
        """Return the target of a symbolic link."""
        return os.readlink(path)

    def names(self, path: str) -> Sequence[str]:
        """Return the entries of a folder, none if it is not readable."""
        try:
            return os.listdir(path)
        except PermissionError:
            return []


def start_error(detail: str) -> ContainerStartError:
    """Return the error of a container that could not be started."""
    return ContainerStartError(
        START_ERROR, f"failed to create task: unable to start container process: {detail}"
    )


def environment(spec: ContainerSpec) -> dict[str, str]:
    """Return the environment of a container's processes."""
    home = "/root" if not spec.user else "/"
    return {"PATH": ":".join(spec.image.path), "HOME": home, **spec.image.env, **spec.env}


def shim_spec(spec: ContainerSpec, root: str, hidden: Sequence[str]) -> dict[str, Any]:
    """Return the message that starts a container; read the host's folders for its mounts."""
    argv = list(spec.argv) or list(spec.image.command)
    if not argv:
        raise start_error("no command specified")
    try:
        steps = mounts.plan(
            Host(), spec.mounts, expose=spec.image.expose, hidden=hidden, cwd=spec.cwd
        )
    except PlanError as error:
        raise start_error(str(error)) from None
    return {
        "argv": argv,
        "cwd": spec.cwd or "/",
        "env": environment(spec),
        "group": spec.group or 0,
        "log": spec.log,
        "root": root,
        "steps": steps,
        "user": spec.user or 0,
    }


def spawn(namespaces: PodNamespaces, spec: Mapping[str, Any]) -> socket.socket:
    """Start a shim; return the socket for its messages."""
    ours, theirs = socket.socketpair()
    with theirs:
        os.posix_spawn(
            shim.COMMAND[0],
            [*shim.COMMAND, SOURCE],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
        )
    socket.send_fds(ours, [b" "], namespaces.files)  # white space before the JSON object
    return ours


@dataclass
class Container:
    """A started container."""

    pod: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    commands: dict[int, asyncio.Future[ExecResult]] = field(default_factory=dict)
    count: int = 0

    @classmethod
    async def start(
        cls, spec: ContainerSpec, namespaces: PodNamespaces, root: str, hidden: Sequence[str]
    ) -> "Container":
        """Start a container; return when execve has succeeded."""
        message = shim_spec(spec, root, hidden)
        reader, writer = await asyncio.open_connection(
            sock=spawn(namespaces, message), limit=messages.MOST_BYTES
        )
        container = cls(spec.pod, reader, writer)
        try:
            container.send(message)
            reply = await container.receive()
        except BaseException:
            writer.close()
            raise
        if reply is None or "failed" in reply:
            writer.close()
            raise start_error("the shim ended" if reply is None else reply["failed"])
        return container

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the shim."""
        self.writer.write(messages.encode(message))

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message of the shim; None when it has ended."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            return None
        return messages.decode(line) if line.endswith(b"\n") else None

    async def serve(self) -> Exit:
        """Handle the messages of the shim until the container has ended."""
        try:
            while (message := await self.receive()) is not None:
                match message:
                    case {"exited": code, "signal": signum}:
                        return Exit(code, signum)
                    case {"exec": number, "code": code, "output": output}:
                        self._command_ended(number, ExecResult(code, output))
                    case {"warning": text}:
                        sys.stderr.write(f"{text}\n")
                    case _:
                        raise SandboxError(f"unexpected message of a shim: {message}")
            return Exit(KILLED, 9)  # the shim was killed, and the kernel killed the container
        finally:
            self.ended.set()
            for future in self.commands.values():
                if not future.done():
                    future.set_exception(SandboxError("the container has ended"))
            self.writer.close()

    def _command_ended(self, number: int, result: ExecResult) -> None:
        future = self.commands.pop(number, None)
        if future is not None and not future.done():
            future.set_result(result)

    async def exec(self, argv: Sequence[str], timeout: float) -> ExecResult:  # noqa: ASYNC109
        """Run a command; kill it when it does not end in time."""
        self.count += 1
        number = self.count
        future: asyncio.Future[ExecResult] = asyncio.get_running_loop().create_future()
        self.commands[number] = future
        self.send({"exec": number, "argv": list(argv)})
        try:
            async with asyncio.timeout(timeout):
                return await future
        except BaseException:
            if not self.ended.is_set():
                self.send({"kill": number})
            raise
        finally:
            self.commands.pop(number, None)
