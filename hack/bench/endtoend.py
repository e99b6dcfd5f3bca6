"""`make bench`: whole managers, each a process of its own, on a real API server.

The server serves JobSets, and only this program acts on them: it acts as the JobSet controller
where TrainJobs are to get on. All shares the machine: server, etcd, manager and this program.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from bench.machinery import IN_FLIGHT, in_flight, row
from bench.sample import train_job
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, JOB_SETS, TRAIN_JOBS
from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource

ROOT = Path(__file__).parent.parent.parent
CRDS = tuple(sorted((ROOT / "src" / "kftrainer" / "api" / "crds").glob("*.yaml")))
RUNTIME = ROOT / "hack" / "demo" / "runtime.yaml"
MANAGER = (sys.executable, "-m", "kftrainer.cli.main", "manager")
PORT = 29_443  # of the manager's metrics
COLUMN = re.compile(r"^(\w+)\{(.*)\} ([\d.e+]+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")
NOT_STORED = ("selfsubjectaccessreviews", "subjectaccessreviews", "tokenreviews")
FEW = 100
UPDATES = 1_000
TIMES = 5  # updates of each TrainJob; a single run is too noisy
ROUNDS = 3
WITHIN = 1_800.0
POLL_INTERVAL = 0.1
MIB = 2**20

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def note(text: str) -> None:
    """Print progress."""
    print(f"… {text}", file=sys.stderr, flush=True)


def samples_in(text: str) -> Samples:
    """The samples of a page of metrics, by name and labels."""
    found = (COLUMN.match(line) for line in text.splitlines())
    return {(m[1], frozenset(LABEL.findall(m[2]))): float(m[3]) for m in found if m}


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    wanted = set(labels.items())
    return sum(value for (found, has), value in samples.items() if found == name and wanted <= has)


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """The processes that it has started."""
    text = (Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text()
    return [int(each) for each in text.split()]


class Requests:
    """The requests to the API server, by its own count."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def count(self) -> Counter[tuple[str, str]]:
        """Requests so far by verb and resource; reads of discovery and the like left out."""
        counts: Counter[tuple[str, str]] = Counter()
        samples = samples_in((await self._api.fetch("GET", "/metrics")).decode())
        for (name, labels), value in samples.items():
            of = dict(labels)
            if name == "apiserver_request_total" and of["resource"] and of["resource"] != "leases":
                what = "/".join(filter(None, (of["resource"], of["subresource"])))
                counts[of["verb"], what] += int(value)
        return counts


class ManagerUnderTest:
    """A manager, running; `manager` makes them."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, metrics: ApiClient) -> None:
        self._process = process
        self._log = log
        self._metrics = metrics
        self._proc = Path("/proc") / str(process.pid)

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        return cpu_of(self._process.pid)

    def rss(self) -> float:
        """Bytes of memory that it has, as the kernel counts them."""
        status = (self._proc / "status").read_text()
        [kib] = re.findall(r"VmRSS:\s+(\d+) kB", status)
        return int(kib) * 1024.0

    async def reconciles(self) -> int:
        """Reconciles of TrainJobs that have ended."""
        name = "controller_runtime_reconcile_total"
        return int(total(await self._samples(), name, controller="trainjob_controller"))

    async def is_idle(self) -> bool:
        """Whether nothing waits and nothing is worked on."""
        samples = await self._samples()
        names = ("workqueue_depth", "controller_runtime_active_workers")
        return not any(total(samples, name) for name in names)

    async def _samples(self) -> Samples:
        try:
            return samples_in((await self._metrics.fetch("GET", "/metrics")).decode())
        except UnreachableError:
            if self._process.returncode is not None:
                raise RuntimeError(f"the manager ended:\n{self._log.read_text()[-2000:]}") from None
            return {}

    async def started_at(self) -> float:
        """The time of day at which its controllers started, by its log."""
        [at] = await self._logged("manager_started", 1)
        return at

    async def wait_until_created(self, job_sets: int) -> float:
        """The time at which it had created `job_sets` JobSets, from its log, without requests."""
        return (await self._logged("object_created", job_sets))[-1]

    async def _logged(self, event: str, count: int) -> list[float]:
        """The times of this number of log entries."""
        mark = f'"event":"{event}"'

        async def there() -> list[str] | None:
            if self._process.returncode is not None:
                raise RuntimeError(f"the manager ended:\n{self._log.read_text()[-2000:]}")
            lines = [line for line in self._log.read_text().splitlines() if mark in line]
            return lines if len(lines) >= count else None

        lines = await until(
            there, within=WITHIN, what=f"{count} times {event}", every=POLL_INTERVAL
        )
        return [_seconds(json.loads(line)["timestamp"]) for line in lines]

    async def settled(self, reconciles: int) -> None:
        """Wait for this number of reconciles, and until it is idle."""

        async def done() -> bool:
            return await self.reconciles() >= reconciles and await self.is_idle()

        await until(done, within=WITHIN, what=f"{reconciles} reconciles", every=POLL_INTERVAL)


def _seconds(timestamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(timestamp).timestamp()


@dataclass
class Bench:
    """All that the measurements share."""

    plane: ControlPlane
    api: ApiClient
    client: Client
    requests: Requests
    concurrency: int

    def servers_cpu(self) -> float:
        """Seconds of CPU that the API server and etcd have used; their wrappers need none."""
        wrappers = (process.pid for process in self.plane.processes if process.pid)
        return sum(cpu_of(child) for wrapper in wrappers for child in children_of(wrapper))

    async def namespace(self) -> str:
        """A new one."""
        return await self.plane.create_namespace(self.api, "bench-")

    @asynccontextmanager
    async def manager(self, namespace: str) -> AsyncIterator[ManagerUnderTest]:
        """A manager of one namespace, as people run it, with its log in a file."""
        log = self.plane.folder / "manager.log"
        address = f"{LOOPBACK}:{PORT}"
        argv = (
            *(*MANAGER, "--kubeconfig", str(self.plane.kubeconfig), "--namespace", namespace),
            *("--no-metrics-secure", "--metrics-bind-address", address),
            *("--health-probe-bind-address", "0", "--webhook-port", "0"),
            *("--concurrency", f"TrainJob={self.concurrency}"),
        )
        with log.open("w") as file:
            process = await asyncio.create_subprocess_exec(*argv, stderr=file)
        try:
            async with ApiClient(f"http://{address}", None) as metrics:
                yield ManagerUnderTest(process, log, metrics)
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

    async def create_jobs(self, namespace: str, count: int, first: int = 0) -> float:
        """Seconds to create this number of TrainJobs."""

        async def create(number: int) -> None:
            await self.client.create(TRAIN_JOBS, job_in(namespace, first + number))

        return await in_flight(count, create)

    async def count(self, resource: Resource[Any], namespace: str) -> int:
        """The number of objects, read with the cheapest request."""
        path = resource.collection_path(namespace)
        page = await self.api.request("GET", path, query={"limit": "1"})
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    async def wait_for_jobsets(self, namespace: str, count: int) -> None:
        """Wait for this number of JobSets."""

        async def there() -> bool:
            return await self.count(JOB_SETS, namespace) >= count

        await until(there, within=WITHIN, what=f"{count} JobSets", every=1.0)

    async def all_job_sets(self, namespace: str) -> list[dict[str, Any]]:
        """The JobSets that a manager has created, as it applied them."""
        return [
            bare(each) for each in (await self.client.list(JOB_SETS, namespace=namespace)).items
        ]

    async def set_jobset_statuses(
        self, namespace: str, count: int, status: Mapping[str, Any]
    ) -> None:
        """Play the JobSet controller: give all JobSets this status."""

        async def patch(number: int) -> None:
            key = ObjectKey(namespace, f"job-{number}")
            await self.client.merge_patch(JOB_SETS, key, {"status": status}, subresource="status")

        await in_flight(count, patch)


def job_in(namespace: str, number: int) -> dict[str, Any]:
    """A TrainJob as users write them, on a runtime without initializers."""
    job = train_job(number)
    job["metadata"]["namespace"] = namespace
    del job["spec"]["initializer"]
    return job


def bare(manifest: Manifest) -> dict[str, Any]:
    """The object as its author applied it, without fields that the server adds."""
    metadata = manifest["metadata"]
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    return {
        "apiVersion": JOB_SETS.api_version,
        "kind": JOB_SETS.kind,
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": manifest["spec"],
    }


@dataclass(frozen=True)
class Burst:
    """Time and CPU used, by the creator of the JobSets and by the servers."""

    seconds: float
    cpu: float
    servers_cpu: float


async def raw(bench: Bench, job_sets: list[dict[str, Any]], *, with_jobs: bool) -> Burst:
    """A bare loop that applies them; with the TrainJobs, it creates those before."""
    namespace = await bench.namespace()
    moved = deepcopy(job_sets)
    for each in moved:
        each["metadata"]["namespace"] = namespace

    async def apply(number: int) -> None:
        await bench.client.apply(JOB_SETS, moved[number], field_manager="bench")

    used, theirs = cpu_of(os.getpid()), bench.servers_cpu()
    seconds = await bench.create_jobs(namespace, len(moved)) if with_jobs else 0.0
    seconds += await in_flight(len(moved), apply)
    return Burst(seconds, cpu_of(os.getpid()) - used, bench.servers_cpu() - theirs)


async def backlog(bench: Bench, count: int) -> tuple[Burst, Burst]:
    """TrainJobs that are there when the manager starts, from that on; and the bare loop."""
    namespace = await bench.namespace()
    await bench.create_jobs(namespace, count)
    async with bench.manager(namespace) as manager:
        began = await manager.started_at()
        used, theirs = manager.cpu(), bench.servers_cpu()
        seconds = await manager.wait_until_created(count) - began
        ours = Burst(seconds, manager.cpu() - used, bench.servers_cpu() - theirs)
        await bench.wait_for_jobsets(namespace, count)
    job_sets = await bench.all_job_sets(namespace)
    return ours, await raw(bench, job_sets, with_jobs=False)


async def live(bench: Bench, count: int) -> tuple[Burst, Burst]:
    """From the first `create` to the last JobSet; and the bare loop."""
    namespace = await bench.namespace()
    async with bench.manager(namespace) as manager:
        await manager.started_at()
        used, theirs = manager.cpu(), bench.servers_cpu()
        began = time.time()  # noqa: TID251
        await bench.create_jobs(namespace, count)
        seconds = await manager.wait_until_created(count) - began
        ours = Burst(seconds, manager.cpu() - used, bench.servers_cpu() - theirs)
        await bench.wait_for_jobsets(namespace, count)
    job_sets = await bench.all_job_sets(namespace)
    return ours, await raw(bench, job_sets, with_jobs=True)


async def bursts(bench: Bench, count: int) -> None:
    """(a) how near the manager comes to what the API server can take: the best of some rounds."""
    for what, measure in (("there before it starts", backlog), ("created meanwhile", live)):
        rounds = []
        for number in range(1, ROUNDS + 1):
            note(f"burst of {count:,} TrainJobs, {what}: {number} of {ROUNDS}")
            ours, loop = await measure(bench, count)
            note(f"  {ours.seconds:.2f} s, the bare loop {loop.seconds:.2f} s")
            rounds.append((ours, loop))
        ours = min((each for each, _ in rounds), key=lambda burst: burst.seconds)
        loop = min((each for _, each in rounds), key=lambda burst: burst.seconds)
        ratio = f"{loop.seconds / ours.seconds:.2f} x the bare loop"
        row(f"(a) {count:,} TrainJobs {what}", f"{count / ours.seconds:,.0f}/s", ratio)
        for name, burst in (("manager", ours), ("bare loop", loop)):
            cpu, servers = (1e3 * used / count for used in (burst.cpu, burst.servers_cpu))
            row(
                f"    CPU for each: {name}",
                f"{cpu:.1f} ms",
                f"API server and etcd {servers:.1f} ms",
            )
    row("    the bare loop", f"{IN_FLIGHT} in flight", "our own client; applies the same JobSets")


RUNNING = {
    "replicatedJobsStatus": [
        {"name": "node", "ready": 0, "active": 1, "suspended": 0, "succeeded": 0, "failed": 0}
    ]
}
READY = {"replicatedJobsStatus": [{**RUNNING["replicatedJobsStatus"][0], "ready": 1}]}
ENDED = {
    "replicatedJobsStatus": [{**RUNNING["replicatedJobsStatus"][0], "active": 0, "succeeded": 1}],
    "terminalState": "Completed",
    "conditions": [
        {
            "type": "Completed",
            "status": "True",
            "reason": "AllJobsCompleted",
            "message": "jobset completed successfully",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


async def have(
    bench: Bench, namespace: str, count: int, matches: Callable[[Manifest], bool]
) -> None:
    """Wait until this number of TrainJobs satisfies the condition."""

    async def so() -> bool:
        jobs = (await bench.client.list(TRAIN_JOBS, namespace=namespace)).items
        return sum(map(matches, jobs)) >= count

    await until(so, within=WITHIN, what="the TrainJobs following", every=0.5)


def is_active(job: Manifest) -> bool:
    """Whether its status reports running pods."""
    return any(each["ready"] for each in job.get("status", {}).get("jobsStatus", ()))


def is_complete(job: Manifest) -> bool:
    """Whether it has ended."""
    conditions = job.get("status", {}).get("conditions", ())
    return any(each["type"] == "Complete" for each in conditions)


async def run_lifecycles(bench: Bench, count: int) -> None:
    """(b) what a TrainJob costs the API server from its creation to its end."""
    note(f"lives of {count:,} TrainJobs")
    namespace = await bench.namespace()
    async with bench.manager(namespace) as manager:
        await manager.started_at()
        before = await bench.requests.count()
        await bench.create_jobs(namespace, count)
        await bench.wait_for_jobsets(namespace, count)
        for status, followed in ((RUNNING, None), (READY, is_active), (ENDED, is_complete)):
            await bench.set_jobset_statuses(namespace, count, status)
            if followed is not None:
                await have(bench, namespace, count, followed)
        await manager.settled(count)
        requests = await bench.requests.count() - before
    ours = {
        ("POST", "trainjobs"),
        ("PATCH", "jobsets/status"),
        ("LIST", "trainjobs"),
        ("LIST", "jobsets"),
        ("POST", "namespaces"),
    }
    row("(b) requests per TrainJob, from creation to Complete", "", "by the server's own count")
    for (verb, what), number in sorted(requests.items()):
        if (verb, what) not in ours and number >= count / 100:
            row(f"    {verb} {what}", f"{number / count:.2f}")


async def cost(bench: Bench, manager: ManagerUnderTest, namespace: str, jobs: int) -> float:
    """Seconds of CPU to process a change to a settled TrainJob that requires no write."""
    mark = time.time()  # noqa: TID251

    async def update_one(number: int) -> None:
        key = ObjectKey(namespace, f"job-{number % jobs}")
        annotations = {"example.com/poke": f"{mark}-{number}"}
        patch = {"metadata": {"annotations": annotations}}
        await bench.client.merge_patch(TRAIN_JOBS, key, patch)

    done, used = await manager.reconciles(), manager.cpu()
    await in_flight(UPDATES, update_one)
    await manager.settled(done + UPDATES // 2)
    return (manager.cpu() - used) / (await manager.reconciles() - done)


async def settle(bench: Bench, namespace: str, first: int, count: int) -> None:
    """Create TrainJobs and let them run; the manager has nothing more to do then."""
    await bench.create_jobs(namespace, count - first, first)
    await bench.wait_for_jobsets(namespace, count)
    await bench.set_jobset_statuses(namespace, count, READY)
    await have(bench, namespace, count, is_active)


async def settled(bench: Bench, count: int) -> None:
    """(c) memory, (d) a restart and (e) the cost of a reconcile, with many settled TrainJobs."""
    namespace = await bench.namespace()
    costs: dict[int, float] = {}
    async with bench.manager(namespace) as manager:
        await manager.started_at()
        empty = manager.rss()
        for first, jobs in ((0, FEW), (FEW, count)):
            note(f"settling {jobs:,} TrainJobs")
            await settle(bench, namespace, first, jobs)
            await manager.settled(jobs)
            measured = [await cost(bench, manager, namespace, jobs) for _ in range(TIMES)]
            note(f"  {', '.join(f'{each * 1e6:,.0f} µs' for each in measured)} for a reconcile")
            costs[jobs] = median(measured)
        grown = manager.rss()
    await restart(bench, namespace, count, empty)
    row(
        "    the same manager, before that restart", f"{grown / MIB:,.0f} MiB", "that made them all"
    )
    few, many = costs[FEW] * 1e6, costs[count] * 1e6
    message = f"median of {TIMES}, its watch events included"
    row(f"(e) CPU of a reconcile, {FEW:,} settled", f"{few:,.0f} µs", message)
    row(
        f"    the same, {count:,} settled", f"{many:,.0f} µs", f"{many / few:.2f} x that of {FEW:,}"
    )


async def restart(bench: Bench, namespace: str, count: int, empty: float) -> None:
    """Start a manager over TrainJobs that are settled: it should look, and write nothing."""
    note(f"restart with {count:,} settled TrainJobs")
    before = await bench.requests.count()
    began = time.time()  # noqa: TID251
    async with bench.manager(namespace) as manager:
        await manager.settled(count)
        seconds = time.time() - began  # noqa: TID251
        rss, cpu = manager.rss(), manager.cpu()
    requests = await bench.requests.count() - before
    writes = {
        (verb, resource): number
        for (verb, resource), number in requests.items()
        if verb in WRITES and resource not in NOT_STORED
    }
    each = (rss - empty) / count
    row(
        f"(c) RSS, {count:,} TrainJobs and JobSets settled",
        f"{rss / MIB:,.0f} MiB",
        f"{empty / MIB:,.0f} MiB empty; {each:,.0f} bytes for each pair",
    )
    row(f"(d) restart with {count:,} settled: to idle", f"{seconds:.1f} s", f"{cpu:.1f} s of CPU")
    row(
        "    writes",
        f"{sum(writes.values())}",
        ", ".join(f"{n} {' '.join(w)}" for w, n in writes.items()),
    )


async def bench(burst: int, jobs: int, concurrency: int) -> None:
    """All of it on one control plane."""
    shape = Shape(crds=(versions.JOBSET_MANIFESTS,), crd_files=CRDS)
    async with running(shape, progress=Progress(sys.stderr)) as plane, plane.client() as api:
        connection = await load_connection(plane.kubeconfig)
        async with HttpTransport(connection, user_agent="bench") as transport:
            client = Client(transport, field_manager="bench")
            await client.create(CLUSTER_TRAINING_RUNTIMES, yaml.safe_load(RUNTIME.read_text()))
            measured = Bench(plane, api, client, Requests(api), concurrency)
            row("TrainJobs reconciled at once", f"{concurrency}")
            await bursts(measured, burst)
            await run_lifecycles(measured, burst)
            await settled(measured, jobs)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--burst", type=int, default=1_000, help="TrainJobs in a burst")
    parser.add_argument("--jobs", type=int, default=10_000, help="TrainJobs that are settled")
    parser.add_argument("--concurrency", type=int, default=5, help="TrainJobs reconciled at once")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the manager goes with us
    asyncio.run(bench(arguments.burst, arguments.jobs, arguments.concurrency))
    return 0


if __name__ == "__main__":
    sys.exit(main())
