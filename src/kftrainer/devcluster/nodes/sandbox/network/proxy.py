"""Service ports: a proxy in the sandbox's hub, in place of iptables.

Backends see the hub's address as the source of a connection, not that of the pod.
"""

import asyncio
import itertools
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from kftrainer.devcluster.nodes.sandbox.protocol import Backend, SandboxError, ServicePort

HOST = "127.0.0.1"  # a backend outside the sandbox
CONNECT_SECONDS = 5.0
MOST_CONNECTIONS = 10_000
READ = 64 * 1024

Address = tuple[str, int]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Backends:
    """The backends of a port; each connection starts with the next one."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = list(backends)
        self._next = itertools.count()

    def order(self) -> Iterator[Backend]:
        """Return the backends in the order in which a connection tries them."""
        start = next(self._next) % max(len(self._backends), 1)
        yield from self._backends[start:]
        yield from self._backends[:start]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction of a connection until its end; then end it at the other side too."""
    while data := await reader.read(READ):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def join(one: Streams, other: Streams) -> None:
    """Copy both directions until both have ended, then close; an error resets both connections."""
    finish: Callable[[asyncio.StreamWriter], None] = abort
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(copy(one[0], other[1]))
            tasks.create_task(copy(other[0], one[1]))
        finish = asyncio.StreamWriter.close  # still sends what is buffered
    except* OSError:
        pass
    finally:
        for _, writer in (one, other):
            finish(writer)


def abort(writer: asyncio.StreamWriter) -> None:
    """Reset a connection, so that the peer does not take it for a regular end."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX:
        with suppress(OSError):  # closed already, because the peer has reset it
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class ServiceProxy:
    """Listens on the ports of Services and connects to their backends."""

    def __init__(self, tasks: asyncio.TaskGroup, host_socket: str) -> None:
        self._tasks = tasks
        self._host_socket = host_socket
        self._servers: dict[Address, asyncio.Server] = {}
        self._backends: dict[Address, Backends] = {}
        self._wanted: dict[Address, Sequence[Backend]] = {}
        self._connections = 0
        self._lock = asyncio.Lock()

    async def replace(self, ports: Sequence[ServicePort]) -> None:
        """Listen on these ports instead of the present ones; connections continue.

        A port without backends is closed: connections to it are refused.
        """
        wanted = {(port.ip, port.port): port.backends for port in ports if port.backends}
        async with self._lock:
            for address in self._servers.keys() - wanted.keys():
                self._servers.pop(address).close()
                del self._backends[address]
            failed = []
            for address, backends in wanted.items():
                if address not in self._servers or self._wanted.get(address) != backends:
                    self._backends[address] = Backends(backends)
                if address not in self._servers:
                    try:
                        await self._listen(address)
                    except OSError as error:
                        failed.append(f"{address[0]}:{address[1]}: {error.strerror}")
            self._wanted = wanted
        if failed:
            raise SandboxError(f"ports of Services are not served: {', '.join(failed)}")

    async def _listen(self, address: Address) -> None:
        self._servers[address] = await asyncio.start_server(
            partial(self._accepted, address), *address
        )

    def _accepted(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._connections >= MOST_CONNECTIONS:
            abort(writer)
            return
        self._connections += 1
        self._tasks.create_task(self._serve(address, (reader, writer)))

    async def _serve(self, address: Address, client: Streams) -> None:
        try:
            backend = await self._connect(address)
            if backend is None:
                abort(client[1])
            else:
                await join(client, backend)
        finally:
            self._connections -= 1

    async def _connect(self, address: Address) -> Streams | None:
        """Connect to the first backend that accepts."""
        backends = self._backends.get(address)
        for backend in backends.order() if backends else ():
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await self._dial(backend)
            except OSError:  # refused or timed out: the next one
                continue
        return None

    async def _dial(self, backend: Backend) -> Streams:
        if backend.ip != HOST:
            return await asyncio.open_connection(backend.ip, backend.port)
        streams = await asyncio.open_unix_connection(self._host_socket)
        streams[1].write(f"{backend.port}\n".encode())
        return streams
