"""The network of the sandbox: pods, names, Services, ports of the host and probes."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kftrainer.devcluster.nodes.sandbox.protocol import Backend, Exit, ServicePort
from tests.support.pods import Pods, running

CLUSTER = "svc.cluster.local"


@asynccontextmanager
async def two_servers(folder: Path) -> AsyncIterator[Pods]:
    """Start pods one and two that listen on the same port, besides the pod `pod`."""
    async with running(folder) as pods:
        for number, name in enumerate(("one", "two"), start=3):
            await pods.pod(name, f"10.244.0.{number}")
            await pods.server(name, name)
        yield pods


@asynccontextmanager
async def host_server() -> AsyncIterator[int]:
    """Start a server on a port of this machine that sends the lines back in upper case."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())  # until the client has ended its direction
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_two_pods_listen_on_the_same_port(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as pods:
        fetched = await pods.fetch("pod", ("10.244.0.3", 29500), ("10.244.0.4", 29500))
    assert fetched == "one\ntwo\n"


async def test_pods_reach_each_other_by_name(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as pods:
        await pods.sandbox.set_names(
            {
                f"job-node-0-0.job.team.{CLUSTER}": ["10.244.0.3"],
                f"job-node-0-1.job.team.{CLUSTER}": ["10.244.0.4"],
            }
        )
        fetched = await pods.fetch(
            "pod", ("job-node-0-0.job", 29500), (f"job-node-0-1.job.team.{CLUSTER}", 29500)
        )
    assert fetched == "one\ntwo\n"


async def test_names_are_replaced_and_unknown_names_fail_at_once(tmp_path: Path) -> None:
    source = (
        "import socket, time\n"
        "def look(name):\n"
        "    try: return sorted({a[4][0] for a in socket.getaddrinfo(name, 1)})\n"
        "    except socket.gaierror as error: return error.args[0] == socket.EAI_NONAME\n"
        "start = time.monotonic()\n"
        "print(look('web'), look('gone'), look('example.com'), time.monotonic() - start < 4)\n"
        "print(socket.gethostbyaddr('10.244.0.9')[0])\n"
    )
    async with running(tmp_path) as pods:
        await pods.sandbox.set_names({f"gone.team.{CLUSTER}": ["10.244.0.9"]})
        await pods.sandbox.set_names({f"web.team.{CLUSTER}": ["10.244.0.9", "10.244.0.8"]})
        output = await pods.python("pod", source)
    assert output == f"['10.244.0.8', '10.244.0.9'] True True True\nweb.team.{CLUSTER}\n"


async def test_long_answers_are_truncated_and_complete_over_tcp(tmp_path: Path) -> None:
    source = (
        "import socket\n"
        "print(len({a[4][0] for a in socket.getaddrinfo('many', 1, socket.AF_INET)}))\n"
    )
    addresses = [f"10.244.{n // 250}.{n % 250}" for n in range(300)]
    async with running(tmp_path) as pods:
        await pods.sandbox.set_names({f"many.team.{CLUSTER}": addresses})
        assert await pods.python("pod", source) == "300\n"


async def test_service_ports_spread_connections_over_their_backends(tmp_path: Path) -> None:
    service = ("10.0.0.7", 80)
    backends = [Backend("10.244.0.3", 29500), Backend("10.244.0.4", 29500)]
    async with two_servers(tmp_path) as pods:
        await pods.sandbox.set_services([ServicePort(*service, backends)])
        assert sorted((await pods.fetch("pod", *[service] * 4)).split()) == [
            *["one"] * 2,
            *["two"] * 2,
        ]
        await pods.sandbox.set_services([ServicePort(*service, backends[1:])])
        assert await pods.fetch("pod", service, service) == "two\ntwo\n"
        await pods.sandbox.set_services([ServicePort(*service, [])])
        assert await pods.fetch("pod", service) == "Connection refused\n"


async def test_a_backend_that_refuses_is_skipped(tmp_path: Path) -> None:
    service = ("10.0.0.7", 80)
    async with two_servers(tmp_path) as pods:
        await pods.sandbox.set_services(
            [ServicePort(*service, [Backend("10.244.0.3", 1), Backend("10.244.0.4", 29500)])]
        )
        assert await pods.fetch("pod", service, service) == "two\ntwo\n"
        await pods.sandbox.set_services([ServicePort(*service, [Backend("10.244.0.3", 1)])])
        assert await pods.fetch("pod", service) == "Connection reset by peer\n"


SEND = (
    "import socket\n"
    "connection = socket.create_connection(({ip!r}, {port}), 10)\n"
    "connection.sendall(b'word ' * 200000)\n"
    "connection.shutdown(socket.SHUT_WR)\n"
    "received = b''\n"
    "while data := connection.recv(65536): received += data\n"
    "print(len(received), received[:4].decode())\n"
)


async def test_a_service_leads_to_an_announced_port_of_this_machine(tmp_path: Path) -> None:
    async with running(tmp_path) as pods, host_server() as port:
        await pods.sandbox.set_services(
            [ServicePort("10.0.0.1", 443, [Backend("127.0.0.1", port)])]
        )
        output = await pods.python("pod", SEND.format(ip="10.0.0.1", port=443))
    assert output == "1000000 WORD\n"


async def test_other_ports_of_this_machine_are_not_reachable(tmp_path: Path) -> None:
    async with running(tmp_path) as pods, host_server() as port, host_server() as other:
        await pods.sandbox.set_services(
            [ServicePort("10.0.0.1", 443, [Backend("127.0.0.1", port)])]
        )
        direct = await pods.fetch("pod", ("127.0.0.1", port), ("10.244.0.1", port))
        assert direct == "Connection refused\n" * 2
        await pods.pod("hub", "10.244.0.1", host_network=True)
        assert await pods.fetch("hub", ("127.0.0.1", port)) == "Connection refused\n"
        reader, writer = await asyncio.open_unix_connection(pods.sandbox.host_socket)
        writer.write(f"{other}\nword".encode())
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_there_is_no_route_out_of_the_machine(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        assert await pods.fetch("pod", ("192.0.2.1", 80)) == "No route to host\n"


async def test_pods_on_the_host_network_share_the_hub(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        await pods.pod("hub", "10.244.0.1", host_network=True)
        await pods.server("hub", "hub")
        assert await pods.fetch("pod", ("10.244.0.1", 29500)) == "hub\n"
        _, output = await pods.run("hub", "hostname")
        await pods.sandbox.stop_pod("hub")
    assert output == "hub\n"


async def test_containers_may_listen_on_low_ports(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        ended, output = await pods.run(
            "pod", "python", "-c", "import socket; socket.create_server(('', 22))", user=1000
        )
    assert ended == Exit(0), output


async def test_containers_of_a_pod_share_their_network(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        await pods.server("pod", "one")
        assert await pods.fetch("pod", ("127.0.0.1", 29500)) == "one\n"


async def test_tcp_probe(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as pods:
        probe = pods.sandbox.probe_tcp
        found = [await probe("10.244.0.3", 29500, 5), await probe("10.244.0.3", 1, 5)]
        absent = await probe("10.244.9.9", 1, 0.2)
    assert found == ["", "dial tcp 10.244.0.3:1: connect: connection refused"]
    assert absent == "dial tcp 10.244.9.9:1: i/o timeout"


HTTP = """
from http.server import BaseHTTPRequestHandler, HTTPServer
import time
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/slow": time.sleep(60)
        self.send_response(int(self.path[1:]))
        self.end_headers()
        self.wfile.write((self.headers["x-word"] or "").encode() * 100)
server = HTTPServer(("", 8080), Handler)
server.serve_forever()
"""


async def test_http_probe(tmp_path: Path) -> None:
    async with running(tmp_path) as pods:
        await pods.start("pod", "python", "-c", HTTP)
        url = "http://10.244.0.2:8080"
        async with asyncio.timeout(20):
            while (await pods.sandbox.probe_tcp("10.244.0.2", 8080, 1)) != "":
                pass
        good = await pods.sandbox.probe_http(f"{url}/200", {"X-Word": "a"}, 5)
        bad = [
            await pods.sandbox.probe_http(f"{url}/503", {}, 5),
            await pods.sandbox.probe_http(f"{url}/302", {}, 5),
            await pods.sandbox.probe_http(f"{url}/slow", {}, 0.2),
            await pods.sandbox.probe_http("http://10.244.0.2:1/", {}, 5),
        ]
    assert good == (200, "a" * 100)
    assert [status for status, _ in bad] == [503, 302, 0, 0]
    assert bad[2][1] == f'Get "{url}/slow": context deadline exceeded'
    assert "connection refused" in bad[3][1]


@pytest.mark.parametrize("packet", [b"", b"\x00" * 12, b"\xff" * 600])
async def test_invalid_packets_do_not_end_the_name_server(tmp_path: Path, packet: bytes) -> None:
    source = (
        "import socket\n"
        f"packet = {packet!r}\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.sendto(packet, ('10.0.0.10', 53))\n"
        "t = socket.create_connection(('10.0.0.10', 53))\n"
        f"t.sendall({struct.pack('!H', len(packet))!r} + packet)\n"
        "t.shutdown(socket.SHUT_WR); t.recv(1000)\n"
        "print(socket.gethostbyname('web'))\n"
    )
    async with running(tmp_path) as pods:
        await pods.sandbox.set_names({f"web.team.{CLUSTER}": ["10.244.0.9"]})
        assert await pods.python("pod", source) == "10.244.0.9\n"
