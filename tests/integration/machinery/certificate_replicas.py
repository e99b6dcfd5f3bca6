"""Replicas that look after a Secret and a configuration on a real API server."""

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from kftrainer.devcluster.client import ApiClient
from kftrainer.devcluster.waiting import until
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.certs.authority import Content, read
from kftrainer.machinery.certs.ca_bundle import ManagedConfiguration
from kftrainer.machinery.certs.rotation import CertificateRotation
from kftrainer.machinery.certs.serving import ServingCertificate
from kftrainer.machinery.certs.x509 import Identity, certificates_in
from kftrainer.machinery.manager.clock import Clock, SystemClock
from kftrainer.machinery.metrics.registry import Metrics
from tests.support.informers import connected, running

TEST_TIMEOUT = 15.0  # seconds, on a busy machine
SERVICE, SECRET = "hooks", "hooks-cert"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


class Site:
    """A Secret and a configuration of our own, as the server has them."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.configuration = f"hooks-of-{namespace}"
        self.host = f"{SERVICE}.{namespace}.svc"
        self.identity = Identity("our-ca", "our-organization", (self.host,))
        self.secret_path = f"/api/v1/namespaces/{namespace}/secrets/{SECRET}"

    async def register(self, *more: Mapping[str, Any]) -> None:
        """Create the configuration, or put it back as it was, without a bundle."""
        webhooks = [self.webhook("first"), self.webhook("second"), *more]
        await self.api.apply(self._configuration(webhooks))

    async def unregister(self) -> None:
        """Delete the configuration."""
        if await self.api.get_or_none(f"{HOOKS}/{self.configuration}") is not None:
            await self.api.delete(f"{HOOKS}/{self.configuration}")

    def _configuration(self, webhooks: list[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": self.configuration},
            "webhooks": webhooks,
        }

    def webhook(self, name: str, service: str = SERVICE, bundle: str = "") -> dict[str, Any]:
        """A webhook that is never called, since its kind does not exist."""
        reference = {"namespace": self.namespace, "name": service, "path": f"/{name}"}
        rule = {
            "apiGroups": ["nothing.example.com"],
            "apiVersions": ["v1"],
            "resources": ["nothings"],
            "operations": ["CREATE"],
        }
        return {
            "name": f"{name}.example.com",
            "clientConfig": {"service": reference, "caBundle": bundle},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }

    async def webhooks(self) -> list[dict[str, Any]]:
        """The current content of the configuration."""
        found = await self.api.get(f"{HOOKS}/{self.configuration}")
        webhooks: list[dict[str, Any]] = found["webhooks"]
        return webhooks

    async def bundles(self) -> list[bytes]:
        """The bundles of our webhooks."""
        return [
            b64decode(each["clientConfig"].get("caBundle", ""))
            for each in await self.webhooks()
            if each["clientConfig"]["service"]["name"] == SERVICE
        ]

    async def content(self) -> Content:
        """What is in the Secret."""
        found = await self.api.get_or_none(self.secret_path)
        data = (found or {}).get("data") or {}
        return {name: b64decode(value) for name, value in data.items()}

    async def put_secret(self, content: Content) -> None:
        """Replace the content of the Secret, as with kubectl."""
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"namespace": self.namespace, "name": SECRET},
            "data": {name: b64encode(value).decode() for name, value in content.items()},
        }
        if await self.api.get_or_none(self.secret_path) is None:
            await self.api.create(manifest)
        else:
            await self.api.request("PUT", self.secret_path, body=manifest)

    async def is_healthy(self, clock: Clock) -> bool:
        """Whether the Secret is good, and all webhooks trust its authorities."""
        stored = read(await self.content(), self.identity, clock.now())
        return (
            stored.leaf is not None
            and stored.issuer is not None
            and all(certificates_in(b) == list(stored.authorities) for b in await self.bundles())
        )


@dataclass(frozen=True, slots=True)
class Replica:
    """One that runs, and the port at which it shows its certificate."""

    site: Site
    clock: Clock
    serving: ServingCertificate
    metrics: Metrics
    port: int

    async def shown(self) -> x509.Certificate | None:
        """What a new connection is shown; None if it is refused."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return await self._handshake(context)

    async def is_trusted(self) -> bool:
        """Whether those who have any of the bundles trust it, by the name they call it."""
        for bundle in await self.site.bundles():
            if not bundle or await self._handshake(_trusting(bundle)) is None:
                return False
        return True

    async def _handshake(self, context: ssl.SSLContext) -> x509.Certificate | None:
        try:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=context, server_hostname=self.site.host
            )
        except OSError:
            return None
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()  # a polite end may outlast the event loop
        return x509.load_der_x509_certificate(shown)

    async def wait_ready(self) -> None:
        """Return when all is well, and it shows what is in the Secret."""

        async def well() -> bool:
            stored = read(await self.site.content(), self.site.identity, self.clock.now())
            return (
                await self.site.is_healthy(self.clock)
                and stored.leaf is not None
                and await self.shown() == stored.leaf.certificate
            )

        await until(well, within=TEST_TIMEOUT, what="a certificate that is trusted")


def _trusting(bundle: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=bundle.decode())


async def _close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@asynccontextmanager
async def replica(
    site: Site, kubeconfig: Path, clock: Clock | None = None
) -> AsyncIterator[Replica]:
    """One that runs for the block."""
    clock, metrics = clock or SystemClock(), Metrics()
    serving = ServingCertificate(clock=clock, metrics=metrics)
    async with connected(kubeconfig) as client:
        rotation = CertificateRotation(
            client,
            serving,
            secret=ObjectKey(site.namespace, SECRET),
            identity=site.identity,
            configurations=[
                ManagedConfiguration(site.configuration, ObjectKey(site.namespace, SERVICE))
            ],
            clock=clock,
            metrics=metrics,
        )
        async with (
            await asyncio.start_server(_close, "127.0.0.1", 0, ssl=serving.context) as server,
            running(rotation),
        ):
            port = server.sockets[0].getsockname()[1]
            yield Replica(site, clock, serving, metrics, port)
