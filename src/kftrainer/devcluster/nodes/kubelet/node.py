"""The Node object and the Lease of a process node: registration and heartbeat."""

import asyncio
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from kftrainer.devcluster.artifacts.versions import APISERVER
from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.nodes.kubelet.pods.states import Object
from kftrainer.kube.objects.meta import rfc3339
from kftrainer.machinery.manager.clock import Clock

log = structlog.get_logger(__name__)

HOST_IP = "127.0.0.1"
HEARTBEAT, LEASE_SECONDS = 10.0, 40
STATUS_EVERY = 30  # heartbeats
MOST_PODS = "110"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MERGE = "application/merge-patch+json"
CONDITIONS = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a node reports about the machine."""

    capacity: Mapping[str, str]
    kernel: str
    system: str
    architecture: str
    machine_id: str
    boot_id: str


def this_machine(folder: Path) -> Machine:
    """Return the capacity and the identity of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = platform.machine()
    return Machine(
        capacity={
            "cpu": str(os.cpu_count() or 1),
            "memory": f"{memory // 1024}Ki",
            "ephemeral-storage": f"{shutil.disk_usage(folder).total // 1024}Ki",
            "pods": MOST_PODS,
        },
        kernel=platform.release(),
        system=_os_name(),
        architecture=ARCHITECTURES.get(machine, machine),
        machine_id=_first_line(Path("/etc/machine-id")),
        boot_id=_first_line(Path("/proc/sys/kernel/random/boot_id")),
    )


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return platform.system()


def _first_line(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def node_object(name: str, machine: Machine) -> dict[str, Any]:
    """Return a new Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": machine.architecture,
                "type": "process",
            },
        },
    }


def node_status(
    name: str,
    machine: Machine,
    resources: Mapping[str, str],
    *,
    port: int,
    since: datetime,
    now: datetime,
) -> dict[str, Any]:
    """Return the status of a Node that is ready since `since`."""
    capacity = {**machine.capacity, **resources}
    healthy = [_condition(kind, "False", *why, since, now) for kind, why in CONDITIONS.items()]
    ready = _condition(
        "Ready", "True", "KubeletReady", "kubelet is posting ready status", since, now
    )
    return {
        "addresses": [
            {"type": "InternalIP", "address": HOST_IP},
            {"type": "Hostname", "address": name},
        ],
        "allocatable": capacity,
        "capacity": capacity,
        "conditions": [*healthy, ready],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "architecture": machine.architecture,
            "bootID": machine.boot_id,
            "containerRuntimeVersion": "kftrainer-process://1",
            "kernelVersion": machine.kernel,
            "kubeProxyVersion": "",
            "kubeletVersion": APISERVER.version,
            "machineID": machine.machine_id,
            "operatingSystem": "linux",
            "osImage": machine.system,
            "systemUUID": machine.machine_id,
        },
    }


def _condition(
    kind: str, status: str, reason: str, message: str, since: datetime, now: datetime
) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": rfc3339(since),
        "lastHeartbeatTime": rfc3339(now),
    }


def lease(name: str, node_uid: str, now: datetime) -> dict[str, Any]:
    """Return the Lease that shows that the node is alive."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "ownerReferences": [owner],
        },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


class ProcessNode:
    """Registers one node and reports that it is alive."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        resources: Mapping[str, str],
        *,
        port: int,
        api: ApiClient,
        clock: Clock,
    ) -> None:
        self.name = name
        self.manifest: Object = node_object(name, machine)
        self._machine = machine
        self._resources = resources
        self._port = port
        self._api = api
        self._clock = clock
        self._since = clock.now()

    async def register(self) -> None:
        """Create or update the Node, report that it is ready, and create its Lease."""
        stored = await self._api.apply(self.manifest)
        self.manifest = {**stored, "status": await self._report()}
        await self._renew()

    async def _report(self) -> Object:
        status = node_status(
            self.name,
            self._machine,
            self._resources,
            port=self._port,
            since=self._since,
            now=self._clock.now(),
        )
        path = f"/api/v1/nodes/{self.name}/status"
        await self._api.request("PATCH", path, body={"status": status}, content_type=MERGE)
        return status

    async def _renew(self) -> None:
        uid = self.manifest["metadata"]["uid"]
        await self._api.apply(lease(self.name, uid, self._clock.now()))

    async def run(self) -> None:
        """Renew the Lease, and report the status from time to time, until cancelled."""
        beats = 0
        while True:
            await self._clock.sleep(HEARTBEAT)
            beats += 1
            try:
                async with asyncio.timeout(HEARTBEAT):
                    if beats % STATUS_EVERY == 0:
                        await self._report()
                    await self._renew()
            except (ApiError, UnreachableError, TimeoutError) as error:
                log.warning("node_heartbeat_failed", node=self.name, error=str(error))
