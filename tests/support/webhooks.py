"""Registers the webhook of a manager with the API server and writes objects through it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from kftrainer.api.configuration import DEFAULT
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, Object
from kftrainer.devcluster.controlplane import ControlPlane
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations
from kftrainer.devcluster.waiting import until
from kftrainer.kube.warning_log import warnings_in
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.webhooks import registration
from tests.support.managers import ManagerProcess, manager_process
from tests.support.objects import train_job

SERVICE = DEFAULT.cert_management.webhook_service_name
SECRET = DEFAULT.cert_management.webhook_secret_name
SECRET_PATH = f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/secrets/{SECRET}"
MUTATING_PATH = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"
    f"{registration.MUTATING_CONFIGURATION}"
)
CONFIGURATION_PATH = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/"
    f"{registration.CONFIGURATION}"
)
CALLED_WITHIN = 30.0
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
OK = 400  # every status below it
CONFLICT = 409
REPLACED_WITHIN = 30.0
DECIDED_WITHIN = 60.0
NOT_READ_IN_TIME = "admission_read_timeout"


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """The API server's response to a write: accepted or rejected, with warnings."""

    status: int
    body: Mapping[str, Any]
    warnings: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """Whether the write was accepted."""
        return self.status < OK

    @property
    def message(self) -> str:
        """The error message of the API server."""
        return "" if self.accepted else str(self.body.get("message", ""))

    @property
    def denial(self) -> str:
        """The error message of our webhook; empty if it did not reject the write."""
        _, colon, reason = self.message.partition(" denied the request: ")
        return reason if colon else ""


class AdmissionClient:
    """A client that writes objects and records warnings; `admission_client` creates one.

    A manager that cannot read an uncached object in time rejects the write that depends on it, and
    logs that. With the manager given, the client then repeats the write.
    """

    def __init__(self, api: ApiClient, manager: ManagerProcess | None = None) -> None:
        self._api = api
        self._manager = manager

    async def create(
        self, manifest: Mapping[str, Any], *, dry_run: bool = False
    ) -> AdmissionOutcome:
        """Create the object."""
        path = (await self._api.path_of(manifest)).rpartition("/")[0]
        return await self._send("POST", path, manifest, dry_run=dry_run)

    async def create_nameless(self, manifest: Mapping[str, Any]) -> AdmissionOutcome:
        """Create an object with a generated name."""
        metadata = {**manifest["metadata"], "name": "any"}
        path = await self._api.path_of({**manifest, "metadata": metadata})
        return await self._send("POST", path.rpartition("/")[0], manifest)

    async def apply(
        self, manifest: Mapping[str, Any], *, dry_run: bool = False
    ) -> AdmissionOutcome:
        """Apply the object as `kubectl apply --server-side` does."""
        return await self._send(
            "PATCH",
            await self._api.path_of(manifest),
            manifest,
            content_type=APPLY,
            dry_run=dry_run,
        )

    async def replace(
        self, manifest: Mapping[str, Any], *, dry_run: bool = False
    ) -> AdmissionOutcome:
        """Replace the whole object, as Kueue does."""
        path = await self._api.path_of(manifest)
        return await self._send("PUT", path, manifest, dry_run=dry_run)

    async def replace_now(
        self, manifest: Mapping[str, Any], change: Callable[[Object], Object], **options: bool
    ) -> AdmissionOutcome:
        """Read the object, and replace it by what the change makes of it.

        Retries on conflicts, as clients do.
        """

        async def replaced() -> AdmissionOutcome | None:
            outcome = await self.replace(change(await self.read(manifest)), **options)
            return None if outcome.status == CONFLICT else outcome

        return await until(replaced, within=REPLACED_WITHIN, what="a replace without a conflict")

    async def patch(
        self, manifest: Mapping[str, Any], change: Mapping[str, Any], *, dry_run: bool = False
    ) -> AdmissionOutcome:
        """Change some fields of the object, as `kubectl patch --type=merge` does."""
        path = await self._api.path_of(manifest)
        return await self._send("PATCH", path, change, content_type=MERGE, dry_run=dry_run)

    async def read(self, manifest: Mapping[str, Any]) -> Object:
        """The object as it is stored."""
        return await self._api.get(await self._api.path_of(manifest))

    async def get(self, manifest: Mapping[str, Any]) -> Object | None:
        """The object as it is stored; None if it is not."""
        return await self._api.get_or_none(await self._api.path_of(manifest))

    async def delete(self, manifest: Mapping[str, Any], *, propagation: str = "Background") -> None:
        """Delete the object, and its dependents according to the propagation policy."""
        query = {"propagationPolicy": propagation}
        await self._api.request("DELETE", await self._api.path_of(manifest), query=query)

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *,
        content_type: str = "application/json",
        dry_run: bool = False,
    ) -> AdmissionOutcome:
        query = {"dryRun": "All"} if dry_run else {}
        if content_type == APPLY:
            query |= {"fieldManager": "admission-client", "force": "true"}

        async def send() -> AdmissionOutcome:
            response = await self._api.send(
                method, path, query=query, body=body, content_type=content_type
            )
            warnings = warnings_in(response.headers.get("Warning", ""))
            return AdmissionOutcome(response.status, orjson.loads(response.body), warnings)

        return await (send() if self._manager is None else _decided_in_time(send, self._manager))


async def _decided_in_time(
    send: Callable[[], Awaitable[AdmissionOutcome]], manager: ManagerProcess
) -> AdmissionOutcome:
    """Repeat the write until the manager could read all inputs of its decision."""

    async def decided() -> AdmissionOutcome | None:
        sent_at = SystemClock().now()
        outcome = await send()
        late = manager.log_entries(NOT_READ_IN_TIME) if outcome.denial else []
        is_late = any(datetime.fromisoformat(each["timestamp"]) >= sent_at for each in late)
        return None if is_late else outcome

    return await until(
        decided, within=DECIDED_WITHIN, what="the manager reading its inputs in time"
    )


def admission_client_for(api: ApiClient, manager: ManagerProcess | None = None) -> AdmissionClient:
    """An AdmissionClient with this client, for the lifetime of the client."""
    return AdmissionClient(api, manager)


@asynccontextmanager
async def admission_client(
    plane: ControlPlane, manager: ManagerProcess | None = None
) -> AsyncIterator[AdmissionClient]:
    """An AdmissionClient with the administrator's credentials."""
    async with plane.client() as api:
        yield admission_client_for(api, manager)


async def register(api: ApiClient, port: int) -> None:
    """Register a manager at this local port with the API server."""
    for manifest in registration.external_objects(
        SERVICE, DEFAULT_NAMESPACE, host=LOOPBACK, port=port
    ):
        await api.apply(manifest)


async def unregister(api: ApiClient) -> None:
    """Remove the registration, and wait until the API server no longer calls it."""
    for path in (CONFIGURATION_PATH, MUTATING_PATH, SECRET_PATH):
        if await api.get_or_none(path) is not None:
            await api.delete(path)

    async def forgotten() -> bool:
        return not await _is_missed(api)

    await until(forgotten, within=CALLED_WITHIN, what="the webhook no longer being called")


async def wait_until_call_fails(api: ApiClient) -> None:
    """Wait until the API server calls a webhook that does not respond."""

    async def missed() -> bool:
        return await _is_missed(api)

    await until(missed, within=CALLED_WITHIN, what="a failing call of the webhook")


async def _is_missed(api: ApiClient) -> bool:
    probe = train_job("probe", runtimeRef={"name": "there-is-none"})
    probe["metadata"]["namespace"] = "default"
    outcome = await admission_client_for(api).create(probe, dry_run=True)
    return "failed calling webhook" in outcome.message


def webhook_flags(port: int) -> tuple[str, ...]:
    """The flags of a manager with a webhook server at this port."""
    return ("--webhook-host", LOOPBACK, "--webhook-port", str(port))


async def wait_until_called(plane: ControlPlane, namespace: str = "default") -> None:
    """Wait until the API server calls the registered webhooks for TrainJobs there and trusts them.

    Both take effect a moment after the registration and the certificate are written. The schema
    accepts the quantity only as a string, into which the mutating webhook converts it.
    """
    async with plane.client() as api:
        amount = "1" if await api.get_or_none(MUTATING_PATH) is None else 0.5
    probe: Object = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "is-the-webhook-called", "namespace": namespace},
        "spec": {
            "runtimeRef": {"name": "there-is-none"},
            "trainer": {"resourcesPerNode": {"limits": {"cpu": amount}}},
        },
    }
    async with admission_client(plane) as user:

        async def denied() -> bool:
            return bool((await user.create(probe, dry_run=True)).denial)

        await until(denied, within=CALLED_WITHIN, what="the API server calling the webhook")


@asynccontextmanager
async def admitting_manager(
    plane: ControlPlane, *flags: str, kubeconfig: Path | None = None
) -> AsyncIterator[ManagerProcess]:
    """A manager whose webhook the API server calls for every TrainJob and runtime.

    With a kubeconfig of its own it may see the API server in another way, as through a proxy.
    """
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    async with plane.client() as api:
        try:
            port = ports.reserve()
            await register(api, port)
            kubeconfig_path = kubeconfig or plane.kubeconfig
            async with manager_process(kubeconfig_path, *webhook_flags(port), *flags) as manager:
                await manager.wait_ready()
                await wait_until_called(plane)
                yield manager
        finally:
            await unregister(api)
            ports.release_all()
