"""Requests to the real API server: what goes over the wire, and what is left behind."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import cast

import pytest

from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client import sessions
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.errors import (
    KubeError,
    NotFoundError,
    RequestTimeoutError,
    TransportError,
)
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.kube.objects.resource import ObjectKey
from tests.integration.kube.kinds import CONFIG_MAPS, NAMESPACES, config_map

DEFAULT = ObjectKey("", "default")


def open_sockets(plane: ControlPlane) -> set[socket.socket]:
    """The connections of this process to the API server that have not been closed."""
    port = int(plane.url.rpartition(":")[2])
    found = [each for each in gc.get_objects() if isinstance(each, socket.socket)]
    return {
        each
        for each in found
        if each.fileno() != -1 and each.type == socket.SOCK_STREAM and remote_port(each) == port
    }


def remote_port(connected: socket.socket) -> int | None:
    try:
        return int(connected.getpeername()[1])
    except (OSError, IndexError, ValueError):
        return None


async def test_every_response_and_failure_is_observed(
    control_plane: ControlPlane, namespace: str
) -> None:
    requests: list[tuple[str, str, str]] = []

    def on_response(code: str, method: str, host: str, seconds: float) -> None:
        assert seconds > 0
        requests.append((code, method, host))

    connection = await load_connection(control_plane.kubeconfig)
    async with HttpTransport(
        connection, user_agent="kftrainer-tests/1", on_response=on_response
    ) as transport:
        client = Client(transport)
        await client.create(CONFIG_MAPS, config_map(namespace))
        with pytest.raises(NotFoundError):
            await client.get(CONFIG_MAPS, ObjectKey(namespace, "missing"))
        async with client.watch(CONFIG_MAPS, namespace=namespace, timeout_seconds=60):
            pass
        with pytest.raises(RequestTimeoutError):
            await transport.request("GET", "/api", timeout=0.0)
    host = control_plane.url.removeprefix("https://")
    assert requests == [
        ("201", "POST", host),
        ("404", "GET", host),
        ("200", "GET", host),
        ("<error>", "GET", host),
    ]


async def test_a_body_of_more_than_a_mebibyte_is_sent(client: Client, namespace: str) -> None:
    with pytest.raises(KubeError, match=r"must have at most 1048576 bytes|Too long"):
        await client.create(CONFIG_MAPS, config_map(namespace, text="x" * (2**20 + 1)))


async def test_user_agent_contains_the_project_name(
    transport: HttpTransport, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    body = b'{"metadata": {"name": "settings"}, "data": {"color": "red"}}'
    response = await transport.request("POST", path, body=body)
    assert response.status == 201
    assert b'"manager":"kftrainer-tests"' in response.body, "the user agent, for want of a manager"


async def test_requests_share_a_connection_and_watches_have_their_own(
    control_plane: ControlPlane, namespace: str
) -> None:
    others = open_sockets(control_plane)  # of fixtures, which may be closed at any time

    def opened() -> int:
        return len(open_sockets(control_plane) - others)

    connection = await load_connection(control_plane.kubeconfig)
    async with HttpTransport(connection, user_agent="kftrainer-tests/1") as transport:
        client, leases = Client(transport), Client(transport, lane="lease")
        for _ in range(3):
            await client.get(NAMESPACES, DEFAULT)
        assert opened() == 1
        await leases.get(NAMESPACES, DEFAULT)
        assert opened() == 2
        async with client.watch(CONFIG_MAPS, namespace=namespace, timeout_seconds=60):
            assert opened() == 3
    assert opened() == 0


async def test_many_watches_do_not_keep_requests_waiting(client: Client, namespace: str) -> None:
    async def watch(is_open: asyncio.Event, stop: asyncio.Event) -> None:
        async with client.watch(CONFIG_MAPS, namespace=namespace, timeout_seconds=60):
            is_open.set()
            await stop.wait()

    stop = asyncio.Event()
    async with asyncio.TaskGroup() as watches:
        opened = [asyncio.Event() for _ in range(120)]
        for is_open in opened:
            watches.create_task(watch(is_open, stop))
        async with asyncio.timeout(30):
            for is_open in opened:
                await is_open.wait()
            await client.get(NAMESPACES, DEFAULT)
        stop.set()


class SilentRelay:
    """Stands before the API server, and can fall silent: it listens, and passes nothing on."""

    def __init__(self, plane: ControlPlane) -> None:
        self._port = int(plane.url.rpartition(":")[2])
        self.is_silent = False
        self.received_while_silent = asyncio.Event()
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        upstream, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        async with asyncio.TaskGroup() as pumps:
            answers = pumps.create_task(self._pump(upstream, writer))
            await self._pump(reader, upstream_writer)
            answers.cancel()
        self.open -= 1
        for each in (upstream_writer, writer):
            each.transport.abort()  # a polite end may outlast the event loop

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(65536):
                if self.is_silent:
                    self.received_while_silent.set()
                else:
                    writer.write(chunk)

    async def is_left(self) -> bool:
        return self.open == 0


@pytest.fixture
async def relayed(
    control_plane: ControlPlane,
) -> AsyncIterator[tuple[SilentRelay, HttpTransport]]:
    relay = SilentRelay(control_plane)
    listener = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    host = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    connection = replace(await load_connection(control_plane.kubeconfig), host=host)
    async with HttpTransport(connection, user_agent="kftrainer-tests/1") as transport:
        yield relay, transport
    listener.close()
    await until(relay.is_left, within=15, what="the end of the relay's connections")


async def test_watch_of_an_unresponsive_server_is_closed_without_waiting(
    relayed: tuple[SilentRelay, HttpTransport], namespace: str
) -> None:
    relay, transport = relayed
    async with Client(transport).watch(CONFIG_MAPS, namespace=namespace, timeout_seconds=60):
        assert relay.open == 1
        relay.is_silent = True
    await until(relay.is_left, within=15, what="the end of the connection")


async def test_close_ends_the_connection_of_a_cancelled_request(
    relayed: tuple[SilentRelay, HttpTransport],
) -> None:
    relay, transport = relayed
    await transport.request("GET", "/version")
    relay.is_silent = True
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(transport.request("GET", "/version"))
        await relay.received_while_silent.wait()
        request.cancel()
    await transport.close()
    await until(relay.is_left, within=15, what="the end of the connection")


async def test_closed_transport_rejects_requests(transport: HttpTransport) -> None:
    await transport.request("GET", "/version")
    await transport.close()
    with pytest.raises(TransportError, match="have been closed"):
        await transport.request("GET", "/version")


async def test_write_guard_blocks_writes_and_allows_reads(
    control_plane: ControlPlane, namespace: str
) -> None:
    messages: list[str] = []

    def on_response(_code: str, method: str, _host: str, _seconds: float) -> None:
        messages.append(method)

    connection = await load_connection(control_plane.kubeconfig)
    async with HttpTransport(connection, user_agent="x/1", on_response=on_response) as transport:
        guarded = Client(transport, write_guard=lambda: False)
        assert await guarded.get(NAMESPACES, DEFAULT)
        with pytest.raises(WriteGuardError, match="not sent: writes are no longer allowed"):
            await guarded.create(CONFIG_MAPS, config_map(namespace))
        with pytest.raises(WriteGuardError):
            await guarded.delete(CONFIG_MAPS, ObjectKey(namespace, "x"))
    assert messages == ["GET"], "nothing else was sent"


async def test_write_checks_its_guard_again_after_waiting_for_a_connection(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast("dict[str, int]", sessions.CONNECTIONS), "general", 1)
    guard_calls: list[bool] = []
    leading = True

    def guard() -> bool:
        guard_calls.append(leading)
        return leading

    connection = await load_connection(control_plane.kubeconfig)
    async with HttpTransport(connection, user_agent="x/1") as transport:
        client = Client(transport, write_guard=guard)
        watch = {"watch": "true", "timeoutSeconds": "60"}
        async with (
            asyncio.TaskGroup() as group,
            transport.stream(
                CONFIG_MAPS.collection_path(namespace), query=watch, timeout=60, lane="general"
            ),
        ):
            queued = group.create_task(_outcome(client.create(CONFIG_MAPS, config_map(namespace))))

            async def guard_called() -> bool:
                return bool(guard_calls)

            await until(guard_called, within=30, what="the write, waiting for a connection")
            leading = False
        assert isinstance(queued.result(), WriteGuardError)
        assert guard_calls == [True, False]
        assert not (await Client(transport).list(CONFIG_MAPS, namespace=namespace)).items


async def _outcome(request: Awaitable[object]) -> object:
    try:
        return await request
    except KubeError as error:
        return error
