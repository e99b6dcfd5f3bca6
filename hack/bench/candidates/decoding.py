"""The same client merely decoding a watch: no store, no handlers."""

import asyncio
import os
import sys
from pathlib import Path

from common import report

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Resource, unstructured

TRAIN_JOBS = Resource(
    "trainer.kubeflow.org",
    "v1alpha1",
    "TrainJob",
    "trainjobs",
    namespaced=True,
    decode=unstructured,
)


async def main(updates: int) -> None:
    """Open a watch, report, count events, report."""
    connection = await load_connection(Path(os.environ["KUBECONFIG"]))
    transport = HttpTransport(connection, user_agent="bench")
    client = Client(transport)
    version = (await anext(client.list_pages(TRAIN_JOBS, limit=1))).resource_version
    seen = 0
    async with client.watch(TRAIN_JOBS, resource_version=version, timeout_seconds=600) as events:
        report(seconds=0, stall=0, before=0, used=0)
        async for _ in events:
            seen += 1
            if seen >= updates:
                break
    report()
    await transport.close()


asyncio.run(main(int(sys.argv[1])))
