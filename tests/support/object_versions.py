"""All versions of an object since a resource version."""

from pathlib import Path

from kftrainer.devcluster.client import ApiClient
from kftrainer.kube.client.watch import Upserted
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from tests.support.informers import connected


async def version_now(api: ApiClient) -> str:
    """The current resource version of the server."""
    version: str = (await api.get("/api/v1/namespaces?limit=1"))["metadata"]["resourceVersion"]
    return version


async def versions_of(
    kubeconfig: Path, resource: Resource[Manifest], key: ObjectKey, since: str
) -> list[Manifest]:
    """The object after each write since then, in order; there must have been one."""
    found: list[Manifest] = []
    async with connected(kubeconfig) as client:
        last = (await client.get(resource, key))["metadata"]["resourceVersion"]
        async with client.watch(
            resource,
            namespace=key.namespace or None,
            field_selector=f"metadata.name={key.name}",
            resource_version=since,
            timeout_seconds=60,
        ) as events:
            async for event in events:
                if isinstance(event, Upserted):
                    found.append(event.manifest)
                    if event.manifest["metadata"]["resourceVersion"] == last:
                        return found
    raise AssertionError(
        f"{key} at {last} was not delivered, but {len(found)} others since {since}"
    )
