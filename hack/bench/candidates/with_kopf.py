"""kopf as its documentation shows it: an index of the objects, and a handler of raw events."""

import asyncio
import os
import sys
from typing import Any

import kopf
from common import Stalls, Start, report

UPDATES = int(sys.argv[1])
OBJECTS = int(sys.argv[2])
KIND = ("trainer.kubeflow.org", "v1alpha1", "trainjobs")
registry = kopf.OperatorRegistry()
stalls, start = Stalls(), Start()
updates: list[str] = []
found: set[str] = set()
synced, all_seen = asyncio.Event(), asyncio.Event()


@kopf.on.login(registry=registry)
def login(**everything: Any) -> kopf.ConnectionInfo | None:
    """Use the kubeconfig."""
    return kopf.login_with_kubeconfig(**everything)


@kopf.index(*KIND, registry=registry)
async def jobs(name: str, body: Any, **_: Any) -> dict[str, Any]:
    """Keep every object."""
    return {name: dict(body)}


@kopf.on.event(*KIND, registry=registry)
async def seen(name: str, type: str | None, **_: Any) -> None:  # noqa: A002
    """Count what comes."""
    if name not in found:
        found.add(name)
        if len(found) >= OBJECTS:
            synced.set()
    elif type is not None:
        updates.append(name)
        if len(updates) >= UPDATES:
            all_seen.set()


async def main() -> None:
    """Sync, report, count updates, report."""
    os.environ["KOPF_LOG_LEVEL"] = "ERROR"
    loop, stop, began = (
        asyncio.get_running_loop(),
        asyncio.Event(),
        asyncio.get_running_loop().time(),
    )
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(stalls.probe())
        group.create_task(
            kopf.operator(
                registry=registry,
                settings=settings,
                stop_flag=stop,
                clusterwide=True,
                standalone=True,
            )
        )
        await synced.wait()
        took = loop.time() - began
        report(seconds=took, stall=await stalls.settle(), before=start.rss, used=start.cpu)
        await all_seen.wait()
        report()
        stop.set()
        probe.cancel()


asyncio.run(main())
