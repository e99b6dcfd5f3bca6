"""Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler."""

import json
from dataclasses import dataclass
from pathlib import Path

from kftrainer.devcluster.artifacts.manifests import Document, read_documents
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.components import commands, kubelet, pki
from kftrainer.devcluster.environment import READY_WITHIN, Environment
from kftrainer.devcluster.errors import DevClusterError
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.waiting import until

CRD = "CustomResourceDefinition"
AUDIT_LOG = "audit.log"
SERVICE_SOCKET = "services.sock"
# Log metadata without bodies, once per request when it is complete. For watches, which may not end,
# the start is logged as well.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


async def start_etcd(environment: Environment) -> commands.EtcdAccess:
    """Start etcd with its own CA, so that API users' certificates are not valid for it."""
    authority = pki.Authority(
        environment.folder / "pki" / "etcd", "kftrainer-dev-etcd", environment.now
    )
    access = commands.EtcdAccess(
        port=environment.ports.reserve(),
        authority=authority.certificate,
        client=authority.issue("client", common_name="kube-apiserver"),
    )
    argv = commands.etcd(
        environment.supplies.programs["etcd"],
        access,
        data=environment.folder / "etcd",
        peer_port=environment.ports.reserve(),
        serving=authority.issue("serving", common_name="etcd", hosts=[LOOPBACK]),
    )
    tls = pki.client_tls(access.authority, access.client)
    await environment.wait_ready(
        environment.begin("etcd", argv), f"https://{LOOPBACK}:{access.port}/readyz", tls
    )
    return access


def _audit_flags(environment: Environment) -> commands.Argv:
    policy = environment.folder / "audit-policy.json"
    policy.write_text(json.dumps(AUDIT_POLICY))
    return commands.audited(policy=policy, log=environment.folder / AUDIT_LOG)


def _service_proxy_flags(environment: Environment) -> commands.Argv:
    """Return flags that route calls to Services, and no others, to a Unix socket.

    There is no Service network here. The process that listens on the socket acts as kube-proxy, so
    the webhooks of installed software can be called without changes.
    """
    file = environment.folder / "egress.json"
    file.write_text(json.dumps(egress(environment.folder / SERVICE_SOCKET)))
    return [f"--egress-selector-config-file={file}"]


def egress(socket: Path) -> Document:
    """Return the configuration that routes the API server's calls into the cluster."""
    connection = {
        "proxyProtocol": "HTTPConnect",
        "transport": {"uds": {"udsName": str(socket)}},
    }
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }


async def start_apiserver(
    environment: Environment, etcd: commands.EtcdAccess, shape: Shape
) -> pki.SigningKey:
    """Start the API server; return the key that signs service account tokens."""
    signing = pki.new_signing_key(environment.folder / "pki", "service-accounts")
    argv = commands.apiserver(
        environment.supplies.programs["kube-apiserver"],
        etcd,
        port=environment.apiserver_port,
        authority=environment.authority.certificate,
        serving=environment.serving,
        signing=signing,
    )
    if not shape.controllers:
        argv.append("--disable-admission-plugins=ServiceAccount")
    if shape.audit:
        argv += _audit_flags(environment)
    if shape.service_proxy:
        argv += _service_proxy_flags(environment)
    if shape.process_nodes:
        argv += kubelet.apiserver_flags(environment)
    if shape.admission_config is not None:
        argv.append(f"--admission-control-config-file={shape.admission_config}")
    process = environment.begin("kube-apiserver", argv)
    await environment.wait_ready(process, f"{environment.url}/readyz", environment.admin_tls())
    async with environment.client() as client:

        async def default_namespace() -> Object | None:
            return await client.get_or_none("/api/v1/namespaces/default")

        await until(default_namespace, within=READY_WITHIN, what="the namespace default")
    return signing


@dataclass(frozen=True, slots=True)
class Controllers:
    """Processes that were started but not waited for, with their health addresses."""

    started: tuple[tuple[ManagedProcess, str], ...]

    async def wait_ready(self, environment: Environment, client: ApiClient) -> None:
        """Wait until pods can be created in the default namespace."""
        for process, address in self.started:
            await environment.wait_ready(
                process, f"https://{LOOPBACK}:{address}", environment.admin_tls()
            )
        await wait_for_service_account(client, "default")


def begin_controllers(environment: Environment, signing: pki.SigningKey) -> Controllers:
    """Start kube-controller-manager and kube-scheduler; wait for them last, as they are slow."""
    manager_port, scheduler_port = environment.ports.reserve(), environment.ports.reserve()
    manager = commands.controller_manager(
        environment.supplies.programs["kube-controller-manager"],
        port=manager_port,
        serving=environment.serving,
        kubeconfig=environment.part_kubeconfig(
            "kube-controller-manager", "system:kube-controller-manager"
        ),
        authority=environment.authority.certificate,
        signing=signing,
    )
    scheduler = commands.scheduler(
        environment.supplies.programs["kube-scheduler"],
        port=scheduler_port,
        serving=environment.serving,
        kubeconfig=environment.part_kubeconfig("kube-scheduler", "system:kube-scheduler"),
    )
    return Controllers(
        (
            (environment.begin("kube-controller-manager", manager), f"{manager_port}/healthz"),
            (environment.begin("kube-scheduler", scheduler), f"{scheduler_port}/readyz"),
        )
    )


async def wait_for_service_account(client: ApiClient, namespace: str) -> None:
    """Wait until the namespace has the service account that pods need."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"

    async def there() -> Object | None:
        return await client.get_or_none(path)

    await until(there, within=READY_WITHIN, what=f"a service account in namespace {namespace}")


def crds_in(file: Path) -> list[Document]:
    """Return the CustomResourceDefinitions in the file; there must be at least one."""
    found = [each for each in read_documents(file) if each["kind"] == CRD]
    if not found:
        raise DevClusterError(f"{file} holds no CustomResourceDefinition.")
    return found
