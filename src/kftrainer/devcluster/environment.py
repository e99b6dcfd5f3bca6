"""The folder, ports, certificates and processes of one control plane."""

import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.components import kubeconfig
from kftrainer.devcluster.components.pki import Authority, KeyPair, client_tls
from kftrainer.devcluster.errors import ApiError, NotReadyError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.processes.process import ManagedProcess, log_tail
from kftrainer.devcluster.waiting import until

READY_WITHIN = 90.0
ADMIN, ADMINS = "kubernetes-admin", ("system:masters",)
SERVING_HOSTS = (LOOPBACK, "localhost", "kubernetes.default.svc", "10.0.0.1")


@dataclass(frozen=True, slots=True)
class Supplies:
    """Programs and manifest folders by name, available before the start."""

    programs: Mapping[str, Path]
    manifests: Mapping[str, Path]


class Environment:
    """State that the components of one control plane share."""

    def __init__(
        self,
        folder: Path,
        supplies: Supplies,
        ports: PortReservations,
        *,
        apiserver_port: int,
        now: datetime,
    ) -> None:
        self.folder = folder
        self.supplies = supplies
        self.ports = ports
        self.now = now
        self.apiserver_port = apiserver_port
        self.url = f"https://{LOOPBACK}:{apiserver_port}"
        self.authority = Authority(folder / "pki", "kftrainer-dev", now)
        self.serving = self.authority.issue("serving", common_name="dev", hosts=SERVING_HOSTS)
        self.processes: list[ManagedProcess] = []
        self._identities: dict[tuple[str, tuple[str, ...]], KeyPair] = {}

    def identity(self, user: str, groups: Iterable[str] = ()) -> KeyPair:
        """Return a client certificate for this user; RBAC determines the permissions."""
        key = (user, tuple(groups))
        if key not in self._identities:
            file_name = f"client-{len(self._identities)}"
            issued = self.authority.issue(file_name, common_name=user, organizations=key[1])
            self._identities[key] = issued
        return self._identities[key]

    def kubeconfig_for(self, user: str, groups: Iterable[str], path: Path) -> Path:
        """Write a kubeconfig for this user."""
        return kubeconfig.write(
            path,
            server=self.url,
            authority=self.authority.certificate,
            user=user,
            client=self.identity(user, groups),
        )

    def part_kubeconfig(self, part: str, user: str) -> Path:
        """Write the kubeconfig of a component of the control plane."""
        return self.kubeconfig_for(user, (), self.folder / "kubeconfigs" / f"{part}.yaml")

    def tls_for(self, user: str, groups: Iterable[str]) -> ssl.SSLContext:
        """Return TLS settings of this user for all servers with certificates of our CA."""
        return client_tls(self.authority.certificate, self.identity(user, groups))

    def admin_tls(self) -> ssl.SSLContext:
        """Return TLS settings of the administrator."""
        return self.tls_for(ADMIN, ADMINS)

    def client(self, user: str = ADMIN, groups: Iterable[str] = ADMINS) -> ApiClient:
        """Return an API client, by default for the administrator."""
        return ApiClient(self.url, self.tls_for(user, groups))

    def begin(self, name: str, argv: Sequence[str]) -> ManagedProcess:
        """Start a component without waiting for it."""
        process = ManagedProcess(name, argv, self.folder / "logs" / f"{name}.log", self.folder)
        self.processes.append(process)
        process.start()
        return process

    async def wait_ready(
        self, process: ManagedProcess, url: str, tls: ssl.SSLContext | None = None
    ) -> None:
        """Wait until the component responds at this URL; raise as soon as it has died."""
        async with ApiClient(url, tls) as client:

            async def ready() -> bool:
                process.check()
                try:
                    await client.fetch("GET", "")
                except (ApiError, UnreachableError):
                    return False
                return True

            try:
                await until(ready, within=READY_WITHIN, what=f"{process.name} to become ready")
            except NotReadyError as error:
                raise NotReadyError(
                    f"{error} Its log is {process.log}, which ends:\n{log_tail(process.log)}"
                ) from None

    async def stop(self) -> None:
        """Stop all components in reverse order; if interrupted, kill the remaining ones."""
        try:
            for process in reversed(self.processes):
                await process.stop()
        finally:
            for process in reversed(self.processes):
                process.kill()

    async def has_dead_process(self) -> bool:
        """Return whether a component has ended unexpectedly."""
        return not all(process.alive() for process in self.processes)

    def check(self) -> None:
        """Raise if a component has ended unexpectedly."""
        for process in self.processes:
            process.check()
