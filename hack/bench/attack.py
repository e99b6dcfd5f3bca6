"""`make bench`: what a tenant who attacks the operator costs the TrainJobs of another tenant.

A whole manager runs on an API server. A victim creates small, medium and large TrainJobs at a
steady rate, and the time from each creation to its JobSet is measured: without anything else, in an
attack, and in a control attack. `bench.attacker` has what the attacker sends; the runtimes that it
uses were created by an admin of its namespace. The control attack sends the same objects at the
rate that the attack reached, as another kind with the same schema that the operator does not watch:
it shows what they cost the API server, etcd and a machine with few cores without the operator. What
the attack has stored is deleted before.

The attacker has one client, which sends a request as soon as the one before is answered; several
clients (`--at-a-time`) would measure how an API server with few cores is saturated. The webhook has
a path token, as the chart installs it.

Exits with 1 if one of these is not true:

- Each class of requests, and each row of the attack that is within the limits, was sent.
- The median latency of each size of TrainJobs is at most MOST_RATIO times the one without anything
  else. The slowest of them (the 99th percentile, or the 90th of few) take at most
  MOST_RATIO_OF_SLOWEST times the time that they take in the control attack: on few cores the API
  server's own work delays them, too.
- Each TrainJob of the victim has a JobSet.
- The lease had one holder, and was renewed in time.
- The event loop's delay, in 99 of 100 measurements, is at most LONGEST_WAIT longer than without an
  attack, and so is the time until probes are answered than in the control attack. No probe fails.
- The manager's memory stays within the limit of the chart.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import yaml

from bench.attacker import (
    CLASSES,
    CLASSES_OF_CONTROL,
    Pace,
    Tally,
    Target,
    attack,
    rows,
    runtime_in,
)
from bench.endtoend import CRDS, RUNTIME, children_of, cpu_of, job_in, note, samples_in
from bench.machinery import row
from bench.whole_manager import MIB, WholeManager, chart_limit, register_webhook, whole_manager
from kftrainer.api.configuration import DEFAULT
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    JOB_SETS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.client.watch import Upserted

RUN = Path(__file__).parent.parent / "run.py"
ATTACKER = "attacker"
CONTROL_JOBS = replace(TRAIN_JOBS, group="control.example.com")
KINDS = {"attack": TRAIN_JOBS, "control": CONTROL_JOBS}
ROLES = Path(__file__).parents[2] / "charts/kftrainer/templates/users/roles.yaml"
LEASE = (
    f"/apis/coordination.k8s.io/v1/namespaces/{DEFAULT_NAMESPACE}/leases/"
    f"{DEFAULT.leader_election.resource_name}"
)
LONGEST_LATENCY = 120.0
IDLE_TIMES = 12  # that a manager is seen to be idle in a row: large objects have pauses
MOST_RATIO = 2.0  # of the victim's median latency
MOST_RATIO_OF_SLOWEST = 5.0
ENOUGH_FOR_P99 = 50  # TrainJobs; of fewer, the 99th percentile is the slowest one
LONGEST_WAIT = 0.1  # seconds that the event loop and the probes may wait because of the attack
LAG = "machinery_event_loop_lag_seconds_bucket"
QUIET, ATTACK, CONTROL = "quiet", "attack", "control"
SIZES = {"small": 0, "medium": 10_000, "large": 40_000}  # bytes more than the sample's 2 KiB
# Large ones are reconciled with pauses: they come so seldom that they do not wait for each other.
TURNS = ("small", "medium", "small", "medium", "large", "small", "medium", "small", "medium")
WORD = 500
TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105  in the webhook's path
SHARES = (0.5, 0.9, 0.99)


def share_of(values: Sequence[float], share: float) -> float:
    """Return a quantile; 0 if there are no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(frozen=True)
class Latencies:
    """Seconds from the creation of TrainJobs to their JobSets."""

    found: Sequence[float]
    missing: int = 0
    created: Sequence[float] = ()  # seconds until the API server has answered the creation

    def with_(self, other: "Latencies") -> "Latencies":
        """Return both measurements as one."""
        return Latencies(
            [*self.found, *other.found],
            self.missing + other.missing,
            [*self.created, *other.created],
        )

    def at(self, share: float) -> float:
        """Return a quantile; a TrainJob without a JobSet took longer than all others."""
        return share_of([*self.found, *[LONGEST_LATENCY] * self.missing], share)

    def __str__(self) -> str:
        times = (f"p{round(100 * each)} {1e3 * self.at(each):,.0f}" for each in SHARES)
        missing = f", {self.missing} without a JobSet" if self.missing else ""
        created = f"the creation alone p50 {1e3 * share_of(self.created, 0.5):,.0f} ms"
        return f"{', '.join(times)} ms of {len(self.found)}{missing}; {created}"


def lag_quantile(
    before: Mapping[float, float], after: Mapping[float, float], share: float
) -> float:
    """Return a quantile of the delays between two scrapes of the histogram's buckets.

    Within a bucket, delays are assumed to be evenly spread, as `histogram_quantile` does.
    """
    counts = [(le, after[le] - before.get(le, 0.0)) for le in sorted(after)]
    if not counts or not counts[-1][1]:
        return 0.0
    wanted = share * counts[-1][1]
    low, below = 0.0, 0.0
    for le, so_far in counts:
        if so_far >= wanted:
            return low if le == inf else low + (le - low) * (wanted - below) / (so_far - below)
        low, below = le, so_far
    return low


def lag_buckets(text: str) -> Mapping[float, float]:
    """Return the manager's own measurements of its event loop's delay, by their upper bounds."""
    return {
        float(dict(labels)["le"]): value
        for (name, labels), value in samples_in(text.replace("+Inf", "inf")).items()
        if name == LAG
    }


def waited_for_cpu(pid: int) -> float:
    """Return the seconds for which a process was ready to run and had no core."""
    return int((Path("/proc") / str(pid) / "schedstat").read_text().split()[1]) / 1e9


@dataclass
class Phase:
    """What was measured in one phase."""

    latencies: Mapping[str, Latencies] = field(default_factory=dict)  # by size
    tally: Tally = field(default_factory=Tally)
    lag: float = 0.0  # seconds, 99th percentile
    late: int = 0  # delays of more than LONGEST_WAIT
    waits: Sequence[float] = ()  # seconds until probes were answered
    failed_probes: int = 0

    def with_(self, other: "Phase") -> "Phase":
        """Return two measurements of the same kind as one; of delays, the longer."""
        return Phase(
            {size: each.with_(other.latencies[size]) for size, each in self.latencies.items()},
            self.tally,
            max(self.lag, other.lag),
            self.late + other.late,
            [*self.waits, *other.waits],
            self.failed_probes + other.failed_probes,
        )


@dataclass(frozen=True)
class LeaseHistory:
    """Who held the lease, how often it changed hands, and the longest time between renewals."""

    holders: Sequence[str]
    transitions: int
    longest: float

    @property
    def was_lost(self) -> bool:
        """Whether a manager lost the lease, or could have."""
        deadline = DEFAULT.leader_election.renew_deadline.seconds
        return len(self.holders) != 1 or self.transitions > 0 or self.longest > deadline


@dataclass(frozen=True)
class Findings:
    """All that was measured."""

    phases: Mapping[str, Phase]
    lease: LeaseHistory
    peak: int  # bytes of the manager
    limit: int

    def problems(self) -> Iterator[str]:
        """Yield what is not as it should be."""
        yield from self._incomplete()
        yield from self._slow()
        yield from self._unresponsive()
        if self.lease.was_lost:
            yield f"the lease was lost, or renewed too late: {self.lease}"
        if self.peak > self.limit:
            yield f"the manager took {self.peak / MIB:,.0f} MiB, more than the chart's limit"

    def _incomplete(self) -> Iterator[str]:
        for kind, classes in ((ATTACK, CLASSES), (CONTROL, CLASSES_OF_CONTROL)):
            tally = self.phases[kind].tally
            for each in tally.missing(classes):
                yield f"{kind}: there was no request of the class {each!r}"
        stored = self.phases[ATTACK].tally.stored_rows
        for attacked in rows():
            if attacked.must_be_stored and not stored[attacked.name]:
                yield f"attack: no TrainJob of the row {attacked.name!r} was stored"

    def _slow(self) -> Iterator[str]:
        for size, attacked in self.phases[ATTACK].latencies.items():
            slowest = 0.99 if len(attacked.found) >= ENOUGH_FOR_P99 else 0.9
            for kind, share, most in (
                (QUIET, 0.5, MOST_RATIO),
                (CONTROL, slowest, MOST_RATIO_OF_SLOWEST),
            ):
                other = self.phases[kind].latencies[size]
                if attacked.at(share) > most * other.at(share):
                    ratio = attacked.at(share) / other.at(share)
                    yield (
                        f"{size} TrainJobs: p{round(100 * share)} is {ratio:.1f} x that of the "
                        f"phase {kind!r}, more than {most:g} x"
                    )
            if attacked.missing:
                yield f"{size} TrainJobs: {attacked.missing} without a JobSet"

    def _unresponsive(self) -> Iterator[str]:
        quiet, attacked, control = (self.phases[each] for each in (QUIET, ATTACK, CONTROL))
        if attacked.lag > LONGEST_WAIT + quiet.lag:
            yield f"the event loop was {1e3 * attacked.lag:.0f} ms late (p99)"
        waits = share_of(attacked.waits, 0.99)
        if waits > LONGEST_WAIT + share_of(control.waits, 0.99):
            yield f"probes were answered after {1e3 * waits:.0f} ms (p99)"
        if attacked.failed_probes:
            yield f"{attacked.failed_probes} probes failed"


def victim_job(namespace: str, number: int, size: str) -> dict[str, Any]:
    """Return a TrainJob as users write them, with arguments that make it as large as wanted."""
    job = job_in(namespace, number)
    job["spec"]["trainer"]["args"] = ["x" * WORD] * (SIZES[size] // WORD)
    return job


class Victim:
    """Creates TrainJobs at a rate, and observes when each one's JobSet exists."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._numbers = count()
        self._begun: dict[str, float] = {}
        self._created: dict[str, float] = {}
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

    async def create(self, rate: float, seconds: float) -> Mapping[str, Latencies]:
        """Create TrainJobs of all sizes for some seconds, and wait for their JobSets."""
        loop = asyncio.get_running_loop()
        end, created = loop.time() + seconds, {size: list[str]() for size in SIZES}
        async with asyncio.TaskGroup() as tasks:
            while loop.time() < end:
                number = next(self._numbers)
                size = TURNS[number % len(TURNS)]
                job = victim_job(self._namespace, number, size)
                created[size].append(job["metadata"]["name"])
                tasks.create_task(self._create(job))
                await asyncio.sleep(1 / rate)
        names = [name for each in created.values() for name in each]

        async def complete() -> bool:
            return all(name in self._took for name in names)

        try:
            await until(complete, within=LONGEST_LATENCY, what="all JobSets", every=0.5)
        except Exception as error:  # noqa: BLE001  that is a result, too
            note(f"  {error}")
        return {size: self._latencies(names) for size, names in created.items()}

    def _latencies(self, names: Sequence[str]) -> Latencies:
        found = [self._took[name] for name in names if name in self._took]
        created = [self._created[name] for name in names if name in self._created]
        return Latencies(found, len(names) - len(found), created)

    async def _create(self, manifest: dict[str, Any]) -> None:
        name, loop = manifest["metadata"]["name"], asyncio.get_running_loop()
        self._begun[name] = loop.time()
        for _ in range(20):
            try:
                await self._client.create(TRAIN_JOBS, manifest)
            except KubeError as error:
                note(f"  the victim: {error}")
                await asyncio.sleep(0.2)
            else:
                self._created[name] = loop.time() - self._begun[name]
                return


class LeaseWatch:
    """Records who holds the lease, and when it is renewed."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._holders: list[str] = []
        self._transitions: list[int] = []
        self._longest = 0.0

    @property
    def history(self) -> LeaseHistory:
        """What was observed so far."""
        changed = max(self._transitions, default=0) - min(self._transitions, default=0)
        return LeaseHistory(self._holders, changed, self._longest)

    async def watch(self) -> None:
        """Read the lease until cancelled."""
        last: datetime | None = None
        while True:
            spec = ((await self._api.get_or_none(LEASE)) or {}).get("spec", {})
            if spec.get("renewTime"):
                renewed = datetime.fromisoformat(spec["renewTime"])
                holder = spec.get("holderIdentity", "")
                if [holder] != self._holders[-1:]:
                    self._holders.append(holder)
                self._transitions.append(spec.get("leaseTransitions", 0))
                if last is not None:
                    self._longest = max(self._longest, (renewed - last).total_seconds())
                last = renewed
            await asyncio.sleep(0.25)


class Prober:
    """Calls the probes as a kubelet does, but more often, and measures the time."""

    def __init__(self, probes: ApiClient) -> None:
        self._probes = probes
        self.waits: list[float] = []
        self.failed = 0

    async def watch(self) -> None:
        """Ask until cancelled."""
        loop = asyncio.get_running_loop()
        for number in count():
            began = loop.time()
            try:
                async with asyncio.timeout(10):
                    await self._probes.fetch("GET", ("/healthz", "/readyz")[number % 2])
            except (ApiError, UnreachableError, TimeoutError):
                self.failed += 1
            self.waits.append(loop.time() - began)
            await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Plan:
    """What is measured, in seconds and requests a second."""

    seconds: float
    quiet: float
    rate: float
    pace: Pace
    has_token: bool


class AttackBench:
    """Measures phases with one manager."""

    def __init__(self, plane: ControlPlane, target: Target, victim: Victim, plan: Plan) -> None:
        self._plane = plane
        self._target = target
        self._victim = victim
        self._plan = plan

    async def quiet(self, manager: WholeManager) -> Phase:
        """Measure without an attack."""
        async with self._phase(manager, QUIET, self._plan.quiet) as found:
            found.latencies = await self._victim.create(self._plan.rate, self._plan.quiet)
        return found

    async def attacked(self, manager: WholeManager, kind: str, pace: Pace) -> tuple[Phase, float]:
        """Measure during an attack; also return the rate that it reached."""
        seconds, waited = self._plan.seconds, waited_for_cpu(manager.process.pid)
        used, servers = manager.observed.cpu(), self._servers_cpu()
        async with self._phase(manager, kind, seconds) as found, asyncio.TaskGroup() as tasks:
            begun = asyncio.Event()
            attacker = tasks.create_task(self._attacker(kind, seconds + 4, pace, begun))
            await begun.wait()
            await asyncio.sleep(2)  # until the attack has its full effect
            found.latencies = await self._victim.create(self._plan.rate, seconds)
        found.tally = attacker.result()
        rate = found.tally.sent / (seconds + 4)
        used, servers = manager.observed.cpu() - used, self._servers_cpu() - servers
        waited = waited_for_cpu(manager.process.pid) - waited
        cpu = (
            f"CPU {used:.0f} s of the manager, which waited {waited:.0f} s for a core; "
            f"{servers:.0f} s of API server and etcd"
        )
        row(f"{kind}: requests", f"{rate:.1f}/s", cpu)
        for name, number in sorted(found.tally.classes.items()):
            row(f"    {name}", f"{number:,}")
        for error, number in found.tally.errors.most_common(3):
            note(f"  {number} x {error}")
        return found, rate

    async def clean_up(self, manager: WholeManager) -> None:
        """Delete what the attacker has stored, and wait until the manager has nothing to do."""
        note("deleting what the attacker has stored")
        async with self._plane.client() as api:
            for resource in (TRAIN_JOBS, JOB_SETS):
                path = resource.collection_path(self._target.namespace)
                await api.request("DELETE", path)
        idle = 0

        async def settled() -> bool:
            nonlocal idle
            idle = idle + 1 if await manager.observed.is_idle() else 0
            return idle > IDLE_TIMES

        await until(settled, within=LONGEST_LATENCY, what="the manager being idle", every=0.25)

    @asynccontextmanager
    async def _phase(
        self, manager: WholeManager, kind: str, seconds: float
    ) -> AsyncIterator[Phase]:
        """Measure the event loop and the probes for the length of the block."""
        note(f"{kind}: {seconds:.0f} s")
        found, prober = Phase(), Prober(manager.probes)
        before = lag_buckets((await manager.metrics.fetch("GET", "/metrics")).decode())
        async with asyncio.TaskGroup() as tasks:
            probing = tasks.create_task(prober.watch())
            yield found
            probing.cancel()
        after = lag_buckets((await manager.metrics.fetch("GET", "/metrics")).decode())
        found.lag = lag_quantile(before, after, 0.99)
        late = [each[inf] - each[LONGEST_WAIT] for each in (after, before)]
        found.late = int(late[0] - late[1])
        found.waits, found.failed_probes = prober.waits, prober.failed

    def _servers_cpu(self) -> float:
        """Seconds of CPU that the API server and etcd have used; their wrappers need none."""
        wrappers = (process.pid for process in self._plane.processes if process.pid)
        return sum(cpu_of(child) for wrapper in wrappers for child in children_of(wrapper))

    async def _attacker(self, kind: str, seconds: float, pace: Pace, begun: asyncio.Event) -> Tally:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", str(RUN), "bench.attack"),
            *("--attacker", kind, "--seconds", str(seconds)),
            *("--attack-rate", str(pace.rate), "--at-a-time", str(pace.at_a_time)),
            *("--kubeconfig", str(self._target.kubeconfig)),
            *("--namespace", self._target.namespace),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            if process.stdout is not None and await process.stdout.readline():
                begun.set()
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise RuntimeError("the attacker failed")
        return Tally.from_json(output.splitlines()[-1])


def edit_role() -> dict[str, Any]:
    """Return the chart's edit role, with the same rules for the control attack."""
    found = [*_rules_in_chart("view"), *_rules_in_chart("edit")]
    control = [
        {**each, "apiGroups": [CONTROL_JOBS.group]}
        for each in found
        if TRAIN_JOBS.group in each["apiGroups"]
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "bench-edit"},
        "rules": [*found, *control],
    }


def _rules_in_chart(role: str) -> list[dict[str, Any]]:
    _, _, rest = ROLES.read_text().partition(f'{{{{- define "kftrainer.{role}Rules" -}}}}')
    found: list[dict[str, Any]] = yaml.safe_load(rest.partition("{{- end -}}")[0])
    return found


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


def control_definition() -> dict[str, Any]:
    """Return the definition of a kind with the schema of TrainJobs."""
    [crd] = [each for each in CRDS if each.name.startswith(TRAIN_JOBS.plural)]
    definition: dict[str, Any] = yaml.safe_load(crd.read_text())
    name = f"{TRAIN_JOBS.plural}.{CONTROL_JOBS.group}"
    spec = {**definition["spec"], "group": CONTROL_JOBS.group}
    return {**definition, "metadata": {"name": name}, "spec": spec}


async def _create_runtimes(client: Client, namespace: str) -> None:
    """Create the runtimes of the attack, as an admin of the namespace would."""
    for index, each in enumerate(rows()):
        runtime = runtime_in(namespace, index, each.within[0].runtime)
        try:
            await client.create(TRAINING_RUNTIMES, runtime)
        except KubeError as error:
            note(f"the runtime of {each.name!r} is rejected: {str(error)[:100]}")


async def bench(plan: Plan) -> bool:
    """Measure all on one control plane; return whether the results are within the limits."""
    shape = Shape(crds=(versions.JOBSET_MANIFESTS, versions.COSCHEDULING_MANIFESTS), crd_files=CRDS)
    async with running(shape, progress=Progress(sys.stderr)) as plane, plane.client() as api:
        connection = await load_connection(plane.kubeconfig)
        async with HttpTransport(connection, user_agent="victim") as transport:
            client = Client(transport, field_manager="victim")
            await client.create(CLUSTER_TRAINING_RUNTIMES, yaml.safe_load(RUNTIME.read_text()))
            await api.create(control_definition())
            await register_webhook(api, TOKEN if plan.has_token else "")
            theirs, ours = [
                await plane.create_namespace(api, prefix) for prefix in ("attacker-", "victim-")
            ]
            for each in _grants(theirs):
                await api.create(each)
            target, victim = Target(plane.kubeconfig_for(ATTACKER), theirs), Victim(client, ours)
            measured = AttackBench(plane, target, victim, plan)
            tokens = plane.folder / "path-tokens"
            tokens.write_text(TOKEN)
            flags = ("--webhook-path-token-file", str(tokens)) if plan.has_token else ()
            async with whole_manager(plane, *flags) as manager:
                await _create_runtimes(client, theirs)
                lease = LeaseWatch(api)
                async with asyncio.TaskGroup() as tasks:
                    watches = [tasks.create_task(each.watch()) for each in (victim, lease)]
                    found = await _phases(measured, manager, plan)
                    for task in watches:
                        task.cancel()
                peak = manager.memory().peak
    return _report_findings(Findings(found, lease.history, peak, chart_limit()))


async def _phases(measured: AttackBench, manager: WholeManager, plan: Plan) -> Mapping[str, Phase]:
    await measured.quiet(manager)  # until all is warm
    quiet = await measured.quiet(manager)
    # The attack is as fast as it can be, and the control no faster.
    attacked, rate = await measured.attacked(manager, ATTACK, plan.pace)
    await measured.clean_up(manager)
    control, _ = await measured.attacked(manager, CONTROL, replace(plan.pace, rate=rate))
    quiet = quiet.with_(await measured.quiet(manager))
    return {QUIET: quiet, ATTACK: attacked, CONTROL: control}


def _report_findings(found: Findings) -> bool:
    """Print everything; return whether nothing is wrong."""
    for size in SIZES:
        by_kind = {kind: each.latencies[size] for kind, each in found.phases.items()}
        for kind, latencies in by_kind.items():
            value = f"{1e3 * latencies.at(0.5):,.0f} ms"
            row(f"create to JobSet, {size}, {kind}", value, str(latencies))
        for one, other in ((ATTACK, CONTROL), (ATTACK, QUIET), (CONTROL, QUIET)):
            ratios = [by_kind[one].at(each) / by_kind[other].at(each) for each in SHARES]
            detail = f"p50; p90 {ratios[1]:.2f} x, p99 {ratios[2]:.2f} x"
            row(f"    {one} / {other}", f"{ratios[0]:.2f} x", detail)
    for kind, phase in found.phases.items():
        waits = [1e3 * share_of(phase.waits, each) for each in (0.5, 0.99, 1.0)]
        late = f"p99; {phase.late} times more than {1e3 * LONGEST_WAIT:.0f} ms"
        row(f"delay of the event loop, {kind}", f"{1e3 * phase.lag:.0f} ms", late)
        detail = f"p99; p50 {waits[0]:.0f}, longest {waits[2]:.0f}; {phase.failed_probes} failed"
        row(f"probes, {kind}", f"{waits[1]:.0f} ms", detail)
    lease = found.lease
    detail = f"{lease.transitions} transitions, longest renewal {lease.longest:.1f} s"
    row("lease: holders", f"{len(lease.holders)}", detail)
    detail = f"of {found.limit / MIB:,.0f} MiB in the chart"
    row("peak memory of the manager", f"{found.peak / MIB:,.0f} MiB", detail)
    problems = [*found.problems()]
    for each in problems:
        print(f"!: {each}", file=sys.stderr)
    return not problems


def main() -> int:
    """Measure and print, or be the attacker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds without one")
    parser.add_argument("--rate", type=float, default=3.0, help="TrainJobs a second of the victim")
    parser.add_argument("--attack-rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--at-a-time", type=int, default=1, help="requests of the attacker")
    parser.add_argument(
        "--path-token",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use a path token that the attacker does not have, as the chart does by default",
    )
    parser.add_argument("--attacker", choices=[*KINDS], help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--namespace", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the manager ends, too
    pace = Pace(arguments.attack_rate, arguments.at_a_time)
    if arguments.attacker:
        target = Target(arguments.kubeconfig, arguments.namespace)
        asyncio.run(attack(target, KINDS[arguments.attacker], pace, arguments.seconds))
        return 0
    plan = Plan(arguments.seconds, arguments.quiet, arguments.rate, pace, arguments.path_token)
    return int(not asyncio.run(bench(plan)))


if __name__ == "__main__":
    sys.exit(main())
