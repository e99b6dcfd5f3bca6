"""TLS handshakes of a server: counted and bounded per client like connections."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from functools import partial

import structlog

from kftrainer.machinery.webhook.connection import Client, Connection, Connections, address_in

log = structlog.get_logger(__name__)

HANDSHAKE_WITHIN = 5.0
WAIT_WITHIN = 10.0  # for a free handshake slot of the client, and for this handshake
WARN_EVERY = 60.0
RETRY_AFTER = 1.0  # for example when file descriptors or buffers are exhausted


class TlsListener:
    """Accepts connections and completes their TLS handshake before HTTP starts.

    asyncio's own TLS server reports a connection only after its handshake, so connections in a
    handshake could not be counted.
    """

    def __init__(self, connections: Connections, context: ssl.SSLContext) -> None:
        self._connections = connections
        self._context = context
        self._warned_at: float | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections until cancelled; handshakes in progress are cancelled as well."""
        async with asyncio.TaskGroup() as tasks:
            for each in sockets:
                tasks.create_task(self._accept(each, tasks))

    async def _accept(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                sock, peer = await self._loop.sock_accept(listener)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:  # the client has closed the connection
                    log.warning("accept_failed", error=str(error))
                    await asyncio.sleep(RETRY_AFTER)
                continue
            task = tasks.create_task(self._serve(sock, address_in(peer)))
            # A task that is cancelled before its first step cannot close the socket itself.
            task.add_done_callback(partial(_close_if_cancelled, sock))

    async def _serve(self, sock: socket.socket, address: str) -> None:
        connection = self._connections()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        client = connection.accept(address, task.cancel)
        if client is None:
            sock.close()
            return
        try:
            await self._handshake(sock, client, connection)
        except OSError as error:  # TLS errors and timeouts are OSErrors, too
            self._report(client, str(error) or type(error).__name__)
        finally:
            connection.handshake_ended()

    async def _handshake(self, sock: socket.socket, client: Client, connection: Connection) -> None:
        try:
            async with asyncio.timeout(WAIT_WITHIN), client.handshakes:
                await self._loop.connect_accepted_socket(
                    lambda: connection,
                    sock,
                    ssl=self._context,
                    ssl_handshake_timeout=HANDSHAKE_WITHIN,
                )
        except BaseException:
            sock.close()
            raise

    def _report(self, client: Client, reason: str) -> None:
        """Log a failed handshake; rate-limit warnings, because any client can cause them."""
        now = self._loop.time()
        if self._context.verify_mode == ssl.CERT_REQUIRED and (
            self._warned_at is None or now - self._warned_at >= WARN_EVERY
        ):
            self._warned_at = now
            log.warning("client_refused", client=client.address, error=reason)
        else:
            log.debug("handshake_failed", client=client.address, error=reason)


def _close_if_cancelled(sock: socket.socket, ended: asyncio.Task[None]) -> None:
    if ended.cancelled():
        sock.close()


def only_names(names: Collection[str]) -> Callable[[asyncio.BaseTransport], bool]:
    """Return a check that the client certificate has one of these common names."""
    allowed = frozenset(names)

    def is_allowed(transport: asyncio.BaseTransport) -> bool:
        shown = common_names(transport.get_extra_info("peercert"))
        if allowed.isdisjoint(shown):
            log.warning("client_name_refused", names=sorted(shown))
            return False
        return True

    return is_allowed


def common_names(certificate: object) -> set[str]:
    """Return the common names in a certificate as decoded by the ssl module."""
    subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    return {value for part in subject for key, value in part if key == "commonName"}
