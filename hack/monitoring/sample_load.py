"""Runs two replicas of the manager on a control plane, with a load for the picture."""

import copy
import random
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kftrainer.api.configuration import DEFAULT
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, Object, UnreachableError
from kftrainer.devcluster.cluster_options import FULL, Shape
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.waiting import until
from kftrainer.machinery.manager.clock import Clock
from kftrainer.webhooks import registration

ROOT = Path(__file__).parent.parent.parent
CRDS = tuple(sorted((ROOT / "src" / "kftrainer" / "api" / "crds").glob("*.yaml")))
RUNTIME = ROOT / "hack" / "demo" / "runtime.yaml"
SHAPE: Shape = replace(FULL, crd_files=CRDS)
SERVICE = DEFAULT.cert_management.webhook_service_name
RUNTIMES = ("torch-distributed", "plain", "torchtune-llama3.2-1b")
NAMESPACES = ("vision", "speech", "ranking")
REPLICAS = 2
EACH_WITHIN = 60.0
LASTS = "pod-complete.stage.kwok.x-k8s.io/delay"
FAILS = {"pod-container-running-failed.stage.kwok.x-k8s.io": "true"}
TRAIN_JOB = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}


@dataclass(frozen=True, slots=True)
class Step:
    """An action of a user, at a time in seconds after the start."""

    at: float
    manifest: Object


@asynccontextmanager
async def managers(plane: ControlPlane, api: ApiClient) -> AsyncIterator[list[str]]:
    """Run replicas with leader election; yield the addresses of their metrics."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    addresses = []
    async with AsyncExitStack() as stack:
        stack.callback(ports.release_all)
        for number in range(REPLICAS):
            health, metrics, hook = (ports.reserve() for _ in range(3))
            if number == 0:
                beside = registration.external_objects(
                    SERVICE, DEFAULT_NAMESPACE, host=LOOPBACK, port=hook
                )
                for manifest in beside:
                    await api.apply(manifest)
            argv = (
                *(sys.executable, "-m", "kftrainer.cli.main", "manager", "--leader-elect"),
                *("--kubeconfig", plane.kubeconfig),
                *("--metrics-bind-address", f"{LOOPBACK}:{metrics}"),
                *("--health-probe-bind-address", f"{LOOPBACK}:{health}"),
                *("--webhook-host", LOOPBACK, "--webhook-port", str(hook)),
            )
            log = plane.folder / f"manager-{number}.log"
            process = ManagedProcess(f"manager {number}", argv, log, plane.folder)
            process.start()
            stack.callback(process.kill)
            await _ready(process, f"http://{LOOPBACK}:{health}")
            addresses.append(f"{LOOPBACK}:{metrics}")
        yield addresses


async def _ready(process: ManagedProcess, url: str) -> None:
    async with ApiClient(url, None) as probes:

        async def ready() -> bool:
            process.check()
            try:
                await probes.fetch("GET", "/readyz")
            except (ApiError, UnreachableError):
                return False
            return True

        await until(ready, within=EACH_WITHIN, what="the manager being ready")


async def prepare_cluster(api: ApiClient) -> None:
    """Create namespaces and runtimes whose pods are not retried."""
    for name in NAMESPACES:
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    runtime = yaml.safe_load(RUNTIME.read_text())
    [job] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["backoffLimit"] = 0
    for name in RUNTIMES:
        manifest = copy.deepcopy(runtime)
        manifest["metadata"]["name"] = name

        async def applied(wanted: Object = manifest) -> bool:
            try:
                await api.apply(wanted)
            except ApiError:  # the API server does not trust the webhook yet
                return False
            return True

        await until(applied, within=EACH_WITHIN, what=f"the runtime {name} being accepted")


def steps(seconds: float) -> Iterator[Step]:
    """Return TrainJobs that need more accelerators than there are at a time."""
    rng = random.Random(7)  # noqa: S311  reproducible
    foreign = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    taken = {"suspend": True, "replicatedJobs": []}
    place = {"name": "asr-17", "namespace": "speech"}
    yield Step(0, {**foreign, "metadata": place, "spec": taken})
    yield Step(1, _job("asr-17", "speech", RUNTIMES[0]))
    yield Step(2, _job("nightly", "ranking", RUNTIMES[1], suspend=True))
    at, number = 3.0, 0
    while at < seconds - 10:
        name, namespace = f"train-{number}", rng.choice(NAMESPACES)
        runtime = rng.choice(RUNTIMES)
        if number % 5 == 4:  # noqa: PLR2004
            spec: Mapping[str, Any] = {"env": [{"name": "PET_NNODES", "value": "2"}]}
            wrong = "there-is-none" if number % 2 else runtime
            yield Step(at, _job(name, namespace, wrong, trainer=spec))
        else:
            fails = rng.random() < (0.5 if runtime == RUNTIMES[2] else 0.1)
            lasts = {LASTS: f"{rng.randint(10, 40)}s"}
            about = {"labels": FAILS} if fails else {"annotations": lasts}
            yield Step(
                at, _job(name, namespace, runtime, trainer=_requested_resources(rng), about=about)
            )
        at += rng.uniform(2, 6)
        number += 1


def _requested_resources(rng: random.Random) -> Object:
    limits = {"nvidia.com/gpu": rng.choice((4, 8))}
    return {"numNodes": rng.choice((1, 2)), "resourcesPerNode": {"limits": limits}}


def _job(name: str, namespace: str, runtime: str, **spec: Any) -> Object:
    about = spec.pop("about", None)
    if about is not None:
        spec["podTemplateOverrides"] = [{"targetJobs": [{"name": "node"}], "metadata": about}]
    metadata = {"name": name, "namespace": namespace}
    return {**TRAIN_JOB, "metadata": metadata, "spec": {"runtimeRef": {"name": runtime}, **spec}}


async def play(api: ApiClient, clock: Clock, seconds: float) -> tuple[int, int]:
    """Run all actions at their times; return how many objects were accepted and rejected."""
    began, accepted, refused = clock.monotonic(), 0, 0
    for step in steps(seconds):
        await clock.sleep(max(0.0, began + step.at - clock.monotonic()))
        try:
            await api.create(step.manifest)
            accepted += 1
        except ApiError:
            refused += 1
    await clock.sleep(max(0.0, began + seconds - clock.monotonic()))
    return accepted, refused
