"""Forwards the API server's calls of Services to processes, as kube-proxy does.

The API server connects to a Unix socket, as to an HTTP proxy (see `ControlPlane.service_socket`).
This is a process of its own, because the event loop of a test ends with the test.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.processes.process import ManagedProcess

CHUNK = 65536
HEAD_END = b"\r\n\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
NO_LISTENER = b"HTTP/1.1 502 Nobody listens there\r\nContent-Length: 0\r\n\r\n"
DISCONNECTED = (OSError, asyncio.IncompleteReadError)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ServiceRoutes:
    """Local ports by service address; `service_proxy` creates them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.lead({})

    def lead(self, routes: Mapping[str, Sequence[int]]) -> None:
        """Route the address to the first of these ports that listens."""
        unfinished = self._file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(routes))
        os.replace(unfinished, self._file)


@contextmanager
def service_proxy(plane: ControlPlane) -> Iterator[ServiceRoutes]:
    """The proxy of a control plane whose shape has one, for the length of the block."""
    file = plane.folder / "service-routes.json"
    routes = ServiceRoutes(file)
    argv = (sys.executable, "-m", __name__, plane.service_socket, file)
    log = plane.folder / "logs" / "service-proxy.log"
    process = ManagedProcess("service-proxy", argv, log, Path(__file__).parents[2])
    process.start()
    try:
        yield routes
    finally:
        process.kill()


async def _connected(ports: Sequence[int]) -> Stream | None:
    for port in ports:
        with suppress(OSError):
            return await asyncio.open_connection(LOOPBACK, port)
    return None


def _ports(address: str, routes: Mapping[str, Sequence[int]]) -> Sequence[int]:
    """The local ports for an address; a Service of the type ExternalName can lead to one itself."""
    host, _, port = address.rpartition(":")
    return [int(port)] if host == LOOPBACK else routes.get(address, [])


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(*DISCONNECTED):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def _serve(socket: str, routes: Path) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*DISCONNECTED):
            head = await reader.readuntil(HEAD_END)
            address = head.split(b" ")[1].decode()  # CONNECT 10.0.0.17:443 HTTP/1.1
            upstream = await _connected(_ports(address, json.loads(routes.read_text())))
            writer.write(NO_LISTENER if upstream is None else ESTABLISHED)
            if upstream is not None:
                async with asyncio.TaskGroup() as directions:
                    directions.create_task(_relay(reader, upstream[1]))
                    directions.create_task(_relay(upstream[0], writer))
        writer.close()

    server = await asyncio.start_unix_server(connect, socket)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2])))
