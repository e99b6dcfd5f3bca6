"""A control plane as its users see it: ready when a block begins, gone when it ends."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from kftrainer.devcluster import places
from kftrainer.devcluster.build import binaries, manifests
from kftrainer.devcluster.build.manifests import Document
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

DEATH_TOLD_WITHIN = 30.0  # which pass only if nothing has died


class ControlPlane:
    """A running control plane; `running` makes them."""

    def __init__(self, site: Site, shape: Shape) -> None:
        self._site = site
        self.shape = shape
        self.url = site.url
        self.folder = site.folder
        self.kubeconfig = site.kubeconfig_for(ADMIN, ADMINS, site.folder / "kubeconfig")

    @property
    def certificate_authority(self) -> Path:
        """The authority that signed the API server's certificate."""
        return self._site.authority.certificate

    @property
    def processes(self) -> Sequence[ManagedProcess]:
        """The parts, in the order in which they were started."""
        return tuple(self._site.processes)

    @property
    def audit_log(self) -> Path:
        """Where the API server says who asked it for what, one JSON object a line.

        A line is written when the answer is over, so a moment after who asked has it.
        """
        return self.folder / kubernetes.AUDIT_LOG

    @property
    def service_socket(self) -> Path:
        """Where the API server asks for connections to Services, as of an HTTP proxy (CONNECT)."""
        return self.folder / kubernetes.SERVICE_SOCKET

    def kubeconfig_for(self, user: str, groups: Iterable[str] = ()) -> Path:
        """A kubeconfig for this user, whose rights come from RBAC alone."""
        file_name = user.replace("/", "_").replace(":", "_")
        path = self.folder / "kubeconfigs" / f"user-{file_name}.yaml"
        return self._site.kubeconfig_for(user, groups, path)

    def client(self, user: str = ADMIN, groups: Iterable[str] | None = None) -> ApiClient:
        """An API client: for the administrator, or for any other user."""
        if groups is None:
            groups = ADMINS if user == ADMIN else ()
        return self._site.client(user, groups)

    async def create_namespace(self, client: ApiClient, prefix: str = "test-") -> str:
        """A fresh namespace that pods can be made in."""
        metadata = {"generateName": prefix}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        name: str = (await client.create(manifest))["metadata"]["name"]
        if self.shape.controllers:
            await kubernetes.wait_for_service_account(client, name)
        return name


async def gather_supplies(shape: Shape, cache: Path, progress: Progress) -> Supplies:
    """Find, fetch or build all that the shape takes; on a new machine this takes minutes."""
    return Supplies(
        programs=await binaries.provide(shape.binaries(), cache=cache, progress=progress),
        manifests={
            wanted.name: await manifests.provide(wanted, cache=cache, progress=progress)
            for wanted in shape.manifests()
        },
    )


async def _put_up(site: Site, shape: Shape, crds: Sequence[Document], progress: Progress) -> None:
    """Start every part after what it needs."""
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


async def _put_up_or_say_who_died(
    site: Site, shape: Shape, crds: Sequence[Document], progress: Progress
) -> None:
    try:
        await _put_up(site, shape, crds, progress)
    except UnreachableError:
        # Perhaps a part has died; its leash tells so a moment after its connections have ended.
        with suppress(NotReadyError):
            await until(site.has_lost_a_part, within=DEATH_TOLD_WITHIN, what="a part's end")
        site.check()
        raise
    except DevClusterError:
        site.check()  # a request may have failed only because a part has died
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
    """A control plane for the length of the block, in a folder of its own unless one is given."""
    cache = cache or places.cache_home()
    supplies = await gather_supplies(shape, cache, progress)
    crds = _crds(shape, supplies)  # read now: a wrong file is told before anything starts
    with ExitStack() as stack:
        folder = folder or stack.enter_context(own_folder(cache))
        ports = PortReservations(places.ports(cache))
        stack.callback(ports.release_all)
        port = ports.reserve() if shape.port is None else ports.claim(shape.port)
        now = datetime.now(UTC)  # noqa: TID251  certificates are valid from this machine's now
        site = Site(folder, supplies, ports, apiserver_port=port, now=now)
        try:
            await _put_up_or_say_who_died(site, shape, crds, progress)
            yield ControlPlane(site, shape)
        finally:
            with progress.step("stopping the control plane"):
                await site.stop()
