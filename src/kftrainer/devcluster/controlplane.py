"""A control plane as a context manager: ready in the block, stopped after it."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from kftrainer.devcluster import places
from kftrainer.devcluster.artifacts import binaries, manifests
from kftrainer.devcluster.artifacts.manifests import Document
from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.components import jobset, kubernetes, kwok
from kftrainer.devcluster.errors import DevClusterError, NotReadyError
from kftrainer.devcluster.folders import own_folder
from kftrainer.devcluster.processes.ports import PortReservations
from kftrainer.devcluster.processes.process import ManagedProcess
from kftrainer.devcluster.progress import SILENT, Progress
from kftrainer.devcluster.shape import BARE, Shape
from kftrainer.devcluster.site import ADMIN, ADMINS, Site, Supplies
from kftrainer.devcluster.waiting import until

DEATH_REPORTED_WITHIN = 30.0  # seconds; reached only if no process has died


class ControlPlane:
    """A running control plane, created by `running`."""

    def __init__(self, site: Site, shape: Shape) -> None:
        self._site = site
        self.shape = shape
        self.url = site.url
        self.folder = site.folder
        self.kubeconfig = site.kubeconfig_for(ADMIN, ADMINS, site.folder / "kubeconfig")

    @property
    def certificate_authority(self) -> Path:
        """The CA that signed the API server's certificate."""
        return self._site.authority.certificate

    @property
    def processes(self) -> Sequence[ManagedProcess]:
        """The processes, in the order in which they were started."""
        return tuple(self._site.processes)

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
        return self._site.kubeconfig_for(user, groups, path)

    def client(self, user: str = ADMIN, groups: Iterable[str] | None = None) -> ApiClient:
        """Return an API client for the administrator or for another user."""
        if groups is None:
            groups = ADMINS if user == ADMIN else ()
        return self._site.client(user, groups)

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
    return Supplies(
        programs=await binaries.provide(shape.binaries(), cache=cache, progress=progress),
        manifests={
            wanted.name: await manifests.provide(wanted, cache=cache, progress=progress)
            for wanted in shape.manifests()
        },
    )


async def _start(site: Site, shape: Shape, crds: Sequence[Document], progress: Progress) -> None:
    """Start all components in the order of their dependencies."""
    with progress.step("starting etcd"):
        etcd = await kubernetes.start_etcd(site)
    with progress.step("starting kube-apiserver"):
        signing = await kubernetes.start_apiserver(site, etcd, shape)
    async with site.client() as client:
        with progress.step("installing CRDs"):
            for definition in crds:
                await client.apply_crd(definition)
        controllers = kubernetes.begin_controllers(site, signing) if shape.controllers else None
        if shape.nodes:
            with progress.step(f"starting kwok with {shape.nodes} nodes"):
                await kwok.start(site, client, shape)
        if shape.jobset:
            with progress.step("starting the JobSet controller"):
                await jobset.start(site, client)
        if controllers is not None:
            with progress.step("waiting for kube-controller-manager and kube-scheduler"):
                await controllers.wait_ready(site, client)


async def _start_or_report_dead_process(
    site: Site, shape: Shape, crds: Sequence[Document], progress: Progress
) -> None:
    try:
        await _start(site, shape, crds, progress)
    except UnreachableError:
        # A process may have died; its leash reports that a moment after its connections have
        # closed.
        with suppress(NotReadyError):
            await until(site.has_dead_process, within=DEATH_REPORTED_WITHIN, what="a part's end")
        site.check()
        raise
    except DevClusterError:
        site.check()  # a request may have failed only because a process has died
        raise


def _crds(shape: Shape, supplies: Supplies) -> list[Document]:
    fetched = [supplies.manifests[source.name] / source.crd_file for source in shape.crds]
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
    cache = cache or places.cache_home()
    supplies = await gather_supplies(shape, cache, progress)
    crds = _crds(shape, supplies)  # first, to report invalid files before anything starts
    with ExitStack() as stack:
        folder = folder or stack.enter_context(own_folder(cache))
        ports = PortReservations(places.ports(cache))
        stack.callback(ports.release_all)
        port = ports.reserve() if shape.port is None else ports.claim(shape.port)
        now = datetime.now(UTC)  # noqa: TID251  start of the certificates' validity
        site = Site(folder, supplies, ports, apiserver_port=port, now=now)
        try:
            await _start_or_report_dead_process(site, shape, crds, progress)
            yield ControlPlane(site, shape)
        finally:
            with progress.step("stopping the control plane"):
                await site.stop()
