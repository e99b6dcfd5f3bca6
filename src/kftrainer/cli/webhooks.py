"""The webhook server, put together: certificates, and what readiness asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from kftrainer.api.configuration import CertManagement
from kftrainer.kube.client import Client
from kftrainer.kube.resource import ObjectKey
from kftrainer.machinery.ca_bundles import Injected
from kftrainer.machinery.certificate_rotation import CertificateRotation
from kftrainer.machinery.clock import Clock
from kftrainer.machinery.metrics import Metrics
from kftrainer.machinery.service import Service
from kftrainer.machinery.serving_tls import CertificateFiles, ServingCertificate
from kftrainer.machinery.webserver import WebServer
from kftrainer.machinery.x509_making import Identity
from kftrainer.webhooks import registration

# Where others put certificates, if nobody says so: as controller-runtime has it.
CERTIFICATES = Path(gettempdir()) / "k8s-webhook-server" / "serving-certs"
AUTHORITY, ORGANIZATION = "kubeflow-trainer-ca", "kubeflow-trainer"


@dataclass(frozen=True, slots=True)
class Webhooks:
    """What answers the API server, and what sees to its certificate."""

    server: WebServer
    serving: ServingCertificate
    certificates: Service

    def services(self) -> Sequence[Service]:
        """What to run, once the caches are there."""
        return self.certificates, self.server

    async def probe(self) -> str | None:
        """Why the API server should not be sent here yet."""
        if self.server.port is None:
            return "the webhook server does not listen yet"
        return self.serving.missing()


def certificates_in_files(
    folder: Path | None, serving: ServingCertificate, *, clock: Clock, metrics: Metrics
) -> Service:
    """Somebody else sees to the certificate, and puts it into a folder."""
    return CertificateFiles(folder or CERTIFICATES, serving, clock=clock, metrics=metrics)


def certificates_of_our_own(
    settings: CertManagement,
    namespace: str,
    serving: ServingCertificate,
    client: Client,
    *,
    clock: Clock,
    metrics: Metrics,
) -> Service:
    """We see to it, with all other replicas in this namespace."""
    service = ObjectKey(namespace, settings.webhook_service_name)
    hosts = registration.host_names(service.name, namespace)
    return CertificateRotation(
        client,
        serving,
        secret=ObjectKey(namespace, settings.webhook_secret_name),
        identity=Identity(AUTHORITY, ORGANIZATION, tuple(hosts)),
        configurations=[Injected(registration.CONFIGURATION, service)],
        clock=clock,
        metrics=metrics,
    )
