"""Runs the released Kueue controller, installed from its own chart, and creates its objects."""

import base64
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import manifests
from kftrainer.devcluster.artifacts.manifests import Loader
from kftrainer.devcluster.artifacts.versions import KUEUE, Manifests
from kftrainer.devcluster.client import ApiClient, Object, UnreachableError
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.progress import SILENT
from kftrainer.devcluster.waiting import until
from tests.support.helm import helm
from tests.support.service_proxy import ServiceRoutes

NAME, NAMESPACE = "kueue", "kueue-system"
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}-controller-manager"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}-webhook-server-cert"
SERVICE = f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}-webhook-service"
CONFIGURATION = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}-manager-config"
CONFIGURATION_FILE = "controller_manager_config.yaml"
READY_WITHIN = 120.0  # much more than it takes on a busy machine

API = "kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
PATCH_MANAGER = "kueue.x-k8s.io/manager"
MULTI_KUEUE = "kueue.x-k8s.io/multikueue"

FOLDER = "charts/kueue"
KINDS = (
    *("admissionchecks", "clusterqueues", "cohorts", "localqueues", "multikueueclusters"),
    *("multikueueconfigs", "provisioningrequestconfigs", "resourceflavors", "topologies"),
    *("workloadpriorityclasses", "workloads"),
)
# The parts of the chart that the controller needs; the others are its Deployment, its dashboard,
# roles for users, and objects of cert-manager and Prometheus.
CHART = Manifests(
    "kueue-chart",
    "sigs.k8s.io/kueue",
    KUEUE.version,
    "h1:mPNzr37u0nwI7ikST5QQl5gg6EgtYOAvC9ZbTgywdN8=",
    tuple(
        f"{FOLDER}/{file}"
        for file in (
            "Chart.yaml",
            "values.yaml",
            "templates/_helpers.tpl",
            *(f"templates/crd/kueue.x-k8s.io_{kind}.yaml" for kind in KINDS),
            "templates/internalcert/secret.yaml",
            "templates/manager/manager-config.yaml",
            "templates/rbac/leader_election_role.yaml",
            "templates/rbac/leader_election_role_binding.yaml",
            "templates/rbac/manager_secrets_role.yaml",
            "templates/rbac/manager_secrets_role_binding.yaml",
            "templates/rbac/role.yaml",
            "templates/rbac/role_binding.yaml",
            "templates/rbac/service_account.yaml",
            "templates/webhook/manifests.yaml",
            "templates/webhook/service.yaml",
        )
    ),
)


def configuration(*, webhook_port: int, health_port: int, certificates: Path) -> Object:
    """The controller's configuration: one replica at local ports, with PodsReady conditions."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{health_port}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": LOOPBACK, "port": webhook_port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        # The server for visibility has no settings for its address or its certificates.
        "featureGates": {"VisibilityOnDemand": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "waitForPodsReady": {"timeout": "1h", "blockAdmission": False},
        "multiKueue": {"gcInterval": "1s"},
        "integrations": {
            "frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob"]
        },
    }


async def chart_objects(helm_program: Path, settings: Object) -> list[Object]:
    """The objects that Kueue's chart renders with this configuration of the controller."""
    fetched = await manifests.provide(CHART, cache=cache_paths.cache_home(), progress=SILENT)
    text = helm(
        helm_program,
        *("template", NAME, str(fetched / FOLDER), "--namespace", NAMESPACE),
        values={"managerConfig": {"controllerManagerConfigYaml": json.dumps(settings)}},
    )
    return [each for each in yaml.load_all(text, Loader=Loader) if each]


async def _install(api: ApiClient, objects: Sequence[Object]) -> None:
    definitions = [each for each in objects if each["kind"] == "CustomResourceDefinition"]
    webhooks = [each for each in objects if each["kind"].endswith("WebhookConfiguration")]
    others = [each for each in objects if each not in definitions and each not in webhooks]
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for each in definitions:
        await api.apply_crd(each)
    for each in (*others, *webhooks):
        await api.apply(each)


async def _mount_certificates(api: ApiClient, folder: Path, process: ManagedProcess) -> None:
    """Write the Secret's data to files, as a kubelet does; Kueue issues the certificates."""

    async def issued() -> Mapping[str, str] | None:
        process.check()
        data = (await api.get(SECRET)).get("data") or {}
        return data if "tls.crt" in data else None

    data = await until(issued, within=READY_WITHIN, what="Kueue's certificates")
    for name, text in data.items():
        unfinished = folder / f"{name}.unfinished"
        unfinished.write_bytes(base64.b64decode(text))
        os.replace(unfinished, folder / name)


async def _wait_ready(url: str, process: ManagedProcess) -> None:
    async with ApiClient(url, None) as probes:

        async def ready() -> bool:
            process.check()
            try:
                await probes.fetch("GET", "/readyz")
            except (ApiError, UnreachableError):
                return False
            return True

        await until(ready, within=READY_WITHIN, what="Kueue being ready")


async def _wait_for_webhooks(api: ApiClient) -> None:
    """Wait until both webhooks respond: one sets a default, the other rejects a wrong value."""
    path = f"/apis/{API}/clusterqueues"

    async def answer(spec: Object) -> str:
        body = {**queue_manifest("probe"), "spec": spec}
        try:
            created = await api.request("POST", path, query={"dryRun": "All"}, body=body)
        except ApiError as error:
            return str(error)
        return ",".join(created["metadata"].get("finalizers", ()))

    async def both() -> bool:
        wrong = {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Wrong"}]}}
        return "resource-in-use" in await answer({}) and "denied" in await answer(wrong)

    await until(both, within=READY_WITHIN, what="Kueue's webhooks answering")


@asynccontextmanager
async def kueue(
    plane: ControlPlane, routes: ServiceRoutes, programs: Mapping[str, Path], home: Path
) -> AsyncIterator[ManagedProcess]:
    """The controller on a control plane whose Services lead to processes, ready to queue jobs.

    The chart's objects are applied unchanged. The process has the permissions of the chart's
    service account, and the certificates that it issues itself.
    """
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    webhook_port, health_port = ports.reserve(), ports.reserve()
    certificates = home / "certificates"
    certificates.mkdir(parents=True)
    settings = configuration(
        webhook_port=webhook_port, health_port=health_port, certificates=certificates
    )
    process: ManagedProcess | None = None
    try:
        async with plane.client() as api:
            await _install(api, await chart_objects(programs["helm"], settings))
            address = (await api.get(SERVICE))["spec"]["clusterIP"]
            routes.lead({f"{address}:443": [webhook_port]})
            config = home / CONFIGURATION_FILE
            config.write_text((await api.get(CONFIGURATION))["data"][CONFIGURATION_FILE])
            argv = (
                programs[KUEUE.name],
                *("--config", str(config), "--zap-log-level", "3"),
                *("--kubeconfig", str(plane.kubeconfig_for(USER))),
            )
            process = ManagedProcess("kueue", argv, plane.folder / "logs" / "kueue.log", home)
            process.start()
            await _mount_certificates(api, certificates, process)
            await _wait_ready(f"http://{LOOPBACK}:{health_port}", process)
            await _wait_for_webhooks(api)
        yield process
        process.check()
    finally:
        if process is not None:
            process.kill()
        ports.release_all()


@dataclass(frozen=True, slots=True)
class Flavor:
    """Nodes of one sort, with a quota of CPUs."""

    name: str
    cpus: str
    spec: Mapping[str, Any]

    def manifest(self) -> Object:
        """The ResourceFlavor."""
        return _manifest("ResourceFlavor", self.name, spec=dict(self.spec))

    def quota(self) -> Object:
        """The quota in a ClusterQueue."""
        return {"name": self.name, "resources": [{"name": "cpu", "nominalQuota": self.cpus}]}


def _manifest(kind: str, name: str, namespace: str | None = None, **fields: Any) -> Object:
    metadata = {"name": name} | ({} if namespace is None else {"namespace": namespace})
    return {"apiVersion": API, "kind": kind, "metadata": metadata, **fields}


def queue_manifest(name: str, *flavors: Flavor, **spec: Any) -> Object:
    """A ClusterQueue for all namespaces with the quotas of these flavors, in this order."""
    group = {"coveredResources": ["cpu"], "flavors": [each.quota() for each in flavors]}
    groups = {"resourceGroups": [group]} if flavors else {}
    return _manifest("ClusterQueue", name, spec={"namespaceSelector": {}, **groups, **spec})


def local_queue(namespace: str, cluster_queue: str, name: str = "queue") -> Object:
    """A LocalQueue of the namespace."""
    return _manifest("LocalQueue", name, namespace, spec={"clusterQueue": cluster_queue})


def priority(name: str, value: int) -> Object:
    """A WorkloadPriorityClass."""
    return _manifest("WorkloadPriorityClass", name, value=value)


def multi_kueue(worker: str, kubeconfig: str) -> list[Object]:
    """An AdmissionCheck of this name that runs jobs on the worker cluster, and what it needs."""
    source = {"kubeConfig": {"location": worker, "locationType": "Secret"}}
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": worker}
    check = {"controllerName": MULTI_KUEUE, "parameters": parameters}
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": worker, "namespace": NAMESPACE},
            "stringData": {"kubeconfig": kubeconfig},
        },
        _manifest("MultiKueueCluster", worker, spec={"clusterSource": source}),
        _manifest("MultiKueueConfig", worker, spec={"clusters": [worker]}),
        _manifest("AdmissionCheck", worker, spec=check),
    ]


def topology(name: str, *levels: str) -> Object:
    """A Topology with these node labels as its levels."""
    return _manifest("Topology", name, spec={"levels": [{"nodeLabel": each} for each in levels]})
