"""A manager as the chart runs it, the memory limit that the chart sets, and what it uses."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.endtoend import MANAGER, ManagerUnderTest
from kftrainer.api.configuration import DEFAULT
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.kube.objects.quantity import Quantity
from kftrainer.webhooks import registration

VALUES = Path(__file__).parents[2] / "charts" / "kftrainer" / "values.yaml"
METRICS_PORT, WEBHOOK_PORT, PROBES_PORT = 29_443, 29_444, 29_446
MIB = 2**20


def chart_limit(values: Path = VALUES) -> int:
    """Return the bytes of memory to which the chart limits the manager."""
    read = yaml.safe_load(values.read_text())
    return Quantity.parse(read["resources"]["limits"]["memory"]).ceil()


@dataclass(frozen=True)
class Memory:
    """Bytes that a process has in memory, and the most that it ever had."""

    now: int
    peak: int


def memory_in(status: str) -> Memory:
    """Read the memory from the text of /proc/<pid>/status."""
    found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", status, re.MULTILINE))
    return Memory(int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024)


def memory_of(pid: int | str) -> Memory:
    """Return the memory of a process, as the kernel counts it."""
    return memory_in((Path("/proc") / str(pid) / "status").read_text())


async def register_webhook(api: ApiClient, token: str = "") -> None:
    """Register the webhook of a manager that is started later, with a token in its path."""
    service = DEFAULT.cert_management.webhook_service_name
    for each in registration.external_objects(
        service, DEFAULT_NAMESPACE, host=LOOPBACK, port=WEBHOOK_PORT
    ):
        for webhook in each.get("webhooks", ()) if token else ():
            webhook["clientConfig"]["service"]["path"] += f"/{token}"
        await api.create(each)


@dataclass(frozen=True)
class WholeManager:
    """A running manager, and clients for its metrics and its probes."""

    process: asyncio.subprocess.Process
    observed: ManagerUnderTest
    metrics: ApiClient
    probes: ApiClient

    def memory(self) -> Memory:
        """Return the memory of the process."""
        return memory_of(self.process.pid)


@asynccontextmanager
async def whole_manager(plane: ControlPlane, *flags: str) -> AsyncIterator[WholeManager]:
    """Run a manager of all namespaces with leader election, webhook, metrics and probes."""
    log = plane.folder / "manager.log"
    metrics, probes = (f"{LOOPBACK}:{port}" for port in (METRICS_PORT, PROBES_PORT))
    argv = (
        *(*MANAGER, "--kubeconfig", str(plane.kubeconfig), "--leader-elect"),
        *("--leader-election-namespace", DEFAULT_NAMESPACE),
        *("--webhook-host", LOOPBACK, "--webhook-port", str(WEBHOOK_PORT)),
        *("--no-metrics-secure", "--metrics-bind-address", metrics),
        *("--health-probe-bind-address", probes),
        *flags,
    )
    with log.open("w") as file:
        process = await asyncio.create_subprocess_exec(*argv, stderr=file)
    try:
        async with (
            ApiClient(f"http://{metrics}", None) as metrics_api,
            ApiClient(f"http://{probes}", None) as health,
        ):
            observed = ManagerUnderTest(process, log, metrics_api)
            await observed.started_at()
            yield WholeManager(process, observed, metrics_api, health)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
