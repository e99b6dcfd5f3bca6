"""`make bench`: what a tenant who attacks the operator costs the TrainJobs of another tenant.

A manager with its webhook and leader election runs on an API server. A victim creates TrainJobs at
a steady rate, and the time from each creation to its JobSet is measured: without anything else, in
a control attack, and in an attack. The attacker has the chart's edit role in one namespace, and
sends costly TrainJobs as dry-run creates, creates and updates, and reviews to the webhook's port.
The control attack sends the same objects at the rate that the attack reached, as another kind with
the same schema that the operator does not know: it shows what they cost the API server, etcd and a
machine with few cores without the operator.

Exits with 1 if the attack more than doubles the median latency, or if the lease was lost. More
requests at a time (`--at-a-time`) mostly measure how many cores the API server has; compare the
attack with the control attack then.
"""

import argparse
import asyncio
import json
import random
import signal
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml

from bench.admission import review
from bench.endtoend import (
    CRDS,
    MANAGER,
    MIB,
    RUNTIME,
    ManagerUnderTest,
    children_of,
    cpu_of,
    job_in,
    note,
    samples_in,
)
from bench.hostile_objects import Attack, objects_of, within_limits
from bench.machinery import row
from kftrainer.api.configuration import DEFAULT
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    JOB_SETS,
    TRAIN_JOBS,
)
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster.build import parts
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.shape import Shape
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.client.watch import Upserted
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.webhooks import registration
from kftrainer.webhooks.registration import webhook_path

RUN = Path(__file__).parent.parent / "run.py"
METRICS_PORT, WEBHOOK_PORT = 29_443, 29_444
POD_ADDRESS = "127.0.0.2"  # of the attacker: a pod does not have the API server's address
ATTACKER = "attacker"
CONTROL_JOBS = replace(TRAIN_JOBS, group="control.example.com")
ROLES = Path(__file__).parents[2] / "charts/kftrainer/templates/users/roles.yaml"
LEASE = (
    f"/apis/coordination.k8s.io/v1/namespaces/{DEFAULT_NAMESPACE}/leases/"
    f"{DEFAULT.leader_election.resource_name}"
)
STORED = 200  # TrainJobs of the attacker that exist at a time
SENT = ("accepted", "rejected")
LONGEST_LATENCY = 120.0
MOST_RATIO = 2.0  # of the victim's median latency to that without an attack
LAG = "machinery_event_loop_lag_seconds_bucket"

# The rows of the table that a TrainJob alone can have, as large as the limits allow.
AT_THE_LIMITS = (
    Attack(overrides=100, targets=100),
    Attack(overrides=100, override_volumes=600, volume_kind=1),
    Attack(overrides=90, override_volumes=4_500, volume_kind=2, update=1),
    Attack(overrides=1, override_env=6_000, env_kind=1, quantities=1),
    Attack(trainer_env=6_000, env_kind=1),
    Attack(trainer_resources=4_000, quantities=2),
    Attack(padding=1_300_000),
    Attack(args=50_000),
    Attack(job_labels=10_000),
)


def beyond_the_limits(number: int) -> Manifest:
    """Return a TrainJob as in the first attacks: distinct quantities with large exponents."""
    limits = {f"example.com/r{each}": f"{each + number}e991" for each in range(15_000)}
    return {"spec": {"trainer": {"resourcesPerNode": {"limits": limits}}}}


def payloads(runtime: str) -> list[dict[str, Any]]:
    """Return the TrainJobs of an attack, on a runtime that everybody uses."""
    jobs = [objects_of(within_limits(each), turn=n).new for n, each in enumerate(AT_THE_LIMITS)]
    jobs += [beyond_the_limits(number) for number in range(2)]
    head = {"apiVersion": TRAIN_JOBS.api_version, "kind": TRAIN_JOBS.kind}
    reference = {"runtimeRef": {"name": runtime}}
    return [
        {**head, "metadata": dict(each.get("metadata", {})), "spec": {**each["spec"], **reference}}
        for each in jobs
    ]


@dataclass(frozen=True)
class Target:
    """What the attacker knows."""

    kubeconfig: Path
    namespace: str
    runtime: str


class Attacker:
    """Sends requests at a rate, a bounded number at a time, and counts the answers."""

    def __init__(
        self,
        client: Client,
        web: aiohttp.ClientSession,
        target: Target,
        kind: Resource[Any] = TRAIN_JOBS,
    ) -> None:
        self._kind = kind
        self._client = client
        self._web = web
        self._target = target
        self._jobs = payloads(target.runtime)
        self._stored: list[tuple[int, str]] = []
        self._numbers = count()
        self.answers: Counter[str] = Counter()
        self._rng = random.Random(1)  # noqa: S311

    def attacks(self) -> Sequence[Callable[[], Awaitable[object]]]:
        """Return what an attack consists of."""
        return (self._dry_run, self._create, self._update, self._direct)

    def controls(self) -> Sequence[Callable[[], Awaitable[object]]]:
        """Return the same; who does not know the operator cannot send it reviews."""
        return (self._dry_run, self._create, self._update, self._dry_run)

    async def run(
        self, requests: Sequence[Callable[[], Awaitable[object]]], pace: "Pace", seconds: float
    ) -> None:
        """Send requests for some seconds; those for which there is no room are left out."""
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(pace.at_a_time)
        end = loop.time() + seconds

        async def send(request: Callable[[], Awaitable[object]]) -> None:
            async with room:
                try:
                    await request()
                    self.answers["accepted"] += 1
                except (KubeError, aiohttp.ClientError) as error:
                    self.answers["rejected"] += 1
                    self.answers[f"({type(error).__name__})"] += 1

        async with asyncio.TaskGroup() as tasks:
            for number in count():
                if loop.time() >= end:
                    break
                if room.locked():
                    self.answers["left out"] += 1
                else:
                    tasks.create_task(send(requests[number % len(requests)]))
                await asyncio.sleep(1 / pace.rate)

    def _next(self) -> tuple[int, dict[str, Any]]:
        number = next(self._numbers)
        job = self._jobs[number % len(self._jobs)]
        name = {"name": f"attack-{number}", "namespace": self._target.namespace}
        kind = {"apiVersion": self._kind.api_version, "kind": self._kind.kind}
        return number, {**job, **kind, "metadata": {**job["metadata"], **name}}

    async def _dry_run(self) -> None:
        await self._client.create(self._kind, self._next()[1], dry_run=True)

    async def _create(self) -> None:
        number, job = self._next()
        if len(self._stored) >= STORED:
            _, oldest = self._stored.pop(0)
            await self._client.delete(self._kind, ObjectKey(self._target.namespace, oldest))
        suspended = {**job["spec"], "suspend": number % 2 == 0}
        await self._client.create(self._kind, {**job, "spec": suspended})
        self._stored.append((number, job["metadata"]["name"]))

    async def _update(self) -> None:
        if not self._stored:
            return await self._dry_run()
        _, name = self._rng.choice(self._stored)
        key, mark = ObjectKey(self._target.namespace, name), str(next(self._numbers))
        patch = {"metadata": {"annotations": {"example.com/mark": mark}}}
        await self._client.merge_patch(self._kind, key, patch)
        return None

    async def _direct(self) -> None:
        number, job = self._next()
        asked = review(self._target.namespace, number)
        asked["request"]["object"] = job
        url = f"https://{LOOPBACK}:{WEBHOOK_PORT}{webhook_path(TRAIN_JOBS)}?timeout=10s"
        headers = {"Content-Type": "application/json"}
        body = aiohttp.BytesPayload(orjson.dumps(asked)[: 2**20])
        async with self._web.post(url, data=body, headers=headers) as answer:
            await answer.read()
            self.answers[f"webhook {answer.status}"] += 1


@dataclass(frozen=True)
class Pace:
    """How fast the attacker is."""

    rate: float  # requests a second
    at_a_time: int


async def attack(target: Target, kind: str, pace: Pace, seconds: float) -> None:
    """Be the attacker, in a process of its own; prints the answers as JSON."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    connection = await load_connection(target.kubeconfig)
    async with (
        HttpTransport(connection, user_agent="attacker") as transport,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, local_addr=(POD_ADDRESS, 0))
        ) as web,
    ):
        client = Client(transport, field_manager="attacker")
        is_control = kind == "control"
        attacker = Attacker(client, web, target, CONTROL_JOBS if is_control else TRAIN_JOBS)
        requests = attacker.controls() if is_control else attacker.attacks()
        await attacker.run(requests, pace, seconds)
        print(json.dumps(attacker.answers), flush=True)


def control_definition() -> dict[str, Any]:
    """Return the definition of a kind with the schema of TrainJobs."""
    [crd] = [each for each in CRDS if each.name.startswith(TRAIN_JOBS.plural)]
    definition: dict[str, Any] = yaml.safe_load(crd.read_text())
    name = f"{TRAIN_JOBS.plural}.{CONTROL_JOBS.group}"
    spec = {**definition["spec"], "group": CONTROL_JOBS.group}
    return {**definition, "metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True)
class Latencies:
    """Seconds from the creation of TrainJobs to their JobSets, in order."""

    found: Sequence[float]
    missing: int
    created: Sequence[float]  # until the API server has answered

    def with_(self, other: "Latencies") -> "Latencies":
        """Return both measurements as one."""
        return Latencies(
            [*self.found, *other.found],
            self.missing + other.missing,
            [*self.created, *other.created],
        )

    def at(self, share: float) -> float:
        """Return a quantile; a TrainJob without a JobSet took longer than all others."""
        everything = sorted([*self.found, *[LONGEST_LATENCY] * self.missing])
        return everything[min(len(everything) - 1, int(share * len(everything)))]

    def __str__(self) -> str:
        times = (f"p{round(100 * each)} {1e3 * self.at(each):,.0f} ms" for each in (0.5, 0.9, 0.99))
        created = sorted(self.created)[len(self.created) // 2]
        return (
            f"{', '.join(times)} of {len(self.found)}, {self.missing} without a JobSet; "
            f"the create alone p50 {1e3 * created:,.0f} ms"
        )


class Victim:
    """Creates TrainJobs at a rate, and sees when each one's JobSet is there."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._numbers = count()
        self._begun: dict[str, float] = {}
        self._took: dict[str, float] = {}

    async def watch(self) -> None:
        """Follow the JobSets until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            async with self._client.watch(
                JOB_SETS, namespace=self._namespace, timeout_seconds=600, send_initial_events=True
            ) as events:
                async for event in events:
                    if isinstance(event, Upserted):
                        name = event.manifest["metadata"]["name"]
                        began = self._begun.get(name)
                        if began is not None:
                            self._took.setdefault(name, loop.time() - began)

    async def create(self, rate: float, seconds: float) -> Latencies:
        """Create TrainJobs for some seconds, whatever becomes of them, and wait for JobSets."""
        loop = asyncio.get_running_loop()
        end, names, created = loop.time() + seconds, list[str](), list[float]()

        async def create(manifest: dict[str, Any]) -> None:
            name = manifest["metadata"]["name"]
            self._begun[name] = loop.time()
            names.append(name)
            for _ in range(20):
                try:
                    await self._client.create(TRAIN_JOBS, manifest)
                except KubeError as error:
                    note(f"  the victim: {error}")
                    await asyncio.sleep(0.2)
                else:
                    created.append(loop.time() - self._begun[name])
                    return

        async with asyncio.TaskGroup() as tasks:
            while loop.time() < end:
                tasks.create_task(create(job_in(self._namespace, next(self._numbers))))
                await asyncio.sleep(1 / rate)

        async def complete() -> bool:
            return all(name in self._took for name in names)

        try:
            await until(complete, within=LONGEST_LATENCY, what="all JobSets", every=0.5)
        except Exception as error:  # noqa: BLE001  that is a result, too
            note(f"  {error}")
        found = [self._took[name] for name in names if name in self._took]
        return Latencies(found, len(names) - len(found), created)


class LeaseWatch:
    """Sees whether the lease was renewed in time, and who has it."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.holders: set[str] = set()
        self.longest = 0.0

    async def watch(self) -> None:
        """Look until cancelled."""
        last: datetime | None = None
        while True:
            lease = await self._api.get_or_none(LEASE)
            if lease is not None and lease["spec"].get("renewTime"):
                renewed = datetime.fromisoformat(lease["spec"]["renewTime"])
                self.holders.add(lease["spec"].get("holderIdentity", ""))
                if last is not None:
                    self.longest = max(self.longest, (renewed - last).total_seconds())
                last = renewed
            await asyncio.sleep(0.5)


class AttackBench:
    """All that the measurements share."""

    def __init__(self, plane: ControlPlane, api: ApiClient, target: Target, victim: Victim) -> None:
        self._plane = plane
        self._api = api
        self._target = target
        self.victim = victim

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[tuple[ManagerUnderTest, ApiClient]]:
        """A manager of all namespaces, with its webhook registered, and with leader election."""
        log, metrics = self._plane.folder / "manager.log", f"{LOOPBACK}:{METRICS_PORT}"
        argv = (
            *(*MANAGER, "--kubeconfig", str(self._plane.kubeconfig), "--leader-elect"),
            *("--leader-election-namespace", DEFAULT_NAMESPACE),
            *("--webhook-host", LOOPBACK, "--webhook-port", str(WEBHOOK_PORT)),
            *("--no-metrics-secure", "--metrics-bind-address", metrics),
            *("--health-probe-bind-address", "0"),
        )
        service = DEFAULT.cert_management.webhook_service_name
        for each in registration.beside(
            service, DEFAULT_NAMESPACE, host=LOOPBACK, port=WEBHOOK_PORT
        ):
            await self._api.create(each)
        with log.open("w") as file:
            process = await asyncio.create_subprocess_exec(*argv, stderr=file)
        try:
            async with ApiClient(f"http://{metrics}", None) as asked:
                manager = ManagerUnderTest(process, log, asked)
                await manager.started_at()
                yield manager, asked
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

    async def measure(
        self, kind: str, rate: float, seconds: float, pace: Pace | None = None
    ) -> tuple[Latencies, float]:
        """Return the victim's latencies, and the rate of the attack that went on meanwhile."""
        note(f"{kind}: {seconds:.0f} s")
        if pace is None:
            return await self.victim.create(rate, seconds), 0.0
        told = asyncio.Queue[bytes]()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._attack(kind, seconds + 4, pace, told))
            await asyncio.sleep(2)  # until it has begun
            found = await self.victim.create(rate, seconds)
        answers = json.loads((await told.get()).splitlines()[-1])
        note(f"  answers to the attacker: {answers}")
        sent = sum(number for what, number in answers.items() if what in SENT)
        return found, sent / (seconds + 4)

    def servers_cpu(self) -> float:
        """Seconds of CPU that the API server and etcd have used; their leashes need none."""
        leashes = (process.pid for process in self._plane.processes if process.pid)
        return sum(cpu_of(child) for leash in leashes for child in children_of(leash))

    async def _attack(
        self, kind: str, seconds: float, pace: Pace, told: "asyncio.Queue[bytes]"
    ) -> None:
        target = self._target
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", str(RUN), "bench.attack"),
            *("--attacker", kind, "--seconds", str(seconds)),
            *("--attack-rate", str(pace.rate), "--at-a-time", str(pace.at_a_time)),
            *("--kubeconfig", str(target.kubeconfig), "--namespace", target.namespace),
            *("--runtime", target.runtime),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise RuntimeError("the attacker failed")
        told.put_nowait(output)


def lag_above(text: str, seconds: float) -> int:
    """Return how often the event loop was later than this, by the manager's own count."""
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in samples_in(text.replace("+Inf", "inf")).items()
        if name == LAG
    }
    if not buckets:
        return 0
    below = max((value for bound, value in buckets.items() if bound <= seconds), default=0.0)
    return int(max(buckets.values()) - below)


def show(kinds: dict[str, Latencies]) -> None:
    """Print the latencies, and their ratios."""
    for kind, found in kinds.items():
        row(f"create to JobSet, {kind}", f"{1e3 * found.at(0.5):,.0f} ms", str(found))
    for one, other in (("attack", "quiet"), ("control", "quiet"), ("attack", "control")):
        if one in kinds and other in kinds:
            ratios = [kinds[one].at(each) / kinds[other].at(each) for each in (0.5, 0.99)]
            text = f"p50; p99 {ratios[1]:.2f} x"
            row(f"    {one} / {other}", f"{ratios[0]:.2f} x", text)


def edit_role() -> dict[str, Any]:
    """Return the chart's edit role, with the same rules for the control attack."""
    rules = [*_rules_in_chart("view"), *_rules_in_chart("edit")]
    control = [
        {**each, "apiGroups": [CONTROL_JOBS.group]}
        for each in rules
        if TRAIN_JOBS.group in each["apiGroups"]
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "bench-edit"},
        "rules": [*rules, *control],
    }


def _rules_in_chart(role: str) -> list[dict[str, Any]]:
    _, _, rest = ROLES.read_text().partition(f'{{{{- define "kftrainer.{role}Rules" -}}}}')
    rules: list[dict[str, Any]] = yaml.safe_load(rest.partition("{{- end -}}")[0])
    return rules


def _grants(namespace: str) -> Iterator[dict[str, Any]]:
    role = edit_role()
    yield role
    yield {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "bench-edit", "namespace": namespace},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role["metadata"]["name"],
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ATTACKER}],
    }


@dataclass(frozen=True)
class Plan:
    """What is measured, in seconds and requests a second."""

    seconds: float
    quiet: float
    rate: float
    pace: Pace


async def bench(plan: Plan) -> bool:
    """Measure all on one control plane; return whether the results are within the limits."""
    shape = Shape(crds=(parts.JOBSET_MANIFESTS,), crd_files=CRDS)
    async with running(shape, progress=Progress(sys.stderr)) as plane, plane.client() as api:
        connection = await load_connection(plane.kubeconfig)
        async with HttpTransport(connection, user_agent="victim") as transport:
            client = Client(transport, field_manager="victim")
            runtime = yaml.safe_load(RUNTIME.read_text())
            await client.create(CLUSTER_TRAINING_RUNTIMES, runtime)
            await api.create(control_definition())
            theirs, ours = [
                await plane.create_namespace(api, prefix) for prefix in ("attacker-", "victim-")
            ]
            for each in _grants(theirs):
                await api.create(each)
            kubeconfig = plane.kubeconfig_for(ATTACKER)
            target = Target(kubeconfig, theirs, runtime["metadata"]["name"])
            measured = AttackBench(plane, api, target, Victim(client, ours))
            return await _measure_all(measured, api, plan)


async def _measure_all(measured: AttackBench, api: ApiClient, plan: Plan) -> bool:
    lease, kinds, pace = LeaseWatch(api), dict[str, Latencies](), plan.pace
    async with measured.manager() as (manager, metrics), asyncio.TaskGroup() as tasks:
        empty = manager.rss()
        watches = [
            tasks.create_task(measured.victim.watch()),
            tasks.create_task(lease.watch()),
        ]
        await measured.measure("quiet", plan.rate, plan.quiet / 4)  # until all is warm
        kinds["quiet"], _ = await measured.measure("quiet", plan.rate, plan.quiet)
        for kind in ("attack", "control"):
            before = (await metrics.fetch("GET", "/metrics")).decode()
            used, servers = manager.cpu(), measured.servers_cpu()
            # The attack is as fast as it can be, and the control no faster.
            kinds[kind], rate = await measured.measure(kind, plan.rate, plan.seconds, pace)
            pace = replace(pace, rate=rate)
            used, servers = manager.cpu() - used, measured.servers_cpu() - servers
            after = (await metrics.fetch("GET", "/metrics")).decode()
            late = lag_above(after, 0.1) - lag_above(before, 0.1)
            cpu = f"CPU {used:.0f} s of the manager, {servers:.0f} s of API server and etcd"
            row(f"{kind}: requests", f"{rate:.1f}/s", f"{cpu}; event loop late {late} times")
        afterwards, _ = await measured.measure("quiet", plan.rate, plan.quiet)
        kinds["quiet"] = kinds["quiet"].with_(afterwards)
        full = manager.rss()
        for task in watches:
            task.cancel()
    show(kinds)
    row("lease: holders", f"{len(lease.holders)}", f"longest renewal {lease.longest:.1f} s")
    row("memory of the manager", f"{full / MIB:,.0f} MiB", f"{empty / MIB:,.0f} MiB before")
    is_slow = kinds["attack"].at(0.5) > MOST_RATIO * kinds["quiet"].at(0.5)
    if is_slow:
        print(f"!: the median latency is more than {MOST_RATIO:g} x as long", file=sys.stderr)
    is_lost = (
        len(lease.holders) != 1 or lease.longest > DEFAULT.leader_election.lease_duration.seconds
    )
    if is_lost:
        print("!: the lease was lost", file=sys.stderr)
    return not (is_slow or is_lost)


def main() -> int:
    """Measure and print, or be the attacker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds without one")
    parser.add_argument("--rate", type=float, default=2.0, help="TrainJobs a second of the victim")
    parser.add_argument("--attack-rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--at-a-time", type=int, default=1, help="requests of the attacker")
    parser.add_argument("--attacker", choices=["attack", "control"], help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--namespace", help=argparse.SUPPRESS)
    parser.add_argument("--runtime", help=argparse.SUPPRESS)
    told = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the manager goes with us
    pace = Pace(told.attack_rate, told.at_a_time)
    if told.attacker:
        target = Target(told.kubeconfig, told.namespace, told.runtime)
        asyncio.run(attack(target, told.attacker, pace, told.seconds))
        return 0
    return int(not asyncio.run(bench(Plan(told.seconds, told.quiet, told.rate, pace))))


if __name__ == "__main__":
    sys.exit(main())
