"""The operator installed by its chart: manager replicas that the API server calls."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import NOT_FOUND, ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.errors import ApiError, NotReadyError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from tests.support.audit import AuditedRequest, Permission, refused, requests_of, unused
from tests.support.managers import ManagerProcess, started
from tests.support.objects import API
from tests.support.processes import ran
from tests.support.releases import NAME, NAMESPACE, PodProgram, Release, user_of
from tests.support.service_proxy import ServiceRoutes
from tests.support.webhooks import CONFIGURATION_PATH, MERGE, SECRET_PATH, wait_until_called

MANAGER = f"{NAME}-controller-manager"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{MANAGER}"
SERVICE = f"/api/v1/namespaces/{NAMESPACE}/services/{MANAGER}"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "trainer.kubeflow.org"
KINDS = {
    "trainjobs": "TrainJob",
    "trainingruntimes": "TrainingRuntime",
    "clustertrainingruntimes": "ClusterTrainingRuntime",
}
WITHIN = 60.0
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/trainer.kubeflow.org"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a replica listens; in a cluster each has an address of its own, here a port."""

    webhook: int
    metrics: int
    health: int

    def values(self) -> Mapping[str, Any]:
        """Chart values with these ports, for the first replica."""
        return {
            "webhook": {"port": self.webhook},
            "metrics": {"port": self.metrics},
            "health": {"port": self.health},
        }

    def flags(self) -> Sequence[str]:
        """Flags with these ports, for a further replica."""
        return (
            *("--webhook-port", str(self.webhook)),
            *("--metrics-bind-address", f":{self.metrics}"),
            *("--health-probe-bind-address", f":{self.health}"),
        )

    @property
    def webhook_url(self) -> str:
        """Where the replica serves the webhook."""
        return f"https://{LOOPBACK}:{self.webhook}"

    @property
    def metrics_url(self) -> str:
        """The URL of the replica's metrics."""
        return f"https://{LOOPBACK}:{self.metrics}/metrics"


@contextmanager
def free_ports(replicas: int) -> Iterator[Sequence[Ports]]:
    """Ports for this number of replicas."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    try:
        yield [Ports(ports.reserve(), ports.reserve(), ports.reserve()) for _ in range(replicas)]
    finally:
        ports.release_all()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the operator is to be installed."""

    plane: ControlPlane
    routes: ServiceRoutes
    home: Path


def webhook_address(service: Object) -> str:
    """Where the API server calls the webhook."""
    [port] = [each for each in service["spec"]["ports"] if each["name"] == "webhook-server"]
    return f"{service['spec']['clusterIP']}:{port['port']}"


def target_port(service: Object, deployment: Object) -> int:
    """The port of the pods that the webhook's Service leads to."""
    [port] = [each for each in service["spec"]["ports"] if each["name"] == "webhook-server"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    by_name = {each["name"]: each["containerPort"] for each in container["ports"]}
    target: int = by_name.get(port["targetPort"], port["targetPort"])
    return target


@asynccontextmanager
async def replicas(
    cluster: Cluster,
    ports: Sequence[Ports],
    *,
    other_ports: Sequence[Ports] = (),
    namespace: str = "default",
) -> AsyncIterator[Sequence[ManagerProcess]]:
    """The manager that is installed: a process for each ports, ready and called by the API server.

    The API server calls the first one that listens, as it would call those that are ready; they
    may be beside older ones. The namespace is one that they look after.
    """
    async with cluster.plane.client() as api, AsyncExitStack() as stack:
        deployment, service = await api.get(DEPLOYMENT), await api.get(SERVICE)
        answering = [each.webhook for each in (*other_ports, *ports)]
        cluster.routes.lead({webhook_address(service): answering})
        program = PodProgram(cluster.plane, api, cluster.home)
        prepared = []  # all before the first one starts: they read the same files
        for each in ports:
            user_visible = each.webhook == target_port(service, deployment)
            flags = () if user_visible else each.flags()
            argv = await program.argv(deployment["spec"]["template"]["spec"], *flags)
            prepared.append((argv, f"http://{LOOPBACK}:{each.health}"))
        managers = [await stack.enter_async_context(started(argv, url)) for argv, url in prepared]
        for manager in managers:
            await manager.wait_ready()
        await wait_until_called(cluster.plane, namespace)
        yield managers
        await stack.aclose()
        # They were killed and could not release it: do not wait until it expires.
        if await api.get_or_none(LEASE):
            await api.delete(LEASE)


async def called_tokens(api: ApiClient) -> set[str]:
    """The tokens in the paths that the API server calls; an empty one for a path without."""
    webhooks = (await api.get(CONFIGURATION_PATH))["webhooks"]
    paths = [each["clientConfig"]["service"]["path"] for each in webhooks]
    return {path.removeprefix("/").partition("/")[2] for path in paths}


async def holder(api: ApiClient) -> str:
    """The holder of the lease; empty if there is none."""
    lease = await api.get_or_none(LEASE)
    return str(lease["spec"].get("holderIdentity") or "") if lease else ""


async def requests_by(
    account: str, log: Path, start: int, rights: Sequence[Permission]
) -> Sequence[AuditedRequest]:
    """Wait until all rights of the account have been used; its requests from this byte of the log.

    The audit entry of a request is written shortly after its response.
    """
    requests: list[AuditedRequest] = []

    async def all_used() -> bool:
        requests[:] = requests_of(log, user_of(account), start=start)
        return not unused(rights, requests)

    try:
        await until(all_used, within=WITHIN, what=f"a use of each right of {account}", every=0.5)
    except NotReadyError as error:
        error.add_note(f"unused: {unused(rights, requests)}; refused: {refused(requests)}")
        raise
    return requests


async def remove_all(release: Release, api: ApiClient) -> None:
    """Delete everything of the operator except its CRDs; no manager may run.

    The garbage collector takes half a minute to notice kinds that are new.
    """
    await release("uninstall", NAME, "--no-hooks", "--ignore-not-found")
    if await api.get_or_none(SECRET_PATH):  # helm keeps it if the manager has created it again
        await api.delete(SECRET_PATH)
    await _wait_until_not_found(api, _delete_all, "the end of all TrainJobs and runtimes")


async def forget_kinds(api: ApiClient) -> None:
    """Delete the CRDs, after a wipe."""
    await _wait_until_not_found(api, _delete_kind, "the end of all CustomResourceDefinitions")


async def _wait_until_not_found(
    api: ApiClient, end: Callable[[ApiClient, str], Awaitable[bool]], what: str
) -> None:
    left = list(KINDS)

    async def is_over() -> bool:
        for plural in tuple(left):
            try:
                over = await end(api, plural)
            except ApiError as error:  # it goes in this moment, or its storage is busy with that
                over = error.status == NOT_FOUND
            if over:
                left.remove(plural)
        return not left

    await until(is_over, within=WITHIN, what=what)


async def _delete_kind(api: ApiClient, plural: str) -> bool:
    await api.delete(f"{CRDS}/{plural}.{GROUP}")
    return False


async def _delete_all(api: ApiClient, plural: str) -> bool:
    """Delete the objects of the kind, also those that would wait for a manager."""
    found = (await api.get(f"/apis/{API}/{plural}"))["items"]
    for each in found:
        path = await api.path_of({**each, "apiVersion": API, "kind": KINDS[plural]})
        try:
            if each["metadata"].get("finalizers"):
                no_finalizers = {"metadata": {"finalizers": None}}
                await api.request("PATCH", path, body=no_finalizers, content_type=MERGE)
            await api.delete(path)
        except ApiError as error:
            if error.status != NOT_FOUND:  # or it goes in this moment
                raise
    return not found


def hook(hooks: Sequence[Object], moment: str) -> Object:
    """The Pod or Job that helm runs at this moment."""
    [found] = [
        each
        for each in hooks
        if each["kind"] in ("Pod", "Job")
        and moment in each["metadata"]["annotations"]["helm.sh/hook"].split(",")
    ]
    return found


def account_of(hook: Object) -> str:
    """The ServiceAccount that a hook runs as."""
    spec = hook["spec"] if hook["kind"] == "Pod" else hook["spec"]["template"]["spec"]
    return str(spec["serviceAccountName"])


async def run_as_kubelet(cluster: Cluster, api: ApiClient, hook: Object) -> str:
    """Run the command of the hook's pod, set the pod's result, and return the output.

    Its node is a fake that lets it run for ever.
    """
    pod = await _running_pod(api, hook)
    argv = await PodProgram(cluster.plane, api, cluster.home).argv(pod["spec"])
    program = await ran(argv)
    [container] = pod["status"]["containerStatuses"]
    ended = {"exitCode": program.code, "reason": "Error" if program.code else "Completed"}
    status = {
        "phase": "Failed" if program.code else "Succeeded",
        "containerStatuses": [{**container, "ready": False, "state": {"terminated": ended}}],
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
    await api.request("PATCH", path, body={"status": status}, content_type=MERGE)
    assert program.code == 0, program.error_output
    return program.printed


async def _running_pod(api: ApiClient, hook: Object) -> Object:
    name = hook["metadata"]["name"]

    async def running() -> Object | None:
        pods = (await api.get(f"/api/v1/namespaces/{NAMESPACE}/pods"))["items"]
        for pod in pods:
            owners = [each["name"] for each in pod["metadata"].get("ownerReferences", ())]
            if name in (pod["metadata"]["name"], *owners):
                return pod if pod["status"].get("phase") == "Running" else None
        return None

    return await until(running, within=WITHIN, what=f"a pod of the hook {name} running")
