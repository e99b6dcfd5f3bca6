"""A client floods the webhook's port while the API server continues to call it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

import orjson
import pytest

from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.devcluster.client import Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.waiting import until
from kftrainer.machinery.webhook.handler import LARGE
from kftrainer.webhooks.registration import webhook_path
from tests.integration.webhooks.cases import job_on, placed, torch
from tests.support.raw_https import post, trusting
from tests.support.reviews import review
from tests.support.webhooks import (
    CONFIGURATION_PATH,
    admission_client,
    admitting_manager,
)

pytestmark = pytest.mark.integration

OTHER_CLIENT = "127.0.0.2"
SENDERS = 300
SILENT = 300  # connections that never begin a handshake
VARIABLES = 400  # within the limits, so that they are validated
# Bytes of an argument, with which a review is just not large, or large.
SIZES = {"small": 1, "large": LARGE}
WITHIN = 60.0
CREATED = 10
DISCONNECTED = (OSError, asyncio.IncompleteReadError)


def train_job(namespace: str, size: int, name: str = "train") -> Object:
    """A valid TrainJob of many variables and an argument of this size."""
    env = [{"name": f"VARIABLE_{number}", "value": "x" * 10} for number in range(VARIABLES)]
    trainer = {"env": env, "args": ["x" * size]}
    return job_on("TrainingRuntime", namespace, namespace, name=name, trainer=trainer)


class Flood:
    """Reviews sent by another client; counts those that were validated."""

    def __init__(self, port: int, job: Object) -> None:
        self._port = port
        self._request = post(webhook_path(TRAIN_JOBS), orjson.dumps(review(job)))
        self.validated = 0
        self.silent = 0

    async def send(self) -> None:
        """Send reviews, one after the other, on as many connections as it takes."""
        tls = trusting()
        while True:
            try:
                await self._send_on_one(tls)
            except DISCONNECTED:
                await asyncio.sleep(0.05)

    async def _send_on_one(self, tls: ssl.SSLContext) -> None:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=tls, local_addr=(OTHER_CLIENT, 0)
        )
        try:
            while True:
                writer.write(self._request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                self.validated += head.startswith(b"HTTP/1.1 200 ")
        finally:
            writer.transport.abort()

    async def stay_silent(self) -> None:
        """Open connections again and again, without ever beginning a handshake."""
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self._port, local_addr=(OTHER_CLIENT, 0)
                )
            except DISCONNECTED:
                await asyncio.sleep(0.05)
                continue
            self.silent += 1
            try:
                await reader.read()
            except DISCONNECTED:
                await asyncio.sleep(0.05)
            finally:
                writer.transport.abort()


@asynccontextmanager
async def flooding(port: int, job: Object) -> AsyncIterator[Flood]:
    """A flood for the length of the block, which begins when it is under way."""
    flood = Flood(port, job)

    async def has_started() -> bool:
        return flood.validated > 5 and flood.silent > SILENT // 2

    async with asyncio.TaskGroup() as tasks:
        running = [
            *(tasks.create_task(flood.send()) for _ in range(SENDERS)),
            *(tasks.create_task(flood.stay_silent()) for _ in range(SILENT)),
        ]
        try:
            await until(has_started, within=WITHIN, what="the flood")
            yield flood
        finally:
            for each in running:
                each.cancel()


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
async def test_flood_of_an_unauthenticated_client_does_not_block_the_api_server(
    plane: ControlPlane, namespace: str, size: int
) -> None:
    job = train_job(namespace, size)
    assert (len(orjson.dumps(review(job))) > LARGE) is (size == SIZES["large"])
    async with admitting_manager(plane), admission_client(plane) as user, plane.client() as api:
        runtime = placed(torch(), "TrainingRuntime", namespace, namespace)
        assert (await user.create(runtime)).accepted
        [service, *_] = (await api.get(CONFIGURATION_PATH))["webhooks"]
        outcomes, served_between = [], []
        async with flooding(service["clientConfig"]["service"]["port"], job) as flood:
            for number in range(CREATED):
                before = flood.validated
                created = train_job(namespace, size, f"job-{number}")
                outcomes.append(await user.create(created, dry_run=True))
                served_between.append(flood.validated - before)
        assert [(each.accepted, each.message) for each in outcomes] == [(True, "")] * CREATED
        # In order of arrival, a request would wait for about as many as there are senders.
        assert median(served_between) < SENDERS / 8
