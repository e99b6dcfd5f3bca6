"""Secrets and their content."""

from base64 import b64decode, b64encode
from collections.abc import Mapping

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, as_it_is

SECRETS: Resource[Manifest] = Resource(
    "", "v1", "Secret", "secrets", namespaced=True, decode=as_it_is
)
Content = Mapping[str, bytes]


def new_secret(key: ObjectKey) -> Manifest:
    """Return an empty Secret."""
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "type": "Opaque",
    }


def content_of(secret: Manifest) -> Content:
    """Return the decoded data of a Secret."""
    return {name: b64decode(value or "") for name, value in (secret.get("data") or {}).items()}


def with_content(secret: Manifest, content: Content) -> Manifest:
    """Return the Secret with this content merged into its data."""
    encoded = {name: b64encode(value).decode() for name, value in content.items()}
    return {**secret, "data": {**(secret.get("data") or {}), **encoded}}
