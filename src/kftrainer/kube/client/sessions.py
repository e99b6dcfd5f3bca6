"""Connections to the API server: a separate pool for each lane."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

import aiohttp

from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.client.write_guard import GuardedRequest

if TYPE_CHECKING:
    from aiohttp.connector import AddrInfoType

    from kftrainer.kube.client.transport import Lane

KEEP_IDLE_CONNECTIONS = 90.0  # seconds; a TLS handshake for every burst of requests is expensive
ABORT_WITHIN = 1.0
CLOSED = -1  # file number of a closed socket

# Watches hold their connections for minutes, and a lease must be renewed in time: neither shares
# connections with other requests.
CONNECTIONS: Mapping["Lane", int] = {"general": 100, "watch": 0, "lease": 4}  # 0: unlimited

# Detect a lost peer within a minute, also on idle watches. Not every system has every option.
KEEP_ALIVE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 30),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 45_000),  # milliseconds
)


class Sessions:
    """One aiohttp session for each lane, created on first use."""

    def __init__(self, user_agent: str) -> None:
        self._headers = {"User-Agent": user_agent}
        self._sessions: dict[Lane, aiohttp.ClientSession] = {}
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._is_closed = False

    def of(self, lane: "Lane") -> aiohttp.ClientSession:
        """Return the session of a lane."""
        if self._is_closed:
            raise TransportError("The connections to the API server have been closed.")
        if lane not in self._sessions:
            self._sessions[lane] = self._new_session(CONNECTIONS[lane])
        return self._sessions[lane]

    async def close(self) -> None:
        """Close all connections; no new ones can be opened."""
        self._is_closed = True
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()
        await self._abort_connections()

    async def _abort_connections(self) -> None:
        """Close the connections whose requests were cancelled before a response arrived.

        Otherwise they wait up to half a minute for the server's part of the TLS shutdown.
        """
        for left in self._sockets:
            if left.fileno() != CLOSED:
                with suppress(OSError):  # already closed by the peer
                    left.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(ABORT_WITHIN):
                # The event loop closes them when it detects their end, without a notification.
                while any(left.fileno() != CLOSED for left in self._sockets):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

    def _new_session(self, connections: int) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections,
                keepalive_timeout=KEEP_IDLE_CONNECTIONS,
                socket_factory=self._new_socket,
            ),
            request_class=GuardedRequest,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # only the proxy in the kubeconfig is used
        )
        # Otherwise aiohttp sends PUT and DELETE again when a reused connection breaks, and a write
        # that was already carried out fails as a conflict with itself.
        session._retry_connection = False  # noqa: SLF001
        return session

    def _new_socket(self, address: "AddrInfoType") -> socket.socket:
        """Create a socket that detects a lost peer by itself."""
        family, kind, protocol, _, _ = address
        created = socket.socket(family, kind, protocol)
        for level, option, value in KEEP_ALIVE:
            if hasattr(socket, option):
                created.setsockopt(level, getattr(socket, option), value)
        self._sockets.add(created)
        return created
