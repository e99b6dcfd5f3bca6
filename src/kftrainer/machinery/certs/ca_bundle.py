"""Whom the API server trusts when it calls webhooks: `caBundle` in their configurations. Pure."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, as_it_is
from kftrainer.machinery.certs.x509_parsing import certificates_in, pem_of

VALIDATING_WEBHOOKS: Resource[Manifest] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
    decode=as_it_is,
)


@dataclass(frozen=True, slots=True)
class Injected:
    """A configuration in which the webhooks of one Service are ours; others are left alone."""

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
        """The bundle of each of our webhooks; empty where there is none."""
        webhooks = configuration.get("webhooks") or ()
        return [_bundle(each) for each in webhooks if self._is_ours(each)]

    def trusting(
        self, configuration: Manifest, authorities: Sequence[x509.Certificate]
    ) -> Manifest | None:
        """The configuration with these in each of our webhooks, and only them; None if that is so.

        How a bundle is written does not matter, for somebody else may write it as well.
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


Seen = Mapping[Injected, Manifest | None]  # configurations, or that there are none


def bundles_in(seen: Seen) -> list[bytes]:
    """The bundles of all our webhooks."""
    there = ((each, found) for each, found in seen.items() if found is not None)
    return [bundle for each, found in there for bundle in each.bundles(found)]


def first_without(authority: x509.Certificate, seen: Seen) -> Injected | None:
    """A configuration with a webhook of ours that does not trust this authority, if any."""
    for each, found in seen.items():
        if not all(authority in certificates_in(bundle) for bundle in bundles_in({each: found})):
            return each
    return None


def _bundle(webhook: Mapping[str, Any]) -> bytes:
    return b64decode(webhook["clientConfig"].get("caBundle") or "")


def _with_bundle(webhook: Mapping[str, Any], bundle: str) -> dict[str, Any]:
    return {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": bundle}}
