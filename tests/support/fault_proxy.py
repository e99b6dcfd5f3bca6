"""A proxy between a client and the API server that injects faults.

It ends TLS on both sides and relays the answers' bytes, one request to a connection; so a fault
can hit any byte of an answer.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from kftrainer.devcluster.components import kubeconfig
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.waiting import until

CHUNK = 65536
HEAD_END = b"\r\n\r\n"
DISCONNECTED = (OSError, asyncio.IncompleteReadError)  # what either side leaves behind when it goes
CLOSED = -1  # the number of a file that is closed
HANG_UP_WITHIN = 10.0
NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """A request of a client."""

    method: str
    path: str
    query: Mapping[str, str]

    @property
    def is_watch(self) -> bool:
        """Whether the answer is a stream of events."""
        return "watch" in self.query

    @property
    def is_list(self) -> bool:
        """Whether the answer may be a list: no test reads single objects through a proxy."""
        return self.method == "GET" and not self.is_watch

    @property
    def is_write(self) -> bool:
        """Whether it may change something; a dry run and a review of our own rights do not."""
        is_review = self.path.endswith("/selfsubjectaccessreviews")
        return self.method != "GET" and not is_review and not self.is_dry_run

    @property
    def is_dry_run(self) -> bool:
        """Whether this is a dry run."""
        return "dryRun" in self.query

    @property
    def is_continuation(self) -> bool:
        """Whether this is the second page of a list, or a later one."""
        return "continue" in self.query


@dataclass(frozen=True, slots=True)
class Answer:
    """Return this response without calling the server."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """The whole answer."""
        headers = {**self.headers, "Content-Length": len(self.body), "Connection": "close"}
        lines = [f"HTTP/1.1 {self.status} Fault", *(f"{k}: {v}" for k, v in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n" + self.body).encode()


@dataclass(frozen=True, slots=True)
class Cut:
    """End the connection after this number of bytes of the body, with a reset or without."""

    after: int
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """Send nothing after this number of bytes of the body, and keep the connection."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Delay:
    """Ask the server only after a while."""

    seconds: float


Fault = Answer | Cut | Stall | Delay
Match = Callable[[ProxiedRequest], bool]


def status_answer(code: int, reason: str) -> Answer:
    """An error response in the format of the API server."""
    body = f'{{"kind":"Status","apiVersion":"v1","code":{code},"reason":"{reason}"}}'
    return Answer(code, body, {"Content-Type": "application/json"})


@dataclass(slots=True)
class _Rule:
    fault: Fault
    match: Match
    left: int


class _Connection:
    """One client connection and the fault for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.request: ProxiedRequest | None = None
        self.is_stalled = False

    def reset(self) -> None:
        connection: socket.socket | None = self.writer.get_extra_info("socket")
        if connection is not None:  # the client has not left by itself a moment ago
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.writer.transport.abort()


class FaultProxy:
    """A proxy with injectable faults; `running_proxy` starts one."""

    def __init__(self, upstream_port: int, upstream_tls: ssl.SSLContext) -> None:
        self._upstream_port = upstream_port
        self._upstream_tls = upstream_tls
        self._rules: list[_Rule] = []
        self._connections: set[_Connection] = set()
        self._sockets: set[socket.socket] = set()  # strong references, so that `hang_up` closes all
        self._with_transport: set[socket.socket] = set()
        self.requests: list[ProxiedRequest] = []
        self.kubeconfig = Path()

    @property
    def open_connections(self) -> int:
        """How many connections clients have to it."""
        return len(self._connections)

    def inject(self, fault: Fault, match: Match, times: int = 1) -> None:
        """Inject the fault into this number of matching requests."""
        self._rules.append(_Rule(fault, match, times))

    @property
    def faults_left(self) -> int:
        """How many faults have not happened yet."""
        return sum(rule.left for rule in self._rules)

    def forget_faults(self) -> None:
        """Remove all pending faults."""
        self._rules.clear()

    def watches(self) -> int:
        """How many watches are open."""
        return sum(1 for each in self._connections if each.request and each.request.is_watch)

    def reset_all(self, match: Match | None = None) -> None:
        """Reset every connection that is open now, or those with such a request."""
        for connection in tuple(self._connections):
            if match is None or (connection.request is not None and match(connection.request)):
                connection.reset()

    def stall_all(self, match: Match = lambda _: True) -> None:
        """Let not a byte more through on the connections that are open now, or on some of them."""
        for connection in self._connections:
            if connection.request is not None and match(connection.request):
                connection.is_stalled = True

    def _fault_for(self, request: ProxiedRequest) -> Fault | None:
        for rule in self._rules:
            if rule.left and rule.match(request):
                rule.left -= 1
                return rule.fault
        return None

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """Return the next connection of a client, which `hang_up` closes at the latest."""
        try:
            accepted, _ = listener.accept()
        except OSError:  # the client has given up
            return None
        accepted.settimeout(0)
        self._sockets.add(accepted)
        return accepted

    async def handshake_and_serve(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        """Serve a connection that was just accepted."""
        self._with_transport.add(accepted)
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        with suppress(*DISCONNECTED):
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=tls)
            await self.serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one request, then close."""
        connection = _Connection(reader, writer)
        self._connections.add(connection)
        try:
            with suppress(*DISCONNECTED):
                await self._carry(connection)
        finally:
            self._connections.discard(connection)
            writer.transport.abort()

    async def _carry(self, connection: _Connection) -> None:
        head = await connection.reader.readuntil(HEAD_END)
        request, length = _parse(head)
        body = await connection.reader.readexactly(length)
        connection.request = request
        self.requests.append(request)
        fault = self._fault_for(request)
        if isinstance(fault, Answer):
            connection.writer.write(fault.encoded())
            await connection.writer.drain()
            connection.writer.close()
            await connection.writer.wait_closed()
            return
        requested = _one_only(head) + body
        async with asyncio.TaskGroup() as tasks:
            relaying = tasks.create_task(self._relay(connection, requested, fault))
            leaving = tasks.create_task(_gone(connection.reader))
            await asyncio.wait((relaying, leaving), return_when=asyncio.FIRST_COMPLETED)
            relaying.cancel()
            leaving.cancel()

    async def _relay(self, connection: _Connection, requested: bytes, fault: Fault | None) -> None:
        if isinstance(fault, Delay):
            await asyncio.sleep(fault.seconds)
        with suppress(*DISCONNECTED):
            reader, writer = await self._connect()
            try:
                writer.write(requested)
                await _answer(reader, connection, fault)
            finally:
                writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        upstream = socket.socket()
        upstream.settimeout(0)  # as event loops need it
        self._sockets.add(upstream)
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(upstream, (LOOPBACK, self._upstream_port))
        except BaseException:
            upstream.close()
            raise
        self._with_transport.add(upstream)
        return await asyncio.open_connection(
            sock=upstream, ssl=self._upstream_tls, server_hostname=LOOPBACK
        )

    async def hang_up(self) -> None:
        """Close the connections on both sides that are still open or closing.

        When a request is cancelled at the end of its handshake, asyncio waits for the peer's side
        of the TLS shutdown, which may outlast the event loop.
        """
        for each in self._sockets:
            if each not in self._with_transport:
                each.close()
            elif each.fileno() != CLOSED:
                with suppress(OSError):  # the peer was faster
                    each.shutdown(socket.SHUT_RDWR)

        async def closed() -> bool:
            return all(each.fileno() == CLOSED for each in self._sockets)

        await until(closed, within=HANG_UP_WITHIN, what="the connections being closed", every=0.001)


async def _gone(reader: asyncio.StreamReader) -> None:
    """Return when the client has closed the connection."""
    with suppress(OSError):
        while await reader.read(CHUNK):
            pass


async def _answer(
    reader: asyncio.StreamReader, connection: _Connection, fault: Fault | None
) -> None:
    writer = connection.writer
    writer.write(await reader.readuntil(HEAD_END))
    left = fault.after if isinstance(fault, Cut | Stall) else None
    while chunk := await reader.read(CHUNK):
        if connection.is_stalled:
            await asyncio.Event().wait()
        writer.write(chunk[:left])
        await writer.drain()
        if left is not None:
            left -= len(chunk)
            if left <= 0:
                break
    if isinstance(fault, Stall):
        await asyncio.Event().wait()
    elif isinstance(fault, Cut) and fault.reset:
        connection.reset()
    else:
        writer.close()
        await writer.wait_closed()


def _parse(head: bytes) -> tuple[ProxiedRequest, int]:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    url = urlsplit(target)
    request = ProxiedRequest(method, url.path, dict(parse_qsl(url.query)))
    return request, int(headers.get("content-length", 0))


def _one_only(head: bytes) -> bytes:
    """The same request, on a connection that ends with it."""
    first, _, rest = head.partition(b"\r\n")
    lines = [x for x in rest.split(b"\r\n") if not x.lower().startswith(b"connection:")]
    return b"\r\n".join([first, b"Connection: close", *lines])


@asynccontextmanager
async def running_proxy(plane: ControlPlane, folder: Path) -> AsyncIterator[FaultProxy]:
    """A proxy before this control plane; its kubeconfig is the administrator's."""
    site = plane._environment
    pair = site.authority.issue("fault-proxy", common_name="fault-proxy", hosts=[LOOPBACK])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    proxy = FaultProxy(site.apiserver_port, site.admin_tls())
    loop, serving = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    with socket.create_server((LOOPBACK, 0)) as listener:
        listener.settimeout(0)
        proxy.kubeconfig = kubeconfig.write(
            folder / "proxy-kubeconfig",
            server=f"https://{LOOPBACK}:{listener.getsockname()[1]}",
            authority=plane.certificate_authority,
            user="kubernetes-admin",
            client=pair,
        )
        async with asyncio.TaskGroup() as tasks:

            def accept() -> None:
                if (accepted := proxy.accept(listener)) is not None:
                    task = tasks.create_task(proxy.handshake_and_serve(accepted, tls))
                    serving.add(task)
                    task.add_done_callback(serving.discard)

            loop.add_reader(listener, accept)
            try:
                yield proxy
            finally:
                loop.remove_reader(listener)
                for task in tuple(serving):
                    task.cancel()
    await proxy.hang_up()
