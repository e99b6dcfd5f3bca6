"""What the workers of a node share, and the folder of each pod."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.nodes.kubelet.images import Images
from kftrainer.devcluster.nodes.kubelet.network import hosts
from kftrainer.devcluster.nodes.kubelet.network.addresses import Addresses
from kftrainer.devcluster.nodes.kubelet.pods.events import PodEvents
from kftrainer.devcluster.nodes.kubelet.pods.states import Object
from kftrainer.devcluster.nodes.sandbox.protocol import Mount, Sandbox
from kftrainer.machinery.manager.clock import Clock

TERMINATION_LOG = "/dev/termination-log"


class Volumes(Protocol):
    """The volumes of a pod."""

    async def prepare(self, pod: Any) -> None:
        """Create the volumes; MountError if one cannot be created yet."""
        ...

    def mounts(self, pod: Any, container: Any, env: Mapping[str, str]) -> list[Mount]:
        """Return the mounts of a container."""
        ...

    async def refresh(self, pod: Any) -> None:
        """Update volumes whose contents have changed."""
        ...

    def remove(self) -> None:
        """Delete the volumes that end with the pod."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """How long workers wait before they try again, in seconds."""

    crash: float = 10.0  # before a container's second restart, doubled from then on
    config: float = 10.0  # after a configuration error
    mount: float = 1.0  # after a volume or network could not be created, doubled each time
    mount_longest: float = 60.0
    refresh: float = 60.0  # between updates of volumes


@dataclass(frozen=True, slots=True)
class NodeContext:
    """A node and what its workers use."""

    name: str
    host_ip: str
    sandbox: Sandbox
    api: ApiClient
    clock: Clock
    events: PodEvents
    images: Images
    addresses: Addresses
    folder: Path
    services: Callable[[], Sequence[Object]]
    node: Callable[[], Object]
    new_volumes: Callable[[Path], Volumes]
    timing: Timing = Timing()


class PodFolder:
    """The files of one pod."""

    def __init__(self, parent: Path, pod: Object) -> None:
        metadata = pod["metadata"]
        self.path = parent / str(metadata["uid"])

    @property
    def volumes(self) -> Path:
        """The folder of the volumes."""
        return self.path / "volumes"

    def log(self, container: str, attempt: int) -> Path:
        """Return the log of an attempt to run the container."""
        return self.path / "logs" / container / f"{attempt}.log"

    def termination_log(self, container: str, attempt: int) -> Path:
        """Return the file for the message with which an attempt ends."""
        return self.path / "messages" / container / str(attempt)

    def new_attempt(self, container: str, attempt: int) -> None:
        """Create the files of an attempt, and delete those older than the previous one."""
        self.log(container, attempt).parent.mkdir(parents=True, exist_ok=True)
        message = self.termination_log(container, attempt)
        message.parent.mkdir(parents=True, exist_ok=True)
        message.touch()
        for old in (self.log(container, attempt - 2), self.termination_log(container, attempt - 2)):
            old.unlink(missing_ok=True)
            old.with_name(old.name + ".1").unlink(missing_ok=True)

    def write_network_files(self, pod: Object, ip: str) -> None:
        """Write the files that the kubelet manages in /etc."""
        etc = self.path / "etc"
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "hosts").write_text(hosts.hosts_file(pod, ip))
        (etc / "hostname").write_text(hosts.hostname(pod) + "\n")
        (etc / "resolv.conf").write_text(hosts.resolv_conf(pod))

    def managed_mounts(self, container: Object, attempt: int) -> list[Mount]:
        """Return the mounts that every container has."""
        message = container.get("terminationMessagePath") or TERMINATION_LOG
        etc = self.path / "etc"
        return [
            *(
                Mount(f"/etc/{each}", str(etc / each))
                for each in ("hosts", "hostname", "resolv.conf")
            ),
            Mount(message, str(self.termination_log(container["name"], attempt))),
        ]

    async def remove(self) -> None:
        """Delete all files."""
        await asyncio.to_thread(shutil.rmtree, self.path, ignore_errors=True)
