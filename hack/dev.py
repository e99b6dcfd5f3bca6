"""`make dev`: starts a local control plane, and runs the manager until Ctrl-C.

`--name` selects the control plane, as in `make dev NAME=other`. With `--process-nodes`, pods run as
processes on that number of nodes, as in `make dev PROCESS_NODES=2`; otherwise they are simulated.
All other arguments go to the manager, as in `make dev FLAGS='--log-level debug'`.
"""

import argparse
import asyncio
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from environments import mpi
from kftrainer.api.configuration import DEFAULT
from kftrainer.cli import main as kftrainer
from kftrainer.cli.commands.dev import DEFAULT_NAME, dev_command
from kftrainer.cli.interrupts import report_interrupt
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import binaries
from kftrainer.devcluster.artifacts.versions import KUBECTL
from kftrainer.devcluster.components import kubelet
from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.named_control_plane import NamedPlane, State
from kftrainer.devcluster.processes.locks import FileLock, holder
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.processes.subprocesses import killed_with_parent
from kftrainer.devcluster.progress import Progress
from kftrainer.webhooks import registration

ROOT = Path(__file__).parent.parent
CRDS = ROOT / "src" / "kftrainer" / "api" / "crds"
RUNTIME = ROOT / "hack" / "demo" / "runtime.yaml"
MPI_RUNTIME = ROOT / "hack" / "demo-mpi" / "runtime.yaml"
SERVERS_OFF = ("--metrics-bind-address", "0", "--health-probe-bind-address", "0")
SERVICE, NAMESPACE = DEFAULT.cert_management.webhook_service_name, DEFAULT_NAMESPACE
FIELD_MANAGER = "make-dev"
WEBHOOKS = ("validatingwebhookconfiguration", registration.CONFIGURATION)
DEFAULTERS = ("mutatingwebhookconfiguration", registration.MUTATING_CONFIGURATION)
BRIEFLY = "--request-timeout=5s"


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl for one cluster."""

    program: Path
    kubeconfig: str

    def argv(self, *arguments: str | Path) -> list[str]:
        """Return the command line."""
        return [str(self.program), "--kubeconfig", self.kubeconfig, *map(str, arguments)]

    def __call__(self, *arguments: str | Path, given: str | None = None) -> None:
        """Run it with its output on the terminal; raises DevClusterError if it fails."""
        done = subprocess.run(self.argv(*arguments), check=False, input=given, text=True)
        if done.returncode != 0:
            raise DevClusterError(f"kubectl {arguments[0]} failed; its message is above.")

    def read(self, *arguments: str) -> dict[str, Any] | None:
        """Return the object, or None if it does not exist or the server does not respond."""
        command = self.argv("get", *arguments, "-o=json", "--ignore-not-found", BRIEFLY)
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        found: dict[str, Any] | None = json.loads(done.stdout or "null")
        return found


@contextmanager
def only_manager(name: str, cache: Path) -> Iterator[None]:
    """Hold the lock for the manager of this control plane.

    Raises DevClusterError with the process that holds it.
    """
    lock = FileLock(cache_paths.named(cache) / f"{name}.manager.lock")
    while not lock.try_acquire():
        pid = holder(lock.path)  # None: it was released in the meantime
        if pid is not None:
            by = f"`make dev` (process {pid})" if pid else "another `make dev`"
            raise DevClusterError(
                f"{by} already runs the manager of the control plane {name}, and its webhook: "
                f"stop that one with Ctrl-C, or start a control plane of your own with "
                f"`make dev NAME=another-name`."
            )
    try:
        yield
    finally:
        lock.release()


def reject_foreign_webhook(kubectl: Kubectl) -> None:
    """Raise DevClusterError if another client, such as Helm, has registered the webhook."""
    for configuration in (WEBHOOKS, DEFAULTERS):
        found = kubectl.read(*configuration, "--show-managed-fields")
        managers = sorted({each["manager"] for each in _managed_fields(found)})
        if found is not None and FIELD_MANAGER not in managers:
            delete = shlex.join(["kubectl", *kubectl.argv("delete", *configuration)[1:]])
            raise DevClusterError(
                f"The cluster already has the webhook configuration {configuration[1]}, "
                f"written by {', '.join(managers) or 'an unknown client'}: uninstall that operator "
                f"or run `{delete}`, or start a control plane of your own with "
                f"`make dev NAME=another-name`."
            )


def _managed_fields(found: dict[str, Any] | None) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = (found or {}).get("metadata", {}).get("managedFields") or []
    return fields


def install(kubectl: Kubectl, runtimes: Sequence[Path]) -> None:
    """Apply the CRDs and the runtimes."""
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager", FIELD_MANAGER)
    kubectl(*apply, "-f", CRDS)
    kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", CRDS)
    for runtime in runtimes:
        kubectl(*apply, "-f", runtime)


@contextmanager
def registered(kubectl: Kubectl, port: int) -> Iterator[None]:
    """Register the webhook at this port; afterwards it and its Service are removed again."""
    webhook = registration.external_objects(
        SERVICE, NAMESPACE, host=LOOPBACK, port=port, required=False
    )
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": webhook})
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager", FIELD_MANAGER)
    try:
        kubectl(*apply, "-f", "-", given=listed)  # may fail after some of the objects
        yield
    finally:
        if _port(kubectl.read(*WEBHOOKS)) == port:
            for each in (WEBHOOKS, DEFAULTERS, ("service", "-n", NAMESPACE, SERVICE)):
                command = kubectl.argv("delete", *each, "--ignore-not-found", BRIEFLY)
                subprocess.run(command, check=False, capture_output=True)


def _port(found: dict[str, Any] | None) -> int | None:
    match found:
        case {"webhooks": [{"clientConfig": {"service": {"port": int(port)}}}, *_]}:
            return port
        case _:
            return None


def node_options(process_nodes: int) -> list[str]:
    """Return the options of `dev up` for process nodes, with the image of the demo."""
    nodes = ["--process-nodes", str(process_nodes)]
    if kubelet.unavailable() is not None:
        return nodes  # `dev up` reports it and simulates the pods
    folder = asyncio.run(mpi.mpi_environment(mpi.DEMO, Progress(sys.stderr)))
    return [*nodes, "--image", f"{mpi.image(mpi.DEMO)}={folder}"]


def check_process_nodes(name: str, state: State) -> None:
    """Raise DevClusterError if the control plane was started without process nodes."""
    if kubelet.NAME not in [part.name for part in state.parts]:
        raise DevClusterError(
            f"The control plane {name} runs without process nodes: stop it with "
            f"`.venv/bin/{dev_command('down', name)}`, or start another one with "
            f"`make dev NAME=another-name`."
        )


def start(name: str, process_nodes: int, cache: Path) -> Kubectl:
    """Start the control plane unless it runs; return kubectl for it."""
    options = node_options(process_nodes) if process_nodes else []
    if code := kftrainer.main(["dev", "up", "--name", name, *options]):
        sys.exit(code)
    state = NamedPlane(name, cache).read()
    if state is None:
        raise DevClusterError(
            f"The control plane {name} has stopped: run `{dev_command('status', name)}`."
        )
    if process_nodes and kubelet.unavailable() is None:
        check_process_nodes(name, state)
    found = asyncio.run(binaries.provide([KUBECTL], cache=cache, progress=Progress(sys.stderr)))
    return Kubectl(found["kubectl"], state.kubeconfig)


def run_manager(kubeconfig: str, port: int, flags: list[str]) -> int:
    """Run the manager until it ends; return its exit code. Signals are passed on to it."""
    manager = [sys.executable, "-m", "kftrainer.cli.main", "manager", *SERVERS_OFF]
    manager += ["--webhook-host", LOOPBACK, "--webhook-port", str(port)]
    # In a session of its own, Ctrl-C reaches it through us only, and once.
    process = subprocess.Popen(
        killed_with_parent([*manager, "--kubeconfig", kubeconfig, *flags]),
        stdin=subprocess.PIPE,
        start_new_session=True,
    )

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        process.send_signal(signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.getsignal(signal.SIGHUP)
    with process:
        try:
            for signum in before:
                signal.signal(signum, pass_on)
            return process.wait()
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


def arguments(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the manager's flags."""
    parser = argparse.ArgumentParser(prog="dev", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--name", default=DEFAULT_NAME, help="the control plane (default: %(default)s)"
    )
    parser.add_argument(
        "--process-nodes",
        type=int,
        default=0,
        metavar="N",
        help="number of nodes whose pods run as processes (default: %(default)s)",
    )
    return parser.parse_known_args(argv)


def run(name: str, process_nodes: int, flags: list[str]) -> int:
    """Start everything, and run the manager until it ends."""
    cache = cache_paths.cache_home()
    NamedPlane(name, cache)  # raises an error for an invalid name
    ports = PortReservations(cache_paths.ports(cache))
    with only_manager(name, cache):
        kubectl = start(name, process_nodes, cache)
        reject_foreign_webhook(kubectl)
        port = ports.reserve()
        install(kubectl, [RUNTIME, MPI_RUNTIME] if process_nodes else [RUNTIME])
        with registered(kubectl, port):
            again = "make dev" if name == DEFAULT_NAME else f"make dev NAME={name}"
            print(
                f"The manager runs until Ctrl-C. The control plane keeps running, and `{again}` "
                f"uses it again.\nTo stop it: .venv/bin/{dev_command('down', name)}",
                flush=True,
            )
            return run_manager(kubectl.kubeconfig, port, flags)


def main(argv: list[str] | None = None) -> int:
    """Run `make dev`; errors are one line on standard error."""
    options, flags = arguments(argv)
    try:
        return run(options.name, options.process_nodes, flags)
    except DevClusterError as error:
        print(f"dev: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return report_interrupt("dev")


if __name__ == "__main__":
    sys.exit(main())
