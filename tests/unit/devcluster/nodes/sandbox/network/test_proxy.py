import asyncio
import socket
from contextlib import suppress

import pytest

from kftrainer.devcluster.nodes.sandbox.host_ports import announced
from kftrainer.devcluster.nodes.sandbox.network.bridge import hardware_address
from kftrainer.devcluster.nodes.sandbox.network.proxy import Backends, Streams, join
from kftrainer.devcluster.nodes.sandbox.protocol import Backend, ServicePort

A, B, C = (Backend("10.244.0.2", port) for port in (1, 2, 3))


def test_each_connection_starts_with_the_next_backend() -> None:
    backends = Backends([A, B, C])
    assert [list(backends.order()) for _ in range(4)] == [
        [A, B, C], [B, C, A], [C, A, B], [A, B, C],
    ]  # fmt: skip


def test_no_backends() -> None:
    assert list(Backends([]).order()) == []


def test_only_backends_on_this_machine_are_announced() -> None:
    ports = [
        ServicePort("10.0.0.1", 443, [Backend("127.0.0.1", 6443)]),
        ServicePort("10.0.0.2", 80, [A, Backend("127.0.0.1", 8080)]),
    ]
    assert announced(ports) == {6443, 8080}


def test_the_hardware_address_of_a_pod_depends_only_on_its_ip() -> None:
    assert hardware_address("10.244.0.12") == "0a:58:0a:f4:00:0c"


async def pair() -> tuple[Streams, socket.socket]:
    """Return one side of a TCP connection as streams, and the other as a socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    peer.settimeout(0)
    return await asyncio.open_connection(sock=accepted), peer


async def read_slowly(peer: socket.socket) -> int:
    """Return the number of bytes until the end of a connection; begin after a while."""
    loop = asyncio.get_running_loop()
    total = 0
    for _ in range(100):  # turns of the event loop, in which the other side can go on
        await asyncio.sleep(0)
    while data := await loop.sock_recv(peer, 10_000):
        total += len(data)
    return total


async def test_everything_arrives_before_the_end_of_a_connection() -> None:
    (one, client), (other, backend) = await pair(), await pair()
    with client, backend:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(join(one, other))
            await asyncio.get_running_loop().sock_sendall(client, b"request")
            client.shutdown(socket.SHUT_WR)
            assert await read_slowly(backend) == 7
            answer = tasks.create_task(read_slowly(client))
            await asyncio.get_running_loop().sock_sendall(backend, b"x" * 5_000_000)
            backend.shutdown(socket.SHUT_WR)
    assert answer.result() == 5_000_000


async def test_an_error_of_one_connection_resets_the_other() -> None:
    (one, client), (other, backend) = await pair(), await pair()
    with client:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(join(one, other))
            backend.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            backend.close()
            with pytest.raises(ConnectionResetError):
                await asyncio.get_running_loop().sock_recv(client, 1)


async def test_a_cancelled_connection_is_reset() -> None:
    (one, client), (other, backend) = await pair(), await pair()
    with client, backend:
        async with asyncio.TaskGroup() as tasks:
            joined = tasks.create_task(join(one, other))
            await asyncio.sleep(0)
            joined.cancel()
            with suppress(asyncio.CancelledError):
                await joined
            assert joined.cancelled()
            with pytest.raises(ConnectionResetError):
                await asyncio.get_running_loop().sock_recv(client, 1)
