"""`make bench`: the webhooks of a whole manager, while it reconciles a burst of TrainJobs.

Each TrainJob that is created costs two reviews: one by the mutating webhook, one by the validating.

Next to it, a server that only parses what it is sent and sends it back: the same bodies over the
same kind of connections, also while that manager reconciles the same burst, and both on a machine
that does nothing else. Where a machine has few cores, all share them: API server, etcd, manager,
the program that creates TrainJobs, and the one that sends reviews.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import yaml

from bench.endtoend import CRDS, MANAGER, RUNTIME, ManagerUnderTest, cpu_of, job_in, note
from bench.machinery import in_flight, row
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS
from kftrainer.devcluster.artifacts import versions
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.components.pki import Authority
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.webhooks.registration import defaulter_path, webhook_path

HERE = Path(__file__).parent
METRICS_PORT, WEBHOOK_PORT, ECHO_PORT = 29_443, 29_444, 29_445
BODIES = 200
BATCH = 100  # TrainJobs that are created between two checks whether to continue
ROUNDS = 3
GOAL, SPREAD = 0.5, 5.0
VALIDATING, MUTATING = webhook_path(TRAIN_JOBS), defaulter_path(TRAIN_JOBS)
# As the SDK and Kueue write them: each of these numbers is replaced, and the patch gets a time.
AMOUNTS = {"cpu": 4.0, "memory": "8Gi", "nvidia.com/gpu": 1.0}
ENTRY = {
    "manager": "kueue.x-k8s.io/manager",
    "trainingRuntimeSpec": {"template": {"spec": {}}},
}


@dataclass(frozen=True)
class Load:
    """Concurrency and duration of the requests to a server."""

    connections: int
    seconds: float


@dataclass(frozen=True)
class Answers:
    """How a server did."""

    requests: int
    per_second: float
    allowed: float
    p50: float
    p99: float
    worst: float
    cpu: float  # seconds for each

    def __str__(self) -> str:
        took = f"p50 {1e3 * self.p50:.1f} ms, p99 {1e3 * self.p99:.1f} ms"
        return f"{took} ({self.p99 / self.p50:.1f} x), longest {1e3 * self.worst:.0f} ms"


@dataclass(frozen=True)
class Server:
    """The server under test, a process of its own."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        return cpu_of(self.pid)


def owned(value: Any) -> dict[str, Any]:
    """The fields of a document as `managedFields` lists them."""
    match value:
        case dict():
            return {f"f:{key}": owned(inner) for key, inner in value.items()}
        case [{"name": _}, *_]:
            return {f'k:{{"name":"{each["name"]}"}}': {".": {}, **owned(each)} for each in value}
        case _:
            return {}


def applied(namespace: str, number: int) -> dict[str, Any]:
    """A TrainJob as stored after `kubectl apply`."""
    job = job_in(namespace, number)
    labels, spec = job["metadata"]["labels"], job["spec"]
    manager = {
        "apiVersion": TRAIN_JOBS.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": owned(labels)}, "f:spec": owned(spec)},
        "manager": "kubectl-client-side-apply",
        "operation": "Update",
        "time": "2026-01-01T00:00:00Z",
    }
    last = "kubectl.kubernetes.io/last-applied-configuration"
    job["metadata"]["annotations"][last] = orjson.dumps(job).decode()
    job["metadata"] |= {
        "uid": f"{number:08x}-2a5e-4b06-9a52-a2a7d8a0a1ce",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "generation": 1,
        "managedFields": [manager],
    }
    job["spec"] = {
        "managedBy": "trainer.kubeflow.org/trainjob-controller",
        "suspend": False,
        **spec,
        "runtimeRef": {
            "apiGroup": TRAIN_JOBS.group,
            "kind": CLUSTER_TRAINING_RUNTIMES.kind,
            **spec["runtimeRef"],
        },
    }
    return job


def review(namespace: str, number: int) -> dict[str, Any]:
    """The AdmissionReview of the creation of this TrainJob, as an API server sends it."""
    job = applied(namespace, number)
    group_version = {"group": TRAIN_JOBS.group, "version": TRAIN_JOBS.version}
    kind = {**group_version, "kind": TRAIN_JOBS.kind}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": f"{number:08x}-6393-11e8-b7cc-42010a800002",
            "kind": kind,
            "resource": {**group_version, "resource": TRAIN_JOBS.plural},
            "requestKind": kind,
            "name": job["metadata"]["name"],
            "namespace": namespace,
            "operation": "CREATE",
            "userInfo": {"username": "admin", "groups": ["system:authenticated"]},
            "object": job,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


def mutated_review(namespace: str, number: int) -> dict[str, Any]:
    """The same as an SDK with Kueue sends it, which the mutating webhook changes."""
    question = review(namespace, number)
    spec = question["request"]["object"]["spec"]
    amounts = {"limits": AMOUNTS, "requests": AMOUNTS}
    spec["trainer"] = {**(spec.get("trainer") or {}), "resourcesPerNode": amounts, "args": []}
    spec["runtimePatches"] = [ENTRY]
    return question


class AdmissionBench:
    """All that the measurements share."""

    def __init__(self, plane: ControlPlane, client: Client, folder: Path, load: Load) -> None:
        self._plane = plane
        self._client = client
        self._folder = folder
        self._load = load
        self._created = 0

    def _bodies(self, path: str) -> Path:
        return self._folder / path.strip("/")

    def prepare(self, namespace: str) -> None:
        """Write the bodies, and a certificate for both servers."""
        for path, question in ((VALIDATING, review), (MUTATING, mutated_review)):
            lines = (orjson.dumps(question(namespace, number)) for number in range(BODIES))
            self._bodies(path).write_bytes(b"\n".join(lines))
        authority = Authority(self._folder / "ca", "bench", datetime.now(UTC))  # noqa: TID251
        pair = authority.issue("webhook", common_name="webhook", hosts=[LOOPBACK])
        pair.certificate.rename(self._folder / "tls.crt")
        pair.key.rename(self._folder / "tls.key")

    @asynccontextmanager
    async def manager(self, namespace: str) -> AsyncIterator[tuple[ManagerUnderTest, Server]]:
        """A manager with its webhook, as people run it; its log is in a file."""
        log, metrics = self._plane.folder / "manager.log", f"{LOOPBACK}:{METRICS_PORT}"
        argv = (
            *(*MANAGER, "--kubeconfig", str(self._plane.kubeconfig), "--namespace", namespace),
            *("--webhook-host", LOOPBACK, "--webhook-port", str(WEBHOOK_PORT)),
            *("--webhook-cert-dir", str(self._folder)),
            *("--no-metrics-secure", "--metrics-bind-address", metrics),
            *("--health-probe-bind-address", "0"),
        )
        with log.open("w") as file:
            process = await asyncio.create_subprocess_exec(*argv, stderr=file)
        try:
            async with ApiClient(f"http://{metrics}", None) as metrics_api:
                manager = ManagerUnderTest(process, log, metrics_api)
                await manager.started_at()
                await until(_listens(WEBHOOK_PORT), within=30, what="the webhook listening")
                yield manager, Server(WEBHOOK_PORT, process.pid)
        finally:
            await _end(process)

    @asynccontextmanager
    async def echo(self) -> AsyncIterator[Server]:
        """The server that only parses and echoes."""
        script = HERE / "candidates" / "echo_webhook.py"
        argv = (sys.executable, str(script), str(self._folder), str(ECHO_PORT))
        process = await asyncio.create_subprocess_exec(*argv)
        try:
            await until(_listens(ECHO_PORT), within=30, what="the echo listening")
            yield Server(ECHO_PORT, process.pid)
        finally:
            await _end(process)

    async def measure(self, server: Server, path: str = VALIDATING) -> Answers:
        """How this server does, with the bodies of a webhook."""
        used = server.cpu()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(HERE / "candidates" / "reviewer.py"),
            *(str(server.port), path),
            *(str(self._load.connections), str(self._load.seconds), str(self._bodies(path))),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        parsed = json.loads(output)
        return Answers(**parsed, cpu=(server.cpu() - used) / parsed["requests"])

    @asynccontextmanager
    async def burst(self, manager: ManagerUnderTest, namespace: str) -> AsyncIterator[None]:
        """TrainJobs are created in the block, and reconciled, one batch after the other."""
        over = asyncio.Event()

        async def create(number: int) -> None:
            await self._client.create(TRAIN_JOBS, job_in(namespace, self._created + number))

        async def create_all() -> None:
            while not over.is_set():
                await in_flight(BATCH, create)
                self._created += BATCH

        done = await manager.reconciles()
        async with asyncio.TaskGroup() as group:
            group.create_task(create_all())
            await until(_more(manager, done), within=60, what="the burst beginning")
            yield
            over.set()


def _more(manager: ManagerUnderTest, than: int) -> Callable[[], Awaitable[bool]]:
    async def more() -> bool:
        return await manager.reconciles() > than

    return more


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()


def _listens(port: int) -> Callable[[], Awaitable[bool]]:
    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            return False
        writer.close()
        return True

    return listens


def compared(what: str, ours: Sequence[Answers], echoes: Sequence[Answers]) -> None:
    """The best rounds of both, and how they compare."""
    best, echo = (max(each, key=lambda round_: round_.per_second) for each in (ours, echoes))
    row(f"{what}: webhook", f"{best.per_second:,.0f}/s", str(best))
    row("    echo", f"{echo.per_second:,.0f}/s", str(echo))
    ratio = best.per_second / echo.per_second
    row("    ratio", f"{ratio:.2f} x", f"goal: {GOAL} x, and p99 at most {SPREAD:g} x p50")


def cpu_of_each(ours: Sequence[Answers], echoes: Sequence[Answers]) -> None:
    """The least CPU that a request took, and how the servers compare."""
    cpu, least = (min(each.cpu for each in rounds) for rounds in (ours, echoes))
    ratio = f"echo {1e6 * least:.0f} µs, ratio {cpu / least:.2f}"
    row("    CPU for each", f"{1e6 * cpu:.0f} µs", ratio)


async def bench(load: Load) -> None:
    """All of it on one control plane."""
    shape = Shape(crds=(versions.JOBSET_MANIFESTS,), crd_files=CRDS)
    with TemporaryDirectory() as folder:
        async with running(shape, progress=Progress(sys.stderr)) as plane, plane.client() as api:
            connection = await load_connection(plane.kubeconfig)
            async with HttpTransport(connection, user_agent="bench") as transport:
                client = Client(transport, field_manager="bench")
                await client.create(CLUSTER_TRAINING_RUNTIMES, yaml.safe_load(RUNTIME.read_text()))
                namespace = await plane.create_namespace(api, "bench-")
                measured = AdmissionBench(plane, client, Path(folder), load)
                measured.prepare(namespace)
                await measure(measured, namespace)


async def measure(measured: AdmissionBench, namespace: str) -> None:
    """Quiet first, then in a burst; the two servers by turns, as machines have their moods."""
    quiet: list[Answers] = []
    quiet_echo: list[Answers] = []
    mutating: list[Answers] = []
    mutating_echo: list[Answers] = []
    busy: list[Answers] = []
    busy_echo: list[Answers] = []
    async with measured.manager(namespace) as (manager, webhook), measured.echo() as echo:
        for number in range(1, ROUNDS + 1):
            note(f"webhook and echo, all quiet: {number} of {ROUNDS}")
            quiet.append(await measured.measure(webhook))
            quiet_echo.append(await measured.measure(echo))
            mutating.append(await measured.measure(webhook, MUTATING))
            mutating_echo.append(await measured.measure(echo, MUTATING))
        if min(quiet[0].allowed, mutating[0].allowed) < 1:
            raise RuntimeError(
                f"only {quiet[0].allowed:.0%} were allowed: these bodies are no good"
            )
        done, began = await manager.reconciles(), time.perf_counter()
        for number in range(1, ROUNDS + 1):
            note(f"webhook and echo, in a burst of TrainJobs: {number} of {ROUNDS}")
            async with measured.burst(manager, namespace):
                busy.append(await measured.measure(webhook))
                busy_echo.append(await measured.measure(echo))
        reconciles = (await manager.reconciles() - done) / (time.perf_counter() - began)
    compared("(a) reviews, all quiet", quiet, quiet_echo)
    cpu_of_each(quiet, quiet_echo)
    compared("(b) mutating reviews, all quiet", mutating, mutating_echo)
    cpu_of_each(mutating, mutating_echo)
    compared("(c) reviews in a burst of TrainJobs", busy, busy_echo)
    row("    reconciles meanwhile", f"{reconciles:,.0f}/s")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=16, help="at a time, each kept open")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the manager goes with us
    asyncio.run(bench(Load(arguments.connections, arguments.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
