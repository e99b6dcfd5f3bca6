"""Servers as services, on real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.lifetime import Budget, running
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.metrics.server import metrics_server
from kftrainer.machinery.webhook.server import (
    BindError,
    HttpRequest,
    HttpResponse,
    WebServer,
    parse_bind,
)
from tests.support.fake_clock import FakeClock


async def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, f"{request.method} {request.path} {request.query}")


@asynccontextmanager
async def serving(server: WebServer) -> AsyncIterator[str]:
    async with running(server, budget=Budget(SystemClock(), 5)):
        yield f"http://127.0.0.1:{server.port}"


async def test_a_request_reaches_the_handler() -> None:
    async with (
        serving(WebServer("echo", "127.0.0.1:0", echo)) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/a/b?x=1&x=2") as response,
    ):
        assert await response.text() == "GET /a/b [('x', '1'), ('x', '2')]"
        assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_taken_port_is_reported_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = WebServer("probes", address, echo)
        with pytest.raises(BindError) as raised:
            await server.run(lambda: None, asyncio.Event())
    assert str(raised.value) == f"probes cannot listen: another program listens on {address}"


@pytest.mark.parametrize("port", ["65536", "99999", "1" * 5000])
def test_invalid_port_is_reported_in_one_sentence(port: str) -> None:
    with pytest.raises(BindError) as raised:
        WebServer("probes", f"127.0.0.1:{port}", echo)
    assert (
        str(raised.value) == f"127.0.0.1:{port} is not a valid address: the highest port is 65535."
    )


def test_the_highest_port_is_one() -> None:
    assert parse_bind(":65535") == (None, 65535)


async def test_disabled_server_is_ready_and_does_not_listen() -> None:
    server = WebServer("probes", "0", echo)
    async with running(server, budget=Budget(SystemClock(), 5)):
        assert server.port is None


async def test_port_is_closed_after_stop() -> None:
    async with serving(WebServer("echo", "127.0.0.1:0", echo)) as url:
        pass
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)


async def test_lingering_server_responds_after_stop_was_requested() -> None:
    clock, ready, stop = FakeClock(), asyncio.Event(), asyncio.Event()
    server = WebServer("echo", "127.0.0.1:0", echo, linger=5.0, clock=clock)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        run = group.create_task(server.run(ready.set, stop))
        await ready.wait()
        url = f"http://127.0.0.1:{server.port}"
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as before:
                assert before.headers.get("Connection") != "close"
            stop.set()
            await clock.advance(4.9)
            for _ in range(2):  # one on the connection that is there, one on a new one
                async with session.get(url) as late:
                    assert (late.status, late.headers["Connection"]) == (200, "close")
            assert not run.done()
            await clock.advance(0.1)
            await run
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(url)


async def test_metrics_over_plain_http() -> None:
    metrics = Metrics()
    metrics.for_controller("c")
    server = metrics_server(metrics, "127.0.0.1:0", tls=None, authorization=None)
    async with serving(server) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/metrics") as response:
            assert b"controller_runtime_reconcile_total" in await response.read()
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        async with session.post(f"{url}/metrics") as response:
            assert response.status == 405
        async with session.get(f"{url}/other") as response:
            assert response.status == 404
