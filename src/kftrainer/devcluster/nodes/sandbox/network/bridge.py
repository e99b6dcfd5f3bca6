"""The network of the pods: a bridge in the sandbox's hub, and a namespace for each pod.

There is no route out of the machine: pods reach other pods, Services and announced host ports.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyroute2.iproute.linux import AsyncIPRoute

from kftrainer.devcluster.nodes.sandbox import namespaces
from kftrainer.devcluster.nodes.sandbox.namespaces import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWUTS,
)
from kftrainer.devcluster.nodes.sandbox.protocol import PodSandbox

BRIDGE = "cni0"
GATEWAY = "10.244.0.1"
POD_PREFIX = 16
SERVICE_RANGE = "10.0.0.0/24"
LOCAL_TABLE = 255
KINDS = {"net": CLONE_NEWNET, "ipc": CLONE_NEWIPC, "uts": CLONE_NEWUTS}
# As container runtimes set them: containers without privileges may use all ports and ping.
SETTINGS = {
    "net/ipv4/ip_unprivileged_port_start": "0",
    "net/ipv4/ping_group_range": "0 0",
}


def hardware_address(ip: str) -> str:
    """Return the MAC address of a pod: neighbors' caches stay correct when an IP is used again."""
    return ":".join(f"{byte:02x}" for byte in b"\x0a\x58" + IPv4Address(ip).packed)


@dataclass(frozen=True, slots=True)
class PodNamespaces:
    """Open namespaces of a pod, and its interface in the hub."""

    net: int
    ipc: int
    uts: int
    interface: str  # "" for a pod in the network of the hub

    @property
    def files(self) -> list[int]:
        """The descriptors in the order in which the shim expects them."""
        return [self.net, self.ipc, self.uts]

    def close(self) -> None:
        """Close the descriptors; the kernel deletes namespaces that nothing uses."""
        for fd in self.files:
            os.close(fd)


def _open(kind: str) -> int:
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)


class Network:
    """Creates the namespaces of pods; the process itself is in the hub's."""

    def __init__(self) -> None:
        self._netlink: Any = AsyncIPRoute()
        self._hub = {kind: _open(kind) for kind in KINDS}
        self._count = 0

    async def __aenter__(self) -> Self:
        """Create the bridge and accept connections to all addresses of Services."""
        link = self._netlink
        await link.link("add", ifname=BRIDGE, kind="bridge")
        [bridge] = await link.link_lookup(ifname=BRIDGE)
        [loopback] = await link.link_lookup(ifname="lo")
        await link.addr("add", index=bridge, address=GATEWAY, prefixlen=POD_PREFIX)
        for index in (bridge, loopback):
            await link.link("set", index=index, state="up")
        await link.route(
            "add", dst=SERVICE_RANGE, type="local", scope="host", oif=loopback, table=LOCAL_TABLE
        )
        # Connections to addresses outside fail at once instead of after a timeout.
        await link.route("add", dst="0.0.0.0/0", type="unreachable")
        _set({**SETTINGS, "net/ipv4/ip_forward": "1"})
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection to the kernel; the namespace ends with the process."""
        self._netlink.close()

    @contextmanager
    def _new_namespaces(self, flags: int) -> Iterator[None]:
        """Create namespaces, and return to the hub after the block, which must not await."""
        namespaces.unshare(flags)
        try:
            yield
        finally:
            for kind, fd in self._hub.items():
                if flags & KINDS[kind]:
                    namespaces.setns(fd, KINDS[kind])

    async def add(self, pod: PodSandbox) -> PodNamespaces:
        """Create the namespaces of a pod and connect them with the hub."""
        if pod.host_network:
            with self._new_namespaces(CLONE_NEWIPC | CLONE_NEWUTS):
                socket.sethostname(pod.hostname)
                return PodNamespaces(os.dup(self._hub["net"]), _open("ipc"), _open("uts"), "")
        self._count += 1
        inside: Any = AsyncIPRoute()
        with self._new_namespaces(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS):
            socket.sethostname(pod.hostname)
            _set(SETTINGS)
            inside.fileno()  # opens the socket in the namespace of the pod
            created = PodNamespaces(
                _open("net"), _open("ipc"), _open("uts"), f"veth{self._count:x}"
            )
        try:
            await self._connect(inside, created, pod.ip)
        except BaseException:
            created.close()
            raise
        finally:
            inside.close()
        return created

    async def _connect(self, inside: Any, created: PodNamespaces, ip: str) -> None:
        [bridge] = await self._netlink.link_lookup(ifname=BRIDGE)
        await self._netlink.link(
            "add",
            ifname=created.interface,
            kind="veth",
            master=bridge,
            state="up",
            peer={"ifname": "eth0", "net_ns_fd": created.net, "address": hardware_address(ip)},
        )
        [interface] = await inside.link_lookup(ifname="eth0")
        [loopback] = await inside.link_lookup(ifname="lo")
        await inside.addr("add", index=interface, address=ip, prefixlen=POD_PREFIX)
        for index in (loopback, interface):
            await inside.link("set", index=index, state="up")
        await inside.route("add", dst="default", gateway=GATEWAY)

    async def remove(self, pod: PodNamespaces) -> None:
        """Delete the namespaces of a pod, whose processes have ended, and its interface."""
        pod.close()
        for index in await self._netlink.link_lookup(ifname=pod.interface):
            await self._netlink.link("del", index=index)


def _set(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        with suppress(OSError):  # /proc/sys may be read-only in a container
            Path("/proc/sys", name).write_text(value)
