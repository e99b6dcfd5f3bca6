"""Connections of pods to ports of this machine, through a Unix socket.

The network of the pods has no route to this machine. The Service proxy in the sandbox connects to
the socket and sends a line with the port; everything after it is passed on in both directions.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from kftrainer.devcluster.nodes.kubelet.network.names import LOOPBACK

log = structlog.get_logger(__name__)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CHUNK = 65_536
LONGEST_LINE = 6  # bytes: five digits and the line end
REQUEST_WITHIN = 10.0  # seconds


class HostPorts:
    """Connects to ports of this machine, but only to those that Services refer to."""

    def __init__(self) -> None:
        self._allowed: frozenset[int] = frozenset()

    def allow(self, ports: Iterable[int]) -> None:
        """Replace the permitted ports."""
        self._allowed = frozenset(ports)

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator[None]:
        """Accept connections at the socket for the duration of the block."""
        socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._accept, socket)
        socket.chmod(0o600)
        try:
            yield
        finally:
            server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            port = await self._requested(reader)
            if port is None:
                return
            with suppress(OSError):  # the caller gets a closed connection
                upstream = await asyncio.open_connection(LOOPBACK, port)
                await _join((reader, writer), upstream)
        finally:
            writer.close()

    async def _requested(self, reader: asyncio.StreamReader) -> int | None:
        try:
            async with asyncio.timeout(REQUEST_WITHIN):
                line = await reader.readuntil(b"\n")
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return None
        text = line.strip()
        if len(line) > LONGEST_LINE or not text.isdigit() or int(text) not in self._allowed:
            log.warning("host_port_refused", port=ascii(text[:LONGEST_LINE]))
            return None
        return int(text)


async def _join(one: Connection, other: Connection) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(one[0], other[1]))
            tasks.create_task(_copy(other[0], one[1]))
    finally:
        other[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of the data, and pass the end on."""
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()
