"""A control plane as a context manager: ready in the block, stopped after it."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.artifacts import binaries, manifests
from kftrainer.devcluster.artifacts.manifests import Document
from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.cluster_options import BARE, Shape
from kftrainer.devcluster.components import jobset, kubelet, kubernetes, kwok
from kftrainer.devcluster.environment import ADMIN, ADMINS, Environment, Supplies
from kftrainer.devcluster.errors import DevClusterError, MissingPartError, NotReadyError
from kftrainer.devcluster.processes.ports import PortReservations
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.progress import SILENT, Progress
from kftrainer.devcluster.temporary_folder import own_folder
from kftrainer.devcluster.waiting import until

DEATH_REPORTED_WITHIN = 30.0  # seconds; reached only if no process has died


class ControlPlane:
    """A running control plane, created by `running`."""

    def __init__(self, environment: Environment, shape: Shape) -> None:
        self._environment = environment
        self.shape = shape
        self.url = environment.url
        self.folder = environment.folder
        self.kubeconfig = environment.kubeconfig_for(
            ADMIN, ADMINS, environment.folder / "kubeconfig"
        )

    @property
    def certificate_authority(self) -> Path:
        """The CA that signed the API server's certificate."""
        return self._environment.authority.certificate

    @property
    def processes(self) -> Sequence[ManagedProcess]:
        """The processes, in the order in which they were started."""
        return tuple(self._environment.processes)

    @property
    def audit_log(self) -> Path:
        """The audit log of the API server, one JSON object per line.

        A line is written when the response is complete, so a moment after the client has received
        it.
        """
        return self.folder / kubernetes.AUDIT_LOG

    @property
    def service_socket(self) -> Path:
        """The socket at which the API server requests connections to Services (HTTP CONNECT)."""
        return self.folder / kubernetes.SERVICE_SOCKET

    def kubeconfig_for(self, user: str, groups: Iterable[str] = ()) -> Path:
        """Write a kubeconfig for this user, who has only the permissions granted by RBAC."""
        file_name = user.replace("/", "_").replace(":", "_")
        path = self.folder / "kubeconfigs" / f"user-{file_name}.yaml"
        return self._environment.kubeconfig_for(user, groups, path)

    def client(self, user: str = ADMIN, groups: Iterable[str] | None = None) -> ApiClient:
        """Return an API client for the administrator or for another user."""
        if groups is None:
            groups = ADMINS if user == ADMIN else ()
        return self._environment.client(user, groups)

    async def create_namespace(self, client: ApiClient, prefix: str = "test-") -> str:
        """Create a namespace in which pods can be created."""
        metadata = {"generateName": prefix}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        name: str = (await client.create(manifest))["metadata"]["name"]
        if self.shape.controllers:
            await kubernetes.wait_for_service_account(client, name)
        return name


async def gather_supplies(shape: Shape, cache: Path, progress: Progress) -> Supplies:
    """Find, download or build everything the shape needs; takes minutes on a new machine."""
    if shape.process_nodes and (reason := kubelet.unavailable()) is not None:
        raise MissingPartError(f"process nodes are not available: {reason}")
    return Supplies(
        programs=await binaries.provide(shape.binaries(), cache=cache, progress=progress),
        manifests={
            wanted.name: await manifests.provide(wanted, cache=cache, progress=progress)
            for wanted in shape.manifests()
        },
    )


async def _start(
    environment: Environment, shape: Shape, crds: Sequence[Document], progress: Progress
) -> None:
    """Start all components in the order of their dependencies."""
    with progress.step("starting etcd"):
        etcd = await kubernetes.start_etcd(environment)
    with progress.step("starting kube-apiserver"):
        signing = await kubernetes.start_apiserver(environment, etcd, shape)
    async with environment.client() as client:
        with progress.step("installing CRDs"):
            for definition in crds:
                await client.apply_crd(definition)
        controllers = (
            kubernetes.begin_controllers(environment, signing) if shape.controllers else None
        )
        if shape.nodes:
            with progress.step(f"starting kwok with {shape.nodes} nodes"):
                await kwok.start(environment, client, shape)
        if shape.process_nodes:
            with progress.step(f"starting the kubelet of {shape.process_nodes} process nodes"):
                await kubelet.start(environment, client, shape)
        if shape.jobset:
            with progress.step("starting the JobSet controller"):
                await jobset.start(environment, client)
        if controllers is not None:
            with progress.step("waiting for kube-controller-manager and kube-scheduler"):
                await controllers.wait_ready(environment, client)


async def _start_or_report_dead_process(
    environment: Environment, shape: Shape, crds: Sequence[Document], progress: Progress
) -> None:
    try:
        await _start(environment, shape, crds, progress)
    except UnreachableError:
        # A process may have died; its wrapper reports that a moment after its connections have
        # closed.
        with suppress(NotReadyError):
            await until(
                environment.has_dead_process,
                within=DEATH_REPORTED_WITHIN,
                what="a process to end",
            )
        environment.check()
        raise
    except DevClusterError:
        environment.check()  # a request may have failed only because a process has died
        raise


def crds_of(shape: Shape, supplies: Supplies) -> list[Document]:
    """Return the CRDs to install before the controllers start."""
    fetched = [supplies.manifests[source.name] / source.crd_file for source in shape.crds]
    if shape.jobset:
        # The garbage collector of kube-controller-manager looks for new kinds every 30 seconds.
        fetched.append(supplies.manifests["jobset"] / jobset.CRD_FILE)
    return [crd for file in (*fetched, *shape.crd_files) for crd in kubernetes.crds_in(file)]


@asynccontextmanager
async def running(
    shape: Shape = BARE,
    *,
    folder: Path | None = None,
    cache: Path | None = None,
    progress: Progress = SILENT,
) -> AsyncIterator[ControlPlane]:
    """Run a control plane for the duration of the block, in its own folder unless one is given."""
    cache = cache or cache_paths.cache_home()
    supplies = await gather_supplies(shape, cache, progress)
    crds = crds_of(shape, supplies)  # first, to report invalid files before anything starts
    with ExitStack() as stack:
        folder = folder or stack.enter_context(own_folder(cache))
        ports = PortReservations(cache_paths.ports(cache))
        stack.callback(ports.release_all)
        port = ports.reserve() if shape.port is None else ports.claim(shape.port)
        now = datetime.now(UTC)  # noqa: TID251  start of the certificates' validity
        environment = Environment(folder, supplies, ports, apiserver_port=port, now=now)
        try:
            await _start_or_report_dead_process(environment, shape, crds, progress)
            yield ControlPlane(environment, shape)
        finally:
            with progress.step("stopping the control plane"):
                await environment.stop()
