"""CA bundles in webhook configurations, which the API server trusts. `rotation` writes them."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.certs.x509 import certificates_in, pem_of

VALIDATING_WEBHOOKS: Resource[Manifest] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
    decode=unstructured,
)
MUTATING_WEBHOOKS: Resource[Manifest] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
    decode=unstructured,
)


@dataclass(frozen=True, slots=True)
class ManagedConfiguration:
    """A webhook configuration; only the webhooks of one Service are managed."""

    name: str
    service: ObjectKey
    resource: Resource[Manifest] = VALIDATING_WEBHOOKS

    def __str__(self) -> str:
        return f"the {self.resource.kind} {self.name}"

    @property
    def key(self) -> ObjectKey:
        """The configuration's key."""
        return ObjectKey("", self.name)

    def bundles(self, configuration: Manifest) -> list[bytes]:
        """Return the bundle of each managed webhook; empty bytes if it has none."""
        webhooks = configuration.get("webhooks") or ()
        return [_bundle(each) for each in webhooks if self._is_ours(each)]

    def with_authorities(
        self, configuration: Manifest, authorities: Sequence[x509.Certificate]
    ) -> Manifest | None:
        """Return the configuration with exactly these authorities; None if it needs no change.

        Bundles are compared by certificate, because others may format the PEM differently.
        """
        wanted = list(authorities)
        if all(certificates_in(each) == wanted for each in self.bundles(configuration)):
            return None
        bundle = b64encode(pem_of(wanted)).decode()
        webhooks = [
            _with_bundle(each, bundle) if self._is_ours(each) else each
            for each in configuration["webhooks"]
        ]
        return {**configuration, "webhooks": webhooks}

    def _is_ours(self, webhook: Mapping[str, Any]) -> bool:
        service = webhook["clientConfig"].get("service")
        return service is not None and self.service == (service["namespace"], service["name"])


# None if the configuration does not exist.
ReadConfigurations = Mapping[ManagedConfiguration, Manifest | None]


def bundles_in(seen: ReadConfigurations) -> list[bytes]:
    """Return the bundles of all managed webhooks."""
    there = ((each, found) for each, found in seen.items() if found is not None)
    return [bundle for each, found in there for bundle in each.bundles(found)]


def first_without(
    authority: x509.Certificate, seen: ReadConfigurations
) -> ManagedConfiguration | None:
    """Return a configuration with a managed webhook that does not trust this authority, or None."""
    for each, found in seen.items():
        if not all(authority in certificates_in(bundle) for bundle in bundles_in({each: found})):
            return each
    return None


def _bundle(webhook: Mapping[str, Any]) -> bytes:
    return b64decode(webhook["clientConfig"].get("caBundle") or "")


def _with_bundle(webhook: Mapping[str, Any], bundle: str) -> dict[str, Any]:
    return {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": bundle}}
