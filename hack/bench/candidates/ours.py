"""Our informer, syncing and then following updates."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from common import Stalls, Start, report

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Resource, unstructured
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.manager.clock import SystemClock

TRAIN_JOBS = Resource(
    "trainer.kubeflow.org",
    "v1alpha1",
    "TrainJob",
    "trainjobs",
    namespaced=True,
    decode=unstructured,
)


async def main(updates: int) -> None:
    """Sync, report, count updates, report."""
    loop = asyncio.get_running_loop()
    connection = await load_connection(Path(os.environ["KUBECONFIG"]))
    transport = HttpTransport(connection, user_agent="bench")
    informer = Informer(Client(transport), TRAIN_JOBS, clock=SystemClock())
    seen, all_seen, stop = 0, asyncio.Event(), asyncio.Event()

    def count(change: ObjectEvent[Any]) -> None:
        nonlocal seen
        if not change.initial:
            seen += 1
            if seen >= updates:
                all_seen.set()

    informer.add_handler(count)
    stalls, start, began = Stalls(), Start(), loop.time()
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(stalls.probe())
        group.create_task(informer.run(lambda: None, stop))
        await informer.wait_synced()
        took = loop.time() - began
        report(seconds=took, stall=await stalls.settle(), before=start.rss, used=start.cpu)
        await all_seen.wait()
        report()
        stop.set()
        probe.cancel()
    await transport.close()


asyncio.run(main(int(sys.argv[1])))
