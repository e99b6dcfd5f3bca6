"""Passes DNS records and Service ports to the sandbox whenever they have changed."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from kftrainer.devcluster.nodes.kubelet.network.names import (
    endpoints,
    records,
    service_ports,
)
from kftrainer.devcluster.nodes.kubelet.pods.states import Object
from kftrainer.devcluster.nodes.sandbox.protocol import Sandbox, ServicePort

log = structlog.get_logger(__name__)


class Announcer:
    """Computes what pods see of the Services, and announces it if it is new."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        services: Callable[[], Sequence[Object]],
        slices: Callable[[], Sequence[Object]],
        apiserver_port: int,
    ) -> None:
        self._sandbox = sandbox
        self._services = services
        self._slices = slices
        self._apiserver_port = apiserver_port
        self._changed = asyncio.Event()
        self._names: dict[str, list[str]] | None = None
        self._ports: list[ServicePort] | None = None

    def on_change(self, _: object) -> None:
        """Request an announcement."""
        self._changed.set()

    async def run(self) -> None:
        """Announce after each change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.announce()

    async def announce(self) -> None:
        """Announce what has changed since the last time."""
        services, ready = self._services(), endpoints(self._slices())
        names = records(services, ready)
        if names != self._names:
            await self._sandbox.set_names(names)
            self._names = names
        ports = service_ports(services, ready, apiserver_port=self._apiserver_port)
        if ports != self._ports:
            await self._sandbox.set_services(ports)
            self._ports = ports
