"""Reads from the cache for cached kinds, and from the API server for others."""

from typing import Any, TypeVar

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import NotFoundError
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.machinery.cache.cache import Cache, NotCachedError

T = TypeVar("T")


class Reader:
    """Reads objects from the cache or the API server; `live` always reads from the server.

    A reconciler that reads the kinds it watches uses the cache directly: that needs no await, so
    nothing can change between two reads.
    """

    def __init__(self, cache: Cache, client: Client) -> None:
        self._cache = cache
        self._client = client

    async def get(self, resource: Resource[T], key: ObjectKey, *, live: bool = False) -> T | None:
        """Return the object, or None if it does not exist."""
        if not live and self._keeps(resource):
            return self._cache.get(resource, key)
        try:
            return resource.decode(await self._client.get(resource, key))
        except NotFoundError:
            return None

    async def list(
        self, resource: Resource[T], namespace: str | None = None, *, live: bool = False
    ) -> list[T]:
        """Return all objects of the kind, in one namespace or in all."""
        if not live and self._keeps(resource):
            return self._cache.list(resource, namespace)
        listed = await self._client.list(resource, namespace=namespace)
        return [resource.decode(each) for each in listed.items]

    def _keeps(self, resource: Resource[Any]) -> bool:
        try:
            self._cache.informer(resource)
        except NotCachedError:
            return False
        return True
