"""Runs the manager of an image against a control plane, as in a pod."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from image import container
from image.container import Container, Pod
from image.recipe import ROOT
from image.reporting import report, require
from kftrainer.api.configuration import DEFAULT
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster import cache_paths, controlplane
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from kftrainer.webhooks import registration

CRDS = ROOT / "src" / "kftrainer" / "api" / "crds"
HEALTH_PORT = "8081"  # used by HEALTHCHECK
HTTP_OK = 200
ACCOUNT = {"name": "image-check", "namespace": DEFAULT_NAMESPACE}


async def prepare(api: ApiClient, webhook_port: int) -> str:
    """Register the webhook, create the service account and return a token of it."""
    service = DEFAULT.cert_management.webhook_service_name
    for document in registration.external_objects(
        service, DEFAULT_NAMESPACE, host=LOOPBACK, port=webhook_port
    ):
        await api.apply(document)
    await api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": ACCOUNT})
    # The chart tests its permissions; here it may do everything.
    await api.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": ACCOUNT["name"]},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [{"kind": "ServiceAccount", **ACCOUNT}],
        }
    )
    path = f"/api/v1/namespaces/{ACCOUNT['namespace']}/serviceaccounts/{ACCOUNT['name']}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = (await api.request("POST", path, body=request))["status"]["token"]
    return token


async def answer(port: int, path: str) -> tuple[int, str] | None:
    """Return the response of a probe, or None."""

    def ask() -> tuple[int, str]:
        with closing(HTTPConnection(LOOPBACK, port, timeout=5)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    try:
        return await asyncio.to_thread(ask)
    except (OSError, HTTPException):
        return None


async def well(manager: Container, port: int, path: str) -> str:
    """Wait until this probe succeeds, and print its response."""

    async def ask() -> tuple[int, str] | None:
        require(manager.exit_code is None, f"it ended with {manager.exit_code}")
        response = await answer(port, path)
        return response if response and response[0] == HTTP_OK else None

    began = time.perf_counter()
    response = await until(ask, within=container.TIMEOUT, what=f"{path}: {HTTP_OK}")
    return f"{path} after {time.perf_counter() - began:.1f} s: {response}"


async def watch(manager: Container, port: int, health: Sequence[str], root: Path) -> None:
    """Check that the manager starts, is healthy and stops."""
    report(await well(manager, port, "/healthz"))
    report(await well(manager, port, "/readyz"))
    command = [each.replace(HEALTH_PORT, str(port)) for each in health]
    code = subprocess.run(["chroot", root, *command], check=False).returncode
    require(code == 0, f"HEALTHCHECK's command ended with {code}")
    report(f"HEALTHCHECK's command ended with {code}")
    users, capabilities = manager.status("Uid").split(), manager.status("CapEff")
    require(set(users) == {"65532"} and int(capabilities, 16) == 0, f"{users}, {capabilities}")
    require(not manager.open_files(), f"open to write: {manager.open_files()}")
    require(not manager.written(), f"written to /tmp: {manager.written()}")
    report("user 65532, no capabilities, root read-only; no file open to write, none in /tmp")
    report(f"memory: {manager.status('VmRSS')}")
    began = time.perf_counter()
    code = await manager.stop()
    require(code == 0, f"after SIGTERM it ended with {code}")
    report(f"after SIGTERM: exit code {code} in {time.perf_counter() - began:.1f} s")


def account_folder(folder: Path, plane: ControlPlane, token: str) -> Path:
    """Write the files that the kubelet mounts for the service account."""
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text(token)
    (account / "namespace").write_text(ACCOUNT["namespace"])
    shutil.copy(plane.certificate_authority, account / "ca.crt")
    for file in account.iterdir():
        file.chmod(0o644)
    return account


async def run(
    root: Path, config: Mapping[str, Any], folder: Path, *, writable_tmp: bool = True
) -> None:
    """Run the image's command with all servers, check that it is healthy, and stop it."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    health, metrics, webhook = (ports.reserve() for _ in range(3))
    shape = Shape(crd_files=tuple(sorted(CRDS.glob("*.yaml"))))
    log = folder / "manager.log"
    command = [
        *(*config["Entrypoint"], *config["Cmd"]),
        *("--health-probe-bind-address", f"{LOOPBACK}:{health}"),
        *("--metrics-bind-address", f"{LOOPBACK}:{metrics}"),
        *("--webhook-host", LOOPBACK, "--webhook-port", str(webhook)),
    ]
    async with controlplane.running(shape) as plane:
        async with plane.client() as api:
            token = await prepare(api, webhook)
        server = urlsplit(plane.url)
        environment = {
            **dict(each.split("=", 1) for each in config["Env"]),
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        pod = Pod(
            root,
            command,
            environment,
            user=config["User"],
            account=account_folder(folder, plane, token),
            writable_tmp=writable_tmp,
        )
        try:
            async with container.running(pod, log) as manager:
                await watch(manager, health, config["Healthcheck"]["Test"][1:], root)
        except Exception:
            print(log.read_text(), file=sys.stderr)
            raise
        finally:
            ports.release_all()
