"""Runs the kubelet of all process nodes: `python -m kftrainer.devcluster.nodes.kubelet.main FILE`.

The file contains the settings. When this process ends, even by SIGKILL, the sandbox ends, and with
it all processes of all pods.
"""

import asyncio
import signal
import ssl
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from kftrainer import logs
from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.components.pki import KeyPair, client_tls
from kftrainer.devcluster.nodes.kubelet.images import Images
from kftrainer.devcluster.nodes.kubelet.network.addresses import Addresses
from kftrainer.devcluster.nodes.kubelet.network.announcer import Announcer
from kftrainer.devcluster.nodes.kubelet.node import HOST_IP, ProcessNode, this_machine
from kftrainer.devcluster.nodes.kubelet.pods.context import NodeContext, Timing, Volumes
from kftrainer.devcluster.nodes.kubelet.pods.events import PodEvents
from kftrainer.devcluster.nodes.kubelet.pods.manager import PodManager, is_assigned_to
from kftrainer.devcluster.nodes.kubelet.serving.api_server import KubeletApi
from kftrainer.devcluster.nodes.kubelet.settings import Settings
from kftrainer.devcluster.nodes.kubelet.storage import run_provisioner
from kftrainer.devcluster.nodes.kubelet.volumes import PodVolumes
from kftrainer.devcluster.nodes.kubelet.waiting import first_of
from kftrainer.devcluster.nodes.sandbox.client import Sandbox
from kftrainer.devcluster.nodes.sandbox.protocol import SandboxError
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import ClientCertificate, Connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.events.recorder import EventRecorder
from kftrainer.machinery.manager.clock import Clock, SystemClock
from kftrainer.machinery.manager.runnable import Runnable

log = structlog.get_logger(__name__)

PODS: Resource[Manifest] = Resource("", "v1", "Pod", "pods", namespaced=True, decode=unstructured)
SERVICES: Resource[Manifest] = Resource(
    "", "v1", "Service", "services", namespaced=True, decode=unstructured
)
SLICES: Resource[Manifest] = Resource(
    "discovery.k8s.io",
    "v1",
    "EndpointSlice",
    "endpointslices",
    namespaced=True,
    decode=unstructured,
)
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Kubelet:
    """The parts of the kubelet that exist once for all nodes."""

    def __init__(
        self,
        settings: Settings,
        sandbox: Sandbox,
        api: ApiClient,
        client: Client,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._sandbox = sandbox
        self._api = api
        self._client = client
        self._clock = clock
        self._folder = Path(settings.folder)
        self._services = Informer(client, SERVICES, clock=clock)
        self._slices = Informer(client, SLICES, clock=clock)
        assigned = is_assigned_to(frozenset(settings.nodes))
        self._pods = Informer(client, PODS, clock=clock, keep=assigned)
        self._recorders = {
            name: EventRecorder(client, clock=clock, component="kubelet", hostname=name)
            for name in settings.nodes
        }
        machine = this_machine(self._folder)
        self._nodes = {
            name: ProcessNode(name, machine, settings.resources, port=port, api=api, clock=clock)
            for name, port in zip(settings.nodes, settings.ports, strict=True)
        }
        self._manager = PodManager(
            {name: self._context(number, name) for number, name in enumerate(settings.nodes)}
        )
        self._announcer = Announcer(
            sandbox,
            services=self._services.list,
            slices=self._slices.list,
            apiserver_port=settings.apiserver_port,
        )

    def _context(self, number: int, name: str) -> NodeContext:
        folders = {image: Path(folder) for image, folder in self._settings.images.items()}

        def new_volumes(folder: Path) -> Volumes:
            return PodVolumes(folder, self._client, self._clock)

        return NodeContext(
            name=name,
            host_ip=HOST_IP,
            sandbox=self._sandbox,
            api=self._api,
            clock=self._clock,
            events=PodEvents(self._recorders[name]),
            images=Images(folders, only_mapped=self._settings.only_mapped_images),
            addresses=Addresses(number),
            folder=self._folder / "pods",
            services=self._services.list,
            node=lambda: self._nodes[name].manifest,
            new_volumes=new_volumes,
            timing=Timing(crash=self._settings.crash_backoff),
        )

    async def run(self) -> None:
        """Register the nodes and run their pods until cancelled."""
        async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
            never = asyncio.Event()

            async def start(part: Runnable) -> None:
                ready = asyncio.Event()
                tasks.create_task(part.run(ready.set, never), name=part.name)
                await ready.wait()

            for recorder in self._recorders.values():
                await start(recorder)
            for informer in (self._services, self._slices):
                informer.add_handler(self._announcer.on_change)
                await start(informer)
            await self._announcer.announce()
            tasks.create_task(self._announcer.run())
            tasks.create_task(run_provisioner(self._client, self._folder / "volumes"))
            await self._serve(stack)
            for node in self._nodes.values():
                await node.register()
                tasks.create_task(node.run())
            self._pods.add_handler(self._manager.on_change)
            await start(self._pods)
            log.info("kubelet_started", nodes=list(self._nodes))
            await self._manager.run()

    async def _serve(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        tls = server_tls(settings)
        for name, port in zip(settings.nodes, settings.ports, strict=True):
            server = KubeletApi(name, self._manager, self._api, self._clock)
            stack.push_async_callback(server.stop)
            await server.start(port, tls)


def server_tls(settings: Settings) -> ssl.SSLContext:
    """Return TLS settings that require client certificates of the cluster's CA."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=settings.authority)
    tls.load_cert_chain(settings.serving_certificate, settings.serving_key)
    tls.verify_mode = ssl.CERT_REQUIRED
    return tls


async def fail_with(sandbox: Sandbox) -> None:
    """Raise when the sandbox has ended by itself."""
    await sandbox.ended()
    raise SandboxError("the sandbox has ended, and with it the containers of all pods")


async def run(settings: Settings) -> None:
    """Run until a signal requests the end."""
    clock = SystemClock()
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    pair = KeyPair(Path(settings.certificate), Path(settings.key))
    tls = client_tls(Path(settings.authority), pair)
    connection = Connection(settings.url, tls, ClientCertificate())
    stop = asyncio.Event()
    for signum in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with (
        ApiClient(settings.url, tls) as api,
        HttpTransport(connection, user_agent="kftrainer-kubelet") as transport,
        Sandbox(log=folder.parent / "logs" / "sandbox.log", hide=[str(folder.parent)]) as sandbox,
    ):
        kubelet = Kubelet(settings, sandbox, api, Client(transport), clock)
        await first_of(kubelet.run(), stop.wait(), fail_with(sandbox))


def main(argv: Sequence[str]) -> int:
    """Run with the settings in a file."""
    logs.set_up()
    asyncio.run(run(Settings.read(Path(argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
