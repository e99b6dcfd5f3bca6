"""`make dev`: starts a local control plane, and runs the manager until Ctrl-C.

`--name` chooses the control plane, as in `make dev NAME=other`. All other arguments go to the
manager, as in `make dev FLAGS='--log-level debug'`.
"""

import argparse
import asyncio
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from kftrainer.api.configuration import DEFAULT
from kftrainer.cli import main as kftrainer
from kftrainer.cli.commands.dev import DEFAULT_NAME, dev_command
from kftrainer.cli.interrupts import report_interrupt
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import binaries
from kftrainer.devcluster.artifacts.versions import KUBECTL
from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.named_control_plane import NamedPlane
from kftrainer.devcluster.processes.locks import FileLock, holder
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.processes.subprocesses import killed_with_parent
from kftrainer.devcluster.progress import Progress
from kftrainer.webhooks import registration

ROOT = Path(__file__).parent.parent
CRDS = ROOT / "src" / "kftrainer" / "api" / "crds"
RUNTIME = ROOT / "hack" / "demo" / "runtime.yaml"
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


def install(kubectl: Kubectl) -> None:
    """Apply the CRDs and a runtime."""
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager", FIELD_MANAGER)
    kubectl(*apply, "-f", CRDS)
    kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", CRDS)
    kubectl(*apply, "-f", RUNTIME)


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


def start(name: str, cache: Path) -> Kubectl:
    """Start the control plane unless it runs; return kubectl for it."""
    if code := kftrainer.main(["dev", "up", "--name", name]):
        sys.exit(code)
    state = NamedPlane(name, cache).read()
    if state is None:
        raise DevClusterError(
            f"The control plane {name} has stopped: run `{dev_command('status', name)}`."
        )
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


def arguments(argv: list[str] | None) -> tuple[str, list[str]]:
    """Return the name of the control plane and the manager's flags."""
    parser = argparse.ArgumentParser(prog="dev", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--name", default=DEFAULT_NAME, help="the control plane (default: %(default)s)"
    )
    parsed, flags = parser.parse_known_args(argv)
    return parsed.name, flags


def run(name: str, flags: list[str]) -> int:
    """Start everything, and run the manager until it ends."""
    cache = cache_paths.cache_home()
    NamedPlane(name, cache)  # raises an error for an invalid name
    ports = PortReservations(cache_paths.ports(cache))
    with only_manager(name, cache):
        kubectl = start(name, cache)
        reject_foreign_webhook(kubectl)
        port = ports.reserve()
        install(kubectl)
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
    name, flags = arguments(argv)
    try:
        return run(name, flags)
    except DevClusterError as error:
        print(f"dev: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return report_interrupt("dev")


if __name__ == "__main__":
    sys.exit(main())
