"""Runs informers in tests and records the events of their handlers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.waiting import until
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.cached_object import Keep
from kftrainer.machinery.cache.multi_namespace import AnyInformer
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.manager.runnable import Runnable

CONFIG_MAPS: Resource[Manifest] = Resource(
    "", "v1", "ConfigMap", "configmaps", namespaced=True, decode=unstructured
)


def config_map(name: str, **data: str) -> dict[str, Any]:
    """A ConfigMap without a namespace."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Client]:
    """A client of the machinery's own."""
    connection = await load_connection(kubeconfig)
    async with HttpTransport(connection, user_agent="tests") as transport:
        yield Client(transport)


@asynccontextmanager
async def running(service: Runnable) -> AsyncIterator[None]:
    """Run it for the block, which begins before it is ready."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(service.run(lambda: None, stop))
        yield
        stop.set()


class RecordingHandler:
    """A handler that records events and inconsistencies between them."""

    def __init__(self) -> None:
        self.events: list[ObjectEvent[Manifest]] = []
        self.known: dict[ObjectKey, str] = {}
        self.inconsistencies: list[str] = []

    def __call__(self, change: ObjectEvent[Manifest]) -> None:
        """Record the event."""
        self.events.append(change)
        before = self.known.get(change.key)
        old, new = _version(change.old), _version(change.new)
        if change.new is None and before is None:
            self.inconsistencies.append(f"{change.key} is gone, and was not there")
        if change.new is not None and (change.old is None) != (before is None):
            self.inconsistencies.append(f"{change.key}: {old} to {new}, and was {before}")
        if change.new is not None and before is not None and int(new or 0) <= int(before):
            self.inconsistencies.append(f"{change.key}: {new} after {before}")
        if new is None:
            self.known.pop(change.key, None)
        else:
            self.known[change.key] = new


def _version(seen: Any) -> str | None:
    return None if seen is None else str(seen.metadata["resourceVersion"])


class Server:
    """The ConfigMaps of one namespace, as the server has them."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"

    def key(self, name: str) -> ObjectKey:
        """The key of a ConfigMap."""
        return ObjectKey(self.namespace, name)

    async def put(self, name: str, **data: str) -> Mapping[str, Any]:
        """Create it, or give it other data."""
        manifest = config_map(name, **data)
        manifest["metadata"]["namespace"] = self.namespace
        return await self.api.apply(manifest)

    async def delete(self, name: str) -> None:
        """Delete it."""
        await self.api.delete(f"{self._path}/{name}")

    async def objects(self) -> dict[ObjectKey, Any]:
        """All that are there, as a cache holds them."""
        found = {}
        for item in (await self.api.get(self._path))["items"]:
            item["metadata"].pop("managedFields", None)
            found[self.key(item["metadata"]["name"])] = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                **item,
            }
        return found


def cached(informer: AnyInformer[Manifest]) -> dict[ObjectKey, Any]:
    """All that an informer holds."""
    return {
        ObjectKey(each["metadata"]["namespace"], each["metadata"]["name"]): each
        for each in informer.list()
    }


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of the ConfigMaps: all of them or those that are kept, whole or not."""

    resource: Resource[Manifest] = CONFIG_MAPS
    keep: Keep | None = None

    def of(self, objects: Mapping[ObjectKey, Any]) -> dict[ObjectKey, Any]:
        """What a cache should hold of these objects of the server."""
        left_out = {"data"} if self.resource.partial else set()
        return {
            key: {name: value for name, value in each.items() if name not in left_out}
            for key, each in objects.items()
            if self.keep is None or self.keep(each)
        }


EVERYTHING = Reading()


async def agreement(
    informer: AnyInformer[Manifest],
    server: Server,
    witness: RecordingHandler,
    within: float = 15,
    reading: Reading = EVERYTHING,
) -> None:
    """Wait until the server, the informer and its handlers agree; none may have been misled."""

    async def agree() -> bool:
        try:
            there = reading.of(await server.objects())
        except (ApiError, UnreachableError):  # while a server restarts
            return False
        versions = {key: each["metadata"]["resourceVersion"] for key, each in there.items()}
        return informer.has_synced and cached(informer) == there and witness.known == versions

    await until(agree, within=within, what="agreement of cache, handlers and server")
    assert witness.inconsistencies == []
