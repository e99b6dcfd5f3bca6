"""The sandbox's server: requests of the client, and the pods and containers that it created."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kftrainer.devcluster.nodes.sandbox import messages
from kftrainer.devcluster.nodes.sandbox.container.container import Container
from kftrainer.devcluster.nodes.sandbox.network import probes
from kftrainer.devcluster.nodes.sandbox.network.bridge import Network, PodNamespaces
from kftrainer.devcluster.nodes.sandbox.network.dns import NameServer
from kftrainer.devcluster.nodes.sandbox.network.proxy import ServiceProxy
from kftrainer.devcluster.nodes.sandbox.protocol import ContainerSpec, SandboxError

MOST_PODS = 1000
MOST_CONTAINERS = 2000
MOST_FILES = 65536

Handler = Callable[[Mapping[str, Any]], Awaitable[Any]]


class Server:
    """Handles requests; each runs as a task of its own."""

    def __init__(
        self, tasks: asyncio.TaskGroup, writer: asyncio.StreamWriter, folder: Path, hide: list[str]
    ) -> None:
        self._tasks = tasks
        self._writer = writer
        self._root = str(folder / "root")
        self._hidden = hide
        self._pods: dict[str, PodNamespaces] = {}
        self._containers: dict[str, Container] = {}
        self._network = Network()
        self._names = NameServer()
        self._proxy = ServiceProxy(tasks, str(folder / "host"))
        self._handlers: Mapping[str, Handler] = {
            "start_pod": self._start_pod,
            "stop_pod": self._stop_pod,
            "start_container": self._start_container,
            "signal_container": self._signal_container,
            "exec": self._exec,
            "probe_tcp": self._probe_tcp,
            "probe_http": self._probe_http,
            "set_names": self._set_names,
            "set_services": self._set_services,
        }

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Serve requests until the client closes the connection."""
        async with self._network, self._names:
            self._send({"event": "ready"})
            while line := await reader.readline():
                request = messages.decode(line)
                self._tasks.create_task(self._handle(request))

    def _send(self, message: messages.Message) -> None:
        self._writer.write(messages.encode(message))

    async def _handle(self, request: messages.Message) -> None:
        try:
            result = await self._handlers[request["method"]](request["params"])
        except Exception as error:  # noqa: BLE001 - reported to the client, which raises it again
            self._send({"id": request["id"], "error": messages.encode_error(error)})
        else:
            self._send({"id": request["id"], "result": result})

    async def _start_pod(self, params: Mapping[str, Any]) -> None:
        pod = messages.decode_pod(params["pod"])
        if pod.id in self._pods:
            raise SandboxError(f"the pod {pod.id} exists")
        if len(self._pods) >= MOST_PODS:
            raise SandboxError(f"there are already {MOST_PODS} pods")
        self._pods[pod.id] = await self._network.add(pod)

    async def _stop_pod(self, params: Mapping[str, Any]) -> None:
        pod = self._pods.pop(params["pod"], None)
        if pod is None:
            return
        containers = [each for each in self._containers.values() if each.pod == params["pod"]]
        for container in containers:
            container.send({"signal": signal.SIGKILL})
        for container in containers:
            await container.ended.wait()
        await self._network.remove(pod)

    async def _start_container(self, params: Mapping[str, Any]) -> None:
        spec = messages.decode_container(params["spec"])
        if spec.id in self._containers:
            raise SandboxError(f"the container {spec.id} exists")
        if len(self._containers) >= MOST_CONTAINERS:
            raise SandboxError(f"there are already {MOST_CONTAINERS} containers")
        if spec.pod not in self._pods:
            raise SandboxError(f"the pod {spec.pod} does not exist")
        pod = self._pods[spec.pod]
        container = await Container.start(spec, pod, self._root, self._hidden)
        self._containers[spec.id] = container
        self._tasks.create_task(self._serve_container(spec, container))
        if self._pods.get(spec.pod) is not pod:  # stopped in the meantime
            container.send({"signal": signal.SIGKILL})

    async def _serve_container(self, spec: ContainerSpec, container: Container) -> None:
        result = await container.serve()
        del self._containers[spec.id]
        self._send(
            {"event": "container_exited", "params": {"container": spec.id, **asdict(result)}}
        )

    async def _signal_container(self, params: Mapping[str, Any]) -> None:
        container = self._containers.get(params["container"])
        if container is not None:
            container.send({"signal": params["signum"]})

    async def _exec(self, params: Mapping[str, Any]) -> Any:
        container = self._containers.get(params["container"])
        if container is None:
            raise SandboxError(f"the container {params['container']} is not running")
        return asdict(await container.exec(params["argv"], params["timeout"]))

    async def _probe_tcp(self, params: Mapping[str, Any]) -> str:
        return await probes.tcp(params["ip"], params["port"], params["timeout"])

    async def _probe_http(self, params: Mapping[str, Any]) -> Sequence[Any]:
        return await probes.http(params["url"], params["headers"], params["timeout"])

    async def _set_names(self, params: Mapping[str, Any]) -> None:
        self._names.replace(params["records"])

    async def _set_services(self, params: Mapping[str, Any]) -> None:
        await self._proxy.replace([messages.decode_service_port(each) for each in params["ports"]])


def _reap() -> None:
    """Collect ended shims and processes that lost their parents."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


async def _main(control: socket.socket, folder: Path, hide: list[str]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, _reap)
    reader, writer = await asyncio.open_connection(sock=control, limit=messages.MOST_BYTES)
    async with asyncio.TaskGroup() as tasks:
        await Server(tasks, writer, folder, hide).serve(reader)
        # The client has ended, and so does this process; the kernel kills all others.
        os._exit(0)


def run(control: int, folder: Path, hide: list[str]) -> None:
    """Serve a client until it ends."""
    with suppress(ValueError, OSError):  # proxied connections and pods need many
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, MOST_FILES), hard))
    connection = socket.socket(fileno=os.dup(control))
    os.dup2(os.open(os.devnull, os.O_RDONLY), control)
    asyncio.run(_main(connection, folder, hide))
