"""`make demo`: runs a TrainJob to completion on a temporary control plane.

Its pods run as processes on this machine. Where the kernel does not allow that, they are simulated.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from environments import mpi
from kftrainer.api.configuration import DEFAULT
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import binaries
from kftrainer.devcluster.artifacts.versions import KUBECTL
from kftrainer.devcluster.client import ApiClient, UnreachableError, condition_is_true
from kftrainer.devcluster.cluster_options import FULL, PROCESSES, Shape
from kftrainer.devcluster.components.kubelet import unavailable
from kftrainer.devcluster.controlplane import ControlPlane, running
from kftrainer.devcluster.errors import ApiError, DevClusterError, in_words
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.progress import Progress
from kftrainer.devcluster.waiting import until
from kftrainer.webhooks import registration

ROOT = Path(__file__).parent.parent
CRDS = tuple(sorted((ROOT / "src" / "kftrainer" / "api" / "crds").glob("*.yaml")))
MISTAKES = Path("hack") / "mistakes.yaml"
RUNTIME_OF_MISTAKES = Path("hack") / "demo" / "runtime.yaml"
MANAGER = (sys.executable, "-m", "kftrainer.cli.main", "manager")
JOB = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/demo"
JOB_SET = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/demo"
PODS = "/api/v1/namespaces/default/pods"
SERVICE, NAMESPACE = DEFAULT.cert_management.webhook_service_name, DEFAULT_NAMESPACE
NODES = 2
EACH_WITHIN = 60.0
POLL_EVERY = 0.02


@dataclass(frozen=True, slots=True)
class Training:
    """A TrainJob with two nodes, and the cluster that runs it."""

    runtimes: tuple[Path, ...]
    train_job: Path
    shape: Shape
    follow: str | None = None  # what prints the progress of the training


SIMULATED = Training(
    (RUNTIME_OF_MISTAKES,),
    Path("hack") / "demo" / "trainjob.yaml",
    replace(FULL, pod_seconds=4, crd_files=CRDS),
)
REAL = Training(
    (RUNTIME_OF_MISTAKES, Path("hack") / "demo-mpi" / "runtime.yaml"),
    Path("hack") / "demo-mpi" / "trainjob.yaml",
    replace(PROCESSES, process_nodes=NODES, crd_files=CRDS),
    follow="job/demo-launcher-0",
)


async def chosen(progress: Progress) -> Training:
    """Return the training that this machine can run, with its image."""
    if (reason := unavailable()) is not None:
        print(f"demo: {reason} The pods are simulated and train nothing.", file=sys.stderr)
        return SIMULATED
    images = {mpi.image(mpi.DEMO): await mpi.mpi_environment(mpi.DEMO, progress)}
    return replace(REAL, shape=replace(REAL.shape, images=images))


class Kubectl:
    """Prints each kubectl command, then runs it."""

    def __init__(self, program: Path, plane: ControlPlane) -> None:
        self._program = program
        self._environ = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}

    async def __call__(self, *arguments: str) -> None:
        """Run a command that must succeed."""
        if not await self._run(*arguments):
            raise DevClusterError(f"kubectl {arguments[0]} failed; its message is above.")

    async def rejected(self, *arguments: str) -> None:
        """Run a command that must fail."""
        if await self._run(*arguments):
            raise DevClusterError(f"kubectl {arguments[0]} succeeded, but should have failed.")

    async def _run(self, *arguments: str) -> bool:
        print(f"\n$ kubectl {' '.join(arguments)}", flush=True)
        process = await asyncio.create_subprocess_exec(
            self._program, *arguments, env=self._environ, cwd=ROOT
        )
        return await process.wait() == 0


@asynccontextmanager
async def manager(
    plane: ControlPlane, api: ApiClient, progress: Progress
) -> AsyncIterator[ManagedProcess]:
    """Run the manager during the block; its log is printed if the block fails."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    address, port = f"{LOOPBACK}:{ports.reserve()}", ports.reserve()
    servers = (
        *("--metrics-bind-address", "0", "--health-probe-bind-address", address),
        *("--webhook-host", LOOPBACK, "--webhook-port", str(port)),
    )
    argv = (*MANAGER, "--kubeconfig", plane.kubeconfig, *servers)
    process = ManagedProcess("the manager", argv, plane.folder / "manager.log", plane.folder)
    try:
        with progress.step("starting the manager"):
            for manifest in registration.external_objects(
                SERVICE, NAMESPACE, host=LOOPBACK, port=port
            ):
                await api.apply(manifest)
            process.start()
            await _ready(process, f"http://{address}")
        yield process
        await _end(process)
    except (DevClusterError, OSError):
        print(f"\nThe manager's log:\n{process.log.read_text()}", file=sys.stderr)
        raise
    finally:
        process.kill()
        ports.release_all()


async def _end(process: ManagedProcess) -> None:
    await process.stop()
    if process.ending() != "exit code 0":
        raise DevClusterError(f"The manager failed to stop: {process.ending()}.")


def _check(process: ManagedProcess) -> None:
    if not process.alive():
        raise DevClusterError(f"The manager exited: {process.ending()}.")


async def _ready(process: ManagedProcess, url: str) -> None:
    async with ApiClient(url, None) as probes:

        async def ready() -> bool:
            _check(process)
            try:
                await probes.fetch("GET", "/readyz")
            except (ApiError, UnreachableError):
                return False
            return True

        await until(ready, within=EACH_WITHIN, what="the manager being ready")


class Timeline:
    """Records when conditions become true, by polling the API server."""

    def __init__(self, api: ApiClient, process: ManagedProcess) -> None:
        self._api = api
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._times: list[tuple[str, float]] = []

    async def wait_for(self, what: str, happened: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition and record the time."""

        async def checked() -> bool:
            _check(self._process)
            return await happened()

        await until(checked, within=EACH_WITHIN, what=what, every=POLL_EVERY)
        self._times.append((what, self._loop.time() - self._began))

    def show(self) -> None:
        """Print all recorded times."""
        print("\nSeconds since `kubectl apply` began:")
        for what, seconds in self._times:
            print(f"  {seconds:5.2f}  {what}")

    async def created(self) -> bool:
        """Return whether the TrainJob exists."""
        return await self._api.get_or_none(JOB) is not None

    async def applied(self) -> bool:
        """Return whether its JobSet exists."""
        return await self._api.get_or_none(JOB_SET) is not None

    async def pods_run(self) -> bool:
        """Return whether all its pods are running or have succeeded."""
        pods: list[dict[str, Any]] = (await self._api.get(PODS))["items"]
        begun = [pod for pod in pods if pod["status"].get("phase") in ("Running", "Succeeded")]
        return len(begun) == NODES

    async def completed(self) -> bool:
        """Return whether the TrainJob is Complete."""
        job = await self._api.get(JOB)
        if condition_is_true(job, "Failed"):
            raise DevClusterError("The TrainJob failed.")
        return condition_is_true(job, "Complete")


async def train(
    training: Training, kubectl: Kubectl, api: ApiClient, process: ManagedProcess
) -> None:
    """Apply an invalid TrainJob, then a valid one, and wait until it is Complete."""
    files = [argument for path in training.runtimes for argument in ("-f", str(path))]
    await kubectl("apply", *files)
    await kubectl.rejected("apply", "-f", str(MISTAKES))
    timeline = Timeline(api, process)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(kubectl("apply", "-f", str(training.train_job)))
            await timeline.wait_for("TrainJob created", timeline.created)
            await timeline.wait_for("JobSet applied", timeline.applied)
            await timeline.wait_for(f"{NODES} pods running", timeline.pods_run)
            await kubectl("get", "jobset,pods", "-o", "wide")
            if training.follow is not None:
                group.create_task(kubectl("logs", "--follow", training.follow))
            await timeline.wait_for("TrainJob Complete", timeline.completed)
    except ExceptionGroup as group_of_errors:
        raise group_of_errors.exceptions[0] from None
    await kubectl("get", "trainjob")
    timeline.show()


async def demo() -> None:
    """Run the demo; all processes are stopped afterwards, also after Ctrl-C."""
    progress = Progress(sys.stderr)
    programs = await binaries.provide([KUBECTL], cache=cache_paths.cache_home(), progress=progress)
    training = await chosen(progress)
    async with running(training.shape, progress=progress) as plane, plane.client() as api:
        kubectl = Kubectl(programs["kubectl"], plane)
        async with manager(plane, api, progress) as process:
            await train(training, kubectl, api, process)
    print("\nThe TrainJob is Complete, and all processes are stopped.")


def main() -> int:
    """Run the demo; errors are one line on standard error."""
    try:
        asyncio.run(demo())
    except DevClusterError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"demo: {in_words(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; all processes are stopped.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
