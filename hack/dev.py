"""`make dev`: a local control plane that stays, and the manager beside it until Ctrl-C.

What is said after `hack/dev.py` goes to the manager, as in `make dev FLAGS='--log-level debug'`.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from kftrainer.api.configuration import DEFAULT
from kftrainer.cli import main as kftrainer
from kftrainer.cli.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster import binaries, places
from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.named import NamedPlane
from kftrainer.devcluster.parts import KUBECTL
from kftrainer.devcluster.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.progress import Progress
from kftrainer.webhooks import registration

ROOT = Path(__file__).parent.parent
CRDS = ROOT / "src" / "kftrainer" / "api" / "crds"
RUNTIME = ROOT / "hack" / "demo" / "runtime.yaml"
SERVERS_OFF = ("--metrics-bind-address", "0", "--health-probe-bind-address", "0")
SERVICE, NAMESPACE = DEFAULT.cert_management.webhook_service_name, DEFAULT_NAMESPACE


def install(kubectl: Path, kubeconfig: str, port: int) -> None:
    """Install our kinds, a runtime and the webhook, or what has changed of them."""
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager", "make-dev")
    webhook = registration.beside(SERVICE, NAMESPACE, host=LOOPBACK, port=port, required=False)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": webhook})
    for arguments, given in (
        ((*apply, "-f", CRDS), None),
        (("wait", "--for=condition=Established", "--timeout=30s", "-f", CRDS), None),
        ((*apply, "-f", RUNTIME), None),
        ((*apply, "-f", "-"), listed),
    ):
        command = [kubectl, "--kubeconfig", kubeconfig, *arguments]
        if subprocess.run(command, check=False, input=given, text=True).returncode != 0:
            raise DevClusterError(f"kubectl {arguments[0]} failed; its message is above.")


def brought_up(port: int) -> str:
    """The kubeconfig of a control plane that is up, with all that the manager needs."""
    if code := kftrainer.main(["dev", "up"]):
        sys.exit(code)
    cache = places.cache_home()
    state = NamedPlane("default", cache).read()
    if state is None:
        raise DevClusterError("The control plane went down again; `kftrainer dev status` says why.")
    found = asyncio.run(binaries.provide([KUBECTL], cache=cache, progress=Progress(sys.stderr)))
    install(found["kubectl"], state.kubeconfig, port)
    return state.kubeconfig


def main(flags: list[str]) -> None:
    """Bring all of it up; the manager takes the place of this process."""
    # Reserved only until the manager takes the place of this process; it listens a moment later.
    port = PortReservations(places.ports(places.cache_home())).reserve()
    kubeconfig = brought_up(port)
    print(
        "The manager runs until Ctrl-C; the control plane stays, and `make dev` finds it again.\n"
        "To take it down: .venv/bin/kftrainer dev down",
        flush=True,
    )
    manager = [sys.executable, "-m", "kftrainer.cli.main", "manager", *SERVERS_OFF]
    manager += ["--webhook-host", LOOPBACK, "--webhook-port", str(port)]
    os.execv(sys.executable, [*manager, "--kubeconfig", kubeconfig, *flags])  # noqa: S606


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except DevClusterError as error:
        sys.exit(f"dev: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
