"""`make bench`: whether hostile objects at the limits fit in the chart's memory limit.

Two measurements, and an estimate from both:

1. A whole manager on an API server that stores TrainJobs as large as possible. Some are just small
   enough that the cache holds them and their JobSets whole, which takes the most memory for each;
   others are as large as the limits allow, which takes the most memory while one is worked on. The
   peak (VmHWM) is read after the manager has applied all JobSets, and again after a restart. The
   API server takes about a second for each TrainJob at the limit, so that these are few, and what
   the caches hold of each is taken from the manager's own count of bytes.
2. Objects of each kind in the store of an informer, in a process of its own, and what a manager
   remembers of Events about refused pods: the part that grows with the number of objects.

The estimate is the peak of the manager at its last measurement, the most of both measurements for
each TrainJob that is missing to 10,000, and Events about that many. Exits with 1 if the estimate
exceeds the limit.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson
import yaml

from bench.endtoend import CRDS, RUNTIME, WITHIN, note, samples_in, total
from bench.machinery import in_flight, row
from bench.whole_manager import (
    MIB,
    Memory,
    WholeManager,
    chart_limit,
    memory_of,
    register_webhook,
    whole_manager,
)
from kftrainer.api.limits import (
    ENV_VARS,
    OBJECT_BYTES,
    OBJECT_VALUES,
    WORDS,
    size_of,
    values_in,
)
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    JOB_SETS,
    SECRETS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from kftrainer.controllers.large_objects import PREFIX, reduction_of
from kftrainer.controllers.trainjob.jobset.refused_pods import (
    CAPACITY,
    LONGEST_TEXT,
    Refusal,
    RefusedPods,
)
from kftrainer.controllers.trainjob_index import TRAIN_JOB_INDEXES
from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.cache.cached_object import CachedObjectFactory
from kftrainer.machinery.cache.reduction import FEW, LARGE, TEXT
from kftrainer.machinery.cache.store import Store
from kftrainer.machinery.manager.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = Path(__file__).parent.parent / "run.py"
KIB = 1024
STORED = 1_300_000  # bytes: more than the limits allow, and as much as etcd stores
TRAIN_JOBS_AT_MOST = 10_000  # that are to fit in the chart's limit
NAMESPACES = 8  # large objects of one namespace are reconciled with pauses
WIDE = "\N{GRINNING FACE}"  # a character that takes four bytes in memory
REFUSED_PODS = "Events about refused pods"
FINALIZERS = 3_000  # of some TrainJobs at the limit: 190 KB more
WITH_FINALIZERS = 6  # every how many: writing them takes the API server a second
FEWER = 5  # times fewer of objects that are mostly not held
SLACK = 256  # bytes by which an object is smaller than the cache holds whole


# What grows with the number of objects.


def padded(resource: Resource[Any], number: int, size: int, where: str) -> dict[str, Any]:
    """Return an object of about this size; what makes it large is in `where`."""
    owner = {"kind": "TrainJob", "name": f"o-{number}", "uid": f"{number:036x}", "controller": True}
    metadata: dict[str, Any] = {
        "name": f"o-{number}",
        "namespace": f"team-{number % 10}",
        "uid": f"{number:036x}",
        "resourceVersion": str(number + 1),
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"apiVersion": TRAIN_JOBS.api_version, **owner}],
    }
    spec: dict[str, Any] = {"suspend": True}
    if resource is TRAIN_JOBS:
        spec["runtimeRef"] = {"name": f"runtime-{number % 10}"}
    if where == "spec":
        spec["args"] = ["x" * (size - 600)]
    elif where == "labels":
        metadata["labels"] = {f"example.com/l{n}": "x" * 60 for n in range((size - 600) // 84)}
    elif where == "our metadata":
        spec["args"] = ["x" * (size - 600)]
        metadata |= _own_metadata()
    else:
        metadata["annotations"] = {"example.com/a": "x" * (size - 600)}
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**head, "metadata": metadata, "spec": spec}


def _own_metadata() -> dict[str, Any]:
    """Return as much as a large object can have of the metadata that is held in any case."""
    keys = [f"{PREFIX}{n:063}" for n in range(FEW)]
    return {
        "labels": dict.fromkeys(keys, "x" * 63),
        "annotations": dict.fromkeys(keys, "x" * TEXT),
        "finalizers": keys,
    }


ROWS: Mapping[str, tuple[Resource[Any], int, str]] = {
    "TrainJobs just held whole": (TRAIN_JOBS, LARGE, "spec"),
    "TrainJobs at the limit": (TRAIN_JOBS, OBJECT_BYTES, "spec"),
    "TrainJobs at the limit, by labels": (TRAIN_JOBS, OBJECT_BYTES, "labels"),
    "TrainJobs at the limit, with our labels": (TRAIN_JOBS, OBJECT_BYTES, "our metadata"),
    "JobSets just held whole": (JOB_SETS, LARGE, "spec"),
    "JobSets at the limit": (JOB_SETS, OBJECT_BYTES, "spec"),
    "JobSets at the limit, with our labels": (JOB_SETS, OBJECT_BYTES, "our metadata"),
    "TrainingRuntimes just held whole": (TRAINING_RUNTIMES, LARGE, "spec"),
    "Secrets of a TrainJob, by annotations": (SECRETS, OBJECT_BYTES, "annotations"),
}


def fill_store(what: str, count: int) -> object:
    """Return a store with objects as a list would put them there."""
    resource, size, where = ROWS[what]
    indexes: dict[str, Callable[..., Any]] = TRAIN_JOB_INDEXES if resource is TRAIN_JOBS else {}
    reduction = reduction_of(resource, is_owned=True)
    factory: CachedObjectFactory[Any] = CachedObjectFactory(
        resource, None, indexes, reduction=reduction
    )
    store: Store[Any] = Store(indexes)
    for number in range(count):
        # As it comes from the API server: nothing of it is shared with other objects.
        read = orjson.loads(orjson.dumps(padded(resource, number, size, where)))
        store.upsert(factory.create(read))
    return store


class _AnyJobSet:
    """A cache in which there is a JobSet of every name."""

    def informer(self, _resource: Resource[Any]) -> "_AnyJobSet":
        return self

    def cached_object(self, key: ObjectKey) -> ObjectKey:
        return key


def fill_refused_pods(count: int) -> object:
    """Return what a manager remembers of the longest Events about many JobSets."""
    refused = RefusedPods(
        cast("Any", None),
        cast("Any", _AnyJobSet()),
        clock=SystemClock(),
        enqueue=lambda _: None,
    )
    for number in range(count):
        text = orjson.loads(orjson.dumps(WIDE * LONGEST_TEXT))
        refusal = Refusal("JobSet", f"o-{number}", f"{number:036x}", text, "2026-01-01T00:00:00Z")
        refused.observe(f"team-{number % 10}", refusal)
    return refused


def fill(what: str, count: int) -> None:
    """Fill this process, and print by how many bytes it has grown."""
    before = memory_of("self").now
    held = fill_refused_pods(count) if what == REFUSED_PODS else fill_store(what, count)
    print(memory_of("self").now - before)
    del held


def bytes_of_each(count: int) -> Mapping[str, float]:
    """Return the bytes that an object of each row takes; prints them."""
    found = {}
    for what in (*ROWS, REFUSED_PODS):
        size = ROWS[what][1] if what in ROWS else LONGEST_TEXT
        number = count if size <= LARGE else count // FEWER
        argv = (sys.executable, str(RUN), "bench.memory", "--fill", what)
        output = subprocess.run(
            (*argv, "--objects", str(number)), capture_output=True, check=True, text=True
        )
        grown = int(output.stdout)
        found[what] = grown / number
        unit = "bytes" if what in ROWS else "characters"
        each = f"{found[what]:,.0f} bytes each, of {size:,} {unit}"
        row(f"{number:,} {what}", f"{grown / MIB:,.0f} MiB", each)
    return found


# A whole manager.


def train_job(name: str, namespace: str, args: Sequence[str], padding: int = 0) -> dict[str, Any]:
    """Return a TrainJob on the demo's runtime; the padding is not copied to its JobSet."""
    return {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": TRAIN_JOBS.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {"example.com/padding": "x" * padding},
        },
        "spec": {
            "runtimeRef": {"name": yaml.safe_load(RUNTIME.read_text())["metadata"]["name"]},
            "trainer": {"command": ["train"], "args": [*args]},
        },
    }


def job_at_the_limit(name: str, namespace: str, finalizers: int = 0) -> dict[str, Any]:
    """Return a TrainJob that has both as many values and as many bytes as it may.

    Finalizers do not count for these limits, but have limits of their own.
    """
    args = [f"--word={n}" for n in range(WORDS)]
    job = train_job(name, namespace, args)
    trainer = job["spec"]["trainer"]
    trainer["env"] = [{"name": f"E{n}", "value": "x"} for n in range(ENV_VARS)]
    if finalizers:
        job["metadata"]["finalizers"] = [f"example.com/{n:050}" for n in range(finalizers)]
    # The API server adds defaults.
    missing = OBJECT_VALUES - 20 - values_in(job["spec"])
    trainer["command"] += [f"--flag={n}" for n in range(missing)]
    longer = "x" * ((OBJECT_BYTES - 600 - size_of(job)) // WORDS)
    trainer["args"] = [f"{each}{longer}" for each in args]
    return job


@dataclass(frozen=True)
class Point:
    """The memory of the manager at some numbers of TrainJobs, each with a JobSet."""

    whole: int  # of those that are held whole
    largest: int  # of those at the limit
    live: Memory  # when all JobSets were applied
    restarted: Memory  # after a restart
    cached: float = 0.0  # bytes of TrainJobs and JobSets in caches, by the manager's own count

    @property
    def peak(self) -> int:
        """The most memory at any time."""
        return max(self.live.peak, self.restarted.peak)


def slope(before: Point, after: Point) -> float:
    """Return the bytes of memory for each TrainJob held whole that was added between points."""
    grown = (after.live.now - before.live.now, after.restarted.now - before.restarted.now)
    return max(grown) / (after.whole - before.whole)


def cached_of_each(before: Point, after: Point) -> float:
    """Return the bytes in caches for each TrainJob at the limit that was added between points."""
    return (after.cached - before.cached) / (after.largest - before.largest)


@dataclass(frozen=True)
class Estimate:
    """The memory for TRAIN_JOBS_AT_MOST hostile TrainJobs, in bytes."""

    measured: int  # the peak at the last point
    train_jobs: int  # of that point
    each: float  # of the TrainJobs that are missing, with their JobSets
    refused_pods: float

    @property
    def bytes(self) -> float:
        """The sum."""
        return self.measured + self.missing * self.each + self.refused_pods

    @property
    def missing(self) -> int:
        """The TrainJobs that were not there."""
        return TRAIN_JOBS_AT_MOST - self.train_jobs

    def fits(self, limit: int) -> bool:
        """Whether they fit in the limit."""
        return self.bytes <= limit


def estimate(points: Sequence[Point], held: Mapping[str, float]) -> Estimate:
    """Return the estimate from three points: fewer and more whole TrainJobs, then large ones too.

    What one TrainJob takes is the most of all measurements: in the manager, and in stores.
    """
    fewer, more, last = points
    in_stores = max(bytes_ for what, bytes_ in held.items() if what.startswith("TrainJobs")) + max(
        bytes_ for what, bytes_ in held.items() if what.startswith("JobSets")
    )
    each = max(slope(fewer, more), cached_of_each(more, last), in_stores)
    refused = held[REFUSED_PODS] * min(CAPACITY, TRAIN_JOBS_AT_MOST)
    return Estimate(last.peak, last.whole + last.largest, each, refused)


class MemoryBench:
    """Creates TrainJobs and measures the manager."""

    def __init__(self, plane: ControlPlane, client: Client, namespaces: Sequence[str]) -> None:
        self._plane = plane
        self._client = client
        self._namespaces = namespaces
        self._whole = self._largest = 0
        self._sizes = (0, 0)  # that a JobSet and a TrainJob have besides arguments and padding

    async def points(self, numbers: Sequence[tuple[int, int]]) -> list[Point]:
        """Measure a manager at numbers of TrainJobs that are held whole, and at the limit."""
        found = []
        async with whole_manager(self._plane) as manager:
            empty = manager.memory()
            row("manager without objects", f"{empty.now / MIB:,.0f} MiB", _peak(empty))
            await self._sample(manager)
        for whole, largest in numbers:
            async with whole_manager(self._plane) as manager:
                await self._settled(manager)
                live = await self._grow(manager, whole, largest)
            async with whole_manager(self._plane) as manager:
                await self._settled(manager)
                restarted = manager.memory()
                cached = sum([await _cached(manager, each) for each in (TRAIN_JOBS, JOB_SETS)])
            point = Point(self._whole, self._largest, live, restarted, cached)
            found.append(point)
            what = f"manager, {point.whole:,} TrainJobs held whole"
            if point.largest:
                what += f", {point.largest:,} at the limit"
            detail = (
                f"{_peak(live)}; restarted {restarted.now / MIB:,.0f}, {_peak(restarted)}; "
                f"in caches {cached / MIB:,.1f}"
            )
            row(what, f"{live.now / MIB:,.0f} MiB", detail)
        return found

    async def _grow(self, manager: WholeManager, whole: int, largest: int) -> Memory:
        note(f"creating TrainJobs: {whole:,} are to be held whole, {largest:,} at the limit")

        async def create_whole(number: int) -> None:
            await self._client.create(TRAIN_JOBS, self._held_whole(self._whole + number))

        async def create_largest(number: int) -> None:
            number += self._largest
            finalizers = 0 if number % WITH_FINALIZERS else FINALIZERS
            job = job_at_the_limit(f"limit-{number}", self._namespace(number), finalizers)
            await self._client.create(TRAIN_JOBS, job)

        await in_flight(whole - self._whole, create_whole)
        self._whole = whole
        await self._settled(manager)
        await self._check_held_whole(manager)
        await in_flight(largest - self._largest, create_largest)
        self._largest = largest
        await self._settled(manager)
        return manager.memory()

    async def _check_held_whole(self, manager: WholeManager) -> None:
        """Raise if the cache holds much less of the objects than they have."""
        for resource in (TRAIN_JOBS, JOB_SETS):
            held = await _cached(manager, resource)
            if held < 0.9 * LARGE * (self._whole - 1):
                raise RuntimeError(f"{resource.plural} are not held whole: {held:,.0f} bytes")

    def _namespace(self, number: int) -> str:
        return self._namespaces[number % len(self._namespaces)]

    def _held_whole(self, number: int) -> dict[str, Any]:
        """Return a TrainJob that is, as its JobSet is, just small enough to be held whole."""
        job_set, job = self._sizes
        args = LARGE - SLACK - job_set
        return train_job(
            f"whole-{number}", self._namespace(number), ["x" * args], LARGE - SLACK - job - args
        )

    async def _sample(self, manager: WholeManager) -> None:
        """Create one TrainJob, to see how large its JobSet and its status are."""
        length = 1_000
        key = ObjectKey(self._namespace(0), "whole-0")
        await self._client.create(TRAIN_JOBS, train_job(key.name, key.namespace, ["x" * length]))
        self._whole = 1
        await self._settled(manager)
        job_set = _held_size(await self._client.get(JOB_SETS, key)) - length
        job = _held_size(await self._client.get(TRAIN_JOBS, key)) - length
        self._sizes = job_set, job

    async def _settled(self, manager: WholeManager) -> None:
        """Wait until each TrainJob was reconciled, its JobSet is cached, and nothing is queued."""

        async def settled() -> bool:
            samples = samples_in((await manager.metrics.fetch("GET", "/metrics")).decode())
            count = self._whole + self._largest
            reconciled = total(
                samples,
                "controller_runtime_reconcile_total",
                controller="trainjob_controller",
                result="success",
            )
            cached = total(samples, "machinery_informer_objects", kind=JOB_SETS.group_kind)
            names = ("workqueue_depth", "controller_runtime_active_workers")
            is_idle = not any(total(samples, name) for name in names)
            return reconciled >= count and cached >= count and is_idle

        await until(settled, within=WITHIN, what="all TrainJobs being reconciled", every=0.25)


async def _cached(manager: WholeManager, resource: Resource[Any]) -> float:
    """Return the bytes of a kind that the manager has cached, by its own count."""
    samples = samples_in((await manager.metrics.fetch("GET", "/metrics")).decode())
    return total(samples, "machinery_informer_bytes", kind=resource.group_kind)


def _held_size(manifest: Manifest) -> int:
    """Return the bytes that count for the cache."""
    metadata = {k: v for k, v in manifest["metadata"].items() if k != "managedFields"}
    return len(orjson.dumps({**manifest, "metadata": metadata}))


def _peak(memory: Memory) -> str:
    return f"peak {memory.peak / MIB:,.0f}"


async def measure_manager(numbers: Sequence[tuple[int, int]]) -> list[Point]:
    """Measure a manager on a control plane of its own."""
    shape = Shape(crds=(versions.JOBSET_MANIFESTS,), crd_files=CRDS)
    async with running(shape, progress=Progress(sys.stderr)) as plane, plane.client() as api:
        connection = await load_connection(plane.kubeconfig)
        async with HttpTransport(connection, user_agent="bench") as transport:
            client = Client(transport, field_manager="bench")
            await client.create(CLUSTER_TRAINING_RUNTIMES, yaml.safe_load(RUNTIME.read_text()))
            await register_webhook(api)
            namespaces = await _namespaces(plane, api)
            return await MemoryBench(plane, client, namespaces).points(numbers)


async def _namespaces(plane: ControlPlane, api: ApiClient) -> list[str]:
    return [await plane.create_namespace(api, "bench-") for _ in range(NAMESPACES)]


def report_estimate(found: Estimate, limit: int) -> bool:
    """Print the estimate; return whether it fits in the limit."""
    parts_ = (
        f"{found.measured / MIB:,.0f} measured + {found.missing:,} x {found.each / KIB:.1f} KiB"
        f" + {found.refused_pods / MIB:,.0f} of refused pods"
    )
    row(f"{TRAIN_JOBS_AT_MOST:,} hostile TrainJobs", f"{found.bytes / MIB:,.0f} MiB", parts_)
    row("memory limit of the chart", f"{limit / MIB:,.0f} MiB")
    if found.fits(limit):
        return True
    print("!: the TrainJobs do not fit in the memory limit of the chart", file=sys.stderr)
    return False


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000, help="in each store")
    parser.add_argument("--whole", type=int, default=2_200, help="TrainJobs held whole, in etcd")
    parser.add_argument("--largest", type=int, default=40, help="TrainJobs at the limit, in etcd")
    parser.add_argument("--fill", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fill:
        fill(arguments.fill, arguments.objects)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the manager ends, too
    whole, largest = arguments.whole, arguments.largest
    # With fewer, the allocator's reserves would count as memory of the TrainJobs.
    points = asyncio.run(measure_manager([(whole * 5 // 11, 0), (whole, 0), (whole, largest)]))
    held = bytes_of_each(arguments.objects)
    return int(not report_estimate(estimate(points, held), chart_limit()))


if __name__ == "__main__":
    sys.exit(main())
