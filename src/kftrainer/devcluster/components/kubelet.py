"""Process nodes: a kubelet whose pods are processes on this machine."""

import sys
from importlib.util import find_spec
from pathlib import Path

from kftrainer.devcluster.artifacts.manifests import Document
from kftrainer.devcluster.client import ApiClient, condition_is_true
from kftrainer.devcluster.cluster_options import Shape
from kftrainer.devcluster.components import commands
from kftrainer.devcluster.components.pki import KeyPair
from kftrainer.devcluster.environment import READY_WITHIN, Environment
from kftrainer.devcluster.nodes.kubelet.settings import NODE_PREFIX, USER, Settings
from kftrainer.devcluster.nodes.kubelet.storage import STORAGE_CLASS
from kftrainer.devcluster.nodes.sandbox import availability
from kftrainer.devcluster.processes.ports import LOOPBACK
from kftrainer.devcluster.waiting import until

NAME = "kubelet"
API_SERVER_USER = "kube-apiserver-kubelet-client"
ADMIN_OF_KUBELETS = "system:kubelet-api-admin"
PACKAGES = ("pyroute2", "dns")
ALL = ["create", "delete", "get", "list", "patch", "update", "watch"]
READ = ["get", "list", "watch"]
RULES = [
    {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ALL},
    {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ALL},
    {"apiGroups": [""], "resources": ["services", "configmaps", "secrets"], "verbs": READ},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
    {
        "apiGroups": [""],
        "resources": ["persistentvolumes", "persistentvolumeclaims"],
        "verbs": ALL,
    },
    {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ALL},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ALL},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ},
    {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["subjectaccessreviews"],
        "verbs": ["create"],
    },
]


def unavailable() -> str | None:
    """Return one sentence why process nodes cannot run on this machine, or None."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        return f"Process nodes need {' and '.join(missing)}: pip install 'kftrainer[nodes]'."
    return availability.unavailable()


def permissions() -> list[Document]:
    """Return the RBAC rules of the kubelet, and those of the API server at the kubelet."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": USER},
        "rules": RULES,
    }
    return [role, _binding(USER, USER), _binding(API_SERVER_USER, ADMIN_OF_KUBELETS)]


def _binding(user: str, role: str) -> Document:
    api_group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{api_group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": api_group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": api_group, "name": user}],
    }


def apiserver_flags(environment: Environment) -> commands.Argv:
    """Return the flags with which the API server authenticates at the kubelet."""
    return commands.kubelet_access(
        authority=environment.authority.certificate, client=environment.identity(API_SERVER_USER)
    )


def settings(environment: Environment, shape: Shape, serving: KeyPair) -> Settings:
    """Return the settings of the kubelet."""
    client = environment.identity(USER)
    return Settings(
        url=environment.url,
        authority=str(environment.authority.certificate),
        certificate=str(client.certificate),
        key=str(client.key),
        serving_certificate=str(serving.certificate),
        serving_key=str(serving.key),
        folder=str(environment.folder / NAME),
        apiserver_port=environment.apiserver_port,
        ports=tuple(environment.ports.reserve() for _ in range(shape.process_nodes)),
        resources=shape.process_node_resources,
        images={name: str(Path(folder).absolute()) for name, folder in shape.images.items()},
        only_mapped_images=shape.only_mapped_images,
        crash_backoff=shape.crash_backoff,
    )


async def start(environment: Environment, client: ApiClient, shape: Shape) -> None:
    """Start the kubelet and wait until its nodes are Ready."""
    for document in (*permissions(), STORAGE_CLASS):
        await client.apply(document)
    names = [f"{NODE_PREFIX}{number}" for number in range(shape.process_nodes)]
    hosts = [LOOPBACK, "localhost", *names]
    serving = environment.authority.issue(NAME, common_name="system:node", hosts=hosts)
    file = environment.folder / f"{NAME}.json"
    settings(environment, shape, serving).write(file)
    module = "kftrainer.devcluster.nodes.kubelet.main"
    process = environment.begin(NAME, [sys.executable, "-P", "-m", module, str(file)])

    async def all_ready() -> bool:
        process.check()
        nodes = [await client.get_or_none(f"/api/v1/nodes/{name}") for name in names]
        return all(node is not None and condition_is_true(node, "Ready") for node in nodes)

    await until(all_ready, within=READY_WITHIN, what="all process nodes becoming Ready")
