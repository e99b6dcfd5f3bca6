"""Connections of pods to announced ports of this machine.

The sandbox's network has no route to the host. Its proxy connects to a Unix socket instead, sends
one line with the port, and this side connects to that port of 127.0.0.1.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kftrainer.devcluster.nodes.sandbox.network.proxy import HOST, Streams, abort, join
from kftrainer.devcluster.nodes.sandbox.protocol import ServicePort

SECONDS = 5.0


def announced(ports: Sequence[ServicePort]) -> frozenset[int]:
    """Return the ports of this machine that are backends of Services."""
    return frozenset(
        backend.port for port in ports for backend in port.backends if backend.ip == HOST
    )


class HostPorts:
    """Serves the Unix socket."""

    def __init__(self, tasks: asyncio.TaskGroup, path: Path) -> None:
        self._tasks = tasks
        self._path = path
        self._allowed: frozenset[int] = frozenset()
        self._connections: set[asyncio.Task[None]] = set()

    def allow(self, ports: Sequence[ServicePort]) -> None:
        """Replace the ports to which connections are made."""
        self._allowed = announced(ports)

    async def __aenter__(self) -> Self:
        """Start to accept connections."""
        self._server = await asyncio.start_unix_server(self._accepted, self._path)
        self._path.chmod(0o600)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        self._server.close()
        for connection in self._connections:
            connection.cancel()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._tasks.create_task(self._serve((reader, writer)))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, client: Streams) -> None:
        host = await self._connect(client[0])
        if host is None:
            abort(client[1])
        else:
            await join(client, host)

    async def _connect(self, reader: asyncio.StreamReader) -> Streams | None:
        """Read the port and connect to it, if it is announced."""
        try:
            async with asyncio.timeout(SECONDS):
                port = int(await reader.readline())
                if port in self._allowed:
                    return await asyncio.open_connection(HOST, port)
        except (OSError, ValueError):  # the sandbox's proxy treats the end as a failed backend
            pass
        return None
