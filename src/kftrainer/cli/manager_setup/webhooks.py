"""Assembles the webhook server, its certificates and its readiness check."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kftrainer.api.configuration import Configuration
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.transport import Transport
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.certs.ca_bundle import MUTATING_WEBHOOKS, ManagedConfiguration
from kftrainer.machinery.certs.rotation import CertificateRotation
from kftrainer.machinery.certs.serving import (
    CertificateFiles,
    ClientAuthorityFile,
    ServingCertificate,
)
from kftrainer.machinery.certs.x509 import Identity
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.runnable import Runnable
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.webhook.admission import Defaulter, Validator
from kftrainer.machinery.webhook.handler import admission
from kftrainer.machinery.webhook.path_tokens import tokens_in, with_tokens
from kftrainer.machinery.webhook.server import WebServer
from kftrainer.webhooks import registration
from kftrainer.webhooks.denials import Denials

# The default folder for certificates from outside, as in controller-runtime. Python's `tempfile`
# would try to write to it, which may not be possible.
CERTIFICATES = Path(os.environ.get("TMPDIR", "/tmp")) / "k8s-webhook-server" / "serving-certs"  # noqa: S108
AUTHORITY, ORGANIZATION = "kubeflow-trainer-ca", "kubeflow-trainer"
# API servers learn later than the replica itself that it is stopping.
LINGER = 3.0


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The webhook server and the Runnables that provide its certificate."""

    server: WebServer
    serving: ServingCertificate
    certificates: Sequence[Runnable]

    def services(self) -> Sequence[Runnable]:
        """Return what to run once the caches have synced."""
        return *self.certificates, self.server

    async def probe(self) -> str | None:
        """Return why the API server should not send requests here yet, or None."""
        if self.server.port is None:
            return "the webhook server is not listening yet"
        return self.serving.missing()


class WebhookFactory:
    """Builds the webhook server from the configuration."""

    def __init__(
        self, configuration: Configuration, transport: Transport, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._configuration = configuration
        self._transport = transport
        self._clock = clock
        self._metrics = metrics

    def webhooks(
        self,
        validators: Mapping[str, Validator | Defaulter],
        namespace: str,
        folder: Path | None,
    ) -> Webhooks:
        """Return a server for these webhooks; `folder` contains its certificate, if given."""
        serving = ServingCertificate(clock=self._clock, metrics=self._metrics)
        settings = self._configuration.webhook
        handler = admission(
            validators,
            clock=self._clock,
            metrics=self._metrics,
            on_denied=Denials(self._metrics.registry).count,
        )
        if settings.path_token_file:
            handler = with_tokens(handler, tokens_in(Path(settings.path_token_file)))
        server = WebServer(
            "webhooks",
            settings.address,
            handler,
            tls=serving.context,
            client_names=settings.client_names,
            linger=LINGER,
            clock=self._clock,
        )
        if folder is not None or not self._configuration.cert_management.enable:
            certificates = [self._in_files(folder or CERTIFICATES, serving)]
        else:
            certificates = [self._of_our_own(namespace, serving)]
        if settings.client_ca_file:
            file = Path(settings.client_ca_file)
            certificates.append(ClientAuthorityFile(file, serving, clock=self._clock))
        return Webhooks(server, serving, certificates)

    def _in_files(self, folder: Path, serving: ServingCertificate) -> Runnable:
        """Return a Runnable for certificates that are managed outside."""
        return CertificateFiles(folder, serving, clock=self._clock, metrics=self._metrics)

    def _of_our_own(self, namespace: str, serving: ServingCertificate) -> Runnable:
        """Return a Runnable that rotates our own certificate, shared by all replicas."""
        settings = self._configuration.cert_management
        service = ObjectKey(namespace, settings.webhook_service_name)
        hosts = registration.host_names(service.name, namespace)
        return CertificateRotation(
            Client(self._transport),
            serving,
            secret=ObjectKey(namespace, settings.webhook_secret_name),
            identity=Identity(AUTHORITY, ORGANIZATION, tuple(hosts)),
            configurations=[
                ManagedConfiguration(registration.CONFIGURATION, service),
                ManagedConfiguration(
                    registration.MUTATING_CONFIGURATION, service, MUTATING_WEBHOOKS
                ),
            ],
            clock=self._clock,
            metrics=self._metrics,
        )
