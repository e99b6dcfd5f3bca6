"""`make bench-machinery`: queue, informer, watch and apply, as ratios within one run."""

import argparse
import asyncio
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from bench.sample import train_job
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.progress import Progress
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import ObjectKey, Resource, unstructured
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.queue.backoff import Exponential
from kftrainer.machinery.queue.workqueue import WorkQueue

HERE = Path(__file__).parent
CRDS = HERE.parent.parent / "src" / "kftrainer" / "api" / "crds"
TRAIN_JOBS = Resource(
    "trainer.kubeflow.org",
    "v1alpha1",
    "TrainJob",
    "trainjobs",
    namespaced=True,
    decode=unstructured,
)
IN_FLIGHT = 16
QUEUE_ITEMS = 100_000


def row(what: str, value: str, note: str = "") -> None:
    """One line of the result."""
    print(f"{what:<52} {value:>18}  {note}".rstrip(), flush=True)


async def in_flight(count: int, work: Callable[[int], Awaitable[object]]) -> float:
    """Seconds for `count` calls, a number of them at once."""
    loop, numbers = asyncio.get_running_loop(), iter(range(count))
    began = loop.time()

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(worker())
    return loop.time() - began


async def queue() -> None:
    """(a) add, get and done on distinct keys."""
    loop = asyncio.get_running_loop()
    work = WorkQueue(SystemClock(), Exponential())
    keys = [ObjectKey("default", f"job-{n}") for n in range(QUEUE_ITEMS)]
    began = loop.time()
    for key in keys:
        work.add(key)
    for _ in keys:
        key, _ = await work.next()
        work.done(key)
    row("(a) queue: add, get, done", f"{QUEUE_ITEMS / (loop.time() - began):,.0f}/s")


@dataclass(frozen=True)
class Outcome:
    """The figures that a candidate reported."""

    objects: int
    sync_seconds: float
    sync_cpu: float
    stall: float
    rss: float
    follow_cpu: float


async def _read_report(process: asyncio.subprocess.Process) -> dict[str, float]:
    """The next report of a candidate; what else it prints, such as logs, is passed over."""
    assert process.stdout is not None  # noqa: S101
    async for line in process.stdout:
        if line.startswith(b"{"):
            parsed: dict[str, float] = json.loads(line)
            return parsed
    raise RuntimeError("a candidate ended without a report")


async def candidate(
    script: str,
    plane: ControlPlane,
    objects: int,
    updates: int,
    change: Callable[[], Awaitable[None]],
) -> Outcome:
    """Run a candidate in a process of its own, on the objects that are there, then change some."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "candidates" / script),
        str(updates),
        str(objects),
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    synced = await _read_report(process)
    await change()
    followed = await _read_report(process)
    await process.wait()
    return Outcome(
        objects,
        synced["seconds"],
        synced["cpu"] - synced["used"],
        synced["stall"],
        synced["rss"] - synced["before"],
        followed["cpu"] - synced["cpu"],
    )


def changer(client: Client, objects: int, updates: int) -> Callable[[], Awaitable[None]]:
    """Makes a number of updates, spread over the objects; no two of them are alike."""
    marks = iter(range(10**9))

    async def change() -> None:
        mark = next(marks)

        async def patch(number: int) -> None:
            key = ObjectKey("default", f"job-{number % objects}")
            annotations = {"example.com/mark": f"{objects}-{mark}-{number}"}
            await client.merge_patch(TRAIN_JOBS, key, {"metadata": {"annotations": annotations}})

        await in_flight(updates, patch)

    return change


def show(name: str, found: Outcome, ours: Outcome, objects: int, size: float) -> None:
    """The rows of one candidate; times are compared per object."""
    share = objects / ours.objects
    rows = (
        (
            "time to sync",
            f"{found.sync_seconds:.2f} s",
            found.sync_seconds / ours.sync_seconds / share,
        ),
        ("CPU to sync", f"{found.sync_cpu:.2f} s", found.sync_cpu / ours.sync_cpu / share),
        ("longest stall of the loop", f"{found.stall * 1e3:.0f} ms", found.stall / ours.stall),
    )
    row(f"    {name}", f"{objects:,} objects")
    for what, value, ratio in rows:
        row(f"        {what}", value, f"{ratio:.1f} x ours" if found is not ours else "")
    each = found.rss / objects
    row("        memory per object", f"{each:,.0f} bytes", f"{each / size:.2f} x its JSON")


async def informers(plane: ControlPlane, client: Client, objects: int, updates: int) -> None:
    """(b) syncing, and (c) following; kopf on a tenth, as it takes minutes for more."""

    async def create(number: int) -> None:
        await client.create(TRAIN_JOBS, train_job(number))

    few, fewer = objects // 10, updates // 5
    await in_flight(few, create)
    few_changes = changer(client, few, fewer)
    kopf = await candidate("with_kopf.py", plane, few, fewer, few_changes)
    rest = await in_flight(objects - few, lambda number: create(few + number))
    row("objects created", f"{(objects - few) / rest:,.0f}/s")
    listed = (await client.list(TRAIN_JOBS)).items
    size = sum(len(orjson.dumps(each)) for each in listed) / objects
    del listed
    row("(b) syncing objects", f"{size:,.0f} bytes", "of JSON each, as listed")
    change = changer(client, objects, updates)
    ours = await candidate("ours.py", plane, objects, updates, change)
    typed = await candidate("typed.py", plane, objects, updates, change)
    show("kftrainer", ours, ours, objects, size)
    show("kubernetes-asyncio", typed, ours, objects, size)
    show("kopf", kopf, ours, few, size)
    merely = (await candidate("decoding.py", plane, objects, updates, change)).follow_cpu / updates
    row("(c) watch: merely decoding", f"{1 / merely:,.0f}/s", "events per second of CPU")
    for name, cpu in (
        ("kftrainer", ours.follow_cpu / updates),
        ("kubernetes-asyncio", typed.follow_cpu / updates),
        ("kopf", kopf.follow_cpu / fewer),
    ):
        row(f"    {name}: handling", f"{1 / cpu:,.0f}/s", f"{merely / cpu:.2f} of merely decoding")


async def applies(plane: ControlPlane, client: Client, count: int) -> None:
    """(d) server-side applies against a bare aiohttp loop, in alternating rounds."""
    query = {"fieldManager": "bench", "force": "true"}
    headers = {"Content-Type": "application/apply-patch+yaml"}
    rng = random.Random(1)  # noqa: S311

    def document(number: int) -> dict[str, Any]:
        job = train_job(number)
        job["metadata"]["annotations"]["example.com/apply"] = str(rng.random())
        return job

    async def ours(number: int) -> None:
        await client.apply(TRAIN_JOBS, document(number), field_manager="bench")

    connector = aiohttp.TCPConnector(ssl=plane.client().tls or True)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def bare(number: int) -> None:
            path = TRAIN_JOBS.object_path(ObjectKey("default", f"job-{number}"))
            body = orjson.dumps(document(number))
            async with session.patch(
                plane.url + path, params=query, data=body, headers=headers
            ) as it:
                orjson.loads(await it.read())

        times = {"bare": 0.0, "ours": 0.0}
        for _ in range(3):
            times["bare"] += await in_flight(count, bare)
            times["ours"] += await in_flight(count, ours)
    row("(d) applies: bare aiohttp", f"{3 * count / times['bare']:,.0f}/s")
    row(
        "    applies: our client",
        f"{3 * count / times['ours']:,.0f}/s",
        f"{times['bare'] / times['ours']:.2f} x bare aiohttp",
    )


async def bench(objects: int, updates: int) -> None:
    """All of it on one control plane."""
    await queue()
    shape = Shape(crd_files=tuple(sorted(CRDS.glob("*.yaml"))))
    async with running(shape, progress=Progress(sys.stderr)) as plane:
        transport = HttpTransport(await load_connection(plane.kubeconfig), user_agent="bench")
        client = Client(transport)

        await informers(plane, client, objects, updates)
        await applies(plane, client, min(500, objects))
        await transport.close()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--updates", type=int, default=5_000)
    arguments = parser.parse_args()
    asyncio.run(bench(arguments.objects, arguments.updates))
    return 0


if __name__ == "__main__":
    sys.exit(main())
