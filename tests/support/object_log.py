"""Records every state of the objects of some kinds with watches."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.client.watch import Bookmark, Deleted, Upserted
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of
from tests.support.informers import connected

LIFETIME = 900  # seconds, more than any test takes
PAUSE = 0.1  # seconds between two watches


class ObjectLog:
    """Reads cost no request; `object_log` creates one."""

    def __init__(self) -> None:
        self._live: dict[str, dict[ObjectKey, Manifest]] = {}
        self._states: dict[tuple[str, ObjectKey], list[Manifest]] = {}

    def get(self, resource: Resource[Any], key: ObjectKey) -> Manifest | None:
        """Return the live object, or None if there is none."""
        return self._live[resource.group_kind].get(key)

    def list(self, resource: Resource[Any], namespace: str) -> Sequence[Manifest]:
        """Return the live objects of a namespace."""
        found = self._live[resource.group_kind].items()
        return [manifest for key, manifest in found if key.namespace == namespace]

    def states(self, resource: Resource[Any], key: ObjectKey) -> Sequence[Manifest]:
        """Return all states that the object has had, the oldest first."""
        return self._states.get((resource.group_kind, key), ())

    async def follow(
        self, client: Client, resource: Resource[Any], is_synced: asyncio.Event
    ) -> None:
        """Watch the kind until cancelled; the API server ends watches when a CRD is changed."""
        self._live.setdefault(resource.group_kind, {})
        while True:
            with suppress(KubeError):
                await self._watch(client, resource, is_synced)
            await asyncio.sleep(PAUSE)

    async def _watch(
        self, client: Client, resource: Resource[Any], is_synced: asyncio.Event
    ) -> None:
        kind, listed = resource.group_kind, dict[ObjectKey, Manifest]()
        async with client.watch(
            resource, send_initial_events=True, timeout_seconds=LIFETIME
        ) as events:
            async for event in events:
                match event:
                    case Upserted(manifest=manifest):
                        listed[key_of(manifest)] = manifest
                        self._append(kind, manifest)
                    case Deleted(manifest=manifest):
                        listed.pop(key_of(manifest), None)
                    case Bookmark(initial_events_end=True):
                        self._live[kind] = listed
                        is_synced.set()
                    case Bookmark():
                        pass

    def _append(self, kind: str, manifest: Manifest) -> None:
        states = self._states.setdefault((kind, key_of(manifest)), [])
        if not states or _version(states[-1]) != _version(manifest):
            states.append(manifest)


def _version(manifest: Manifest) -> str:
    return str(manifest["metadata"]["resourceVersion"])


@asynccontextmanager
async def object_log(kubeconfig: Path, *resources: Resource[Any]) -> AsyncIterator[ObjectLog]:
    """A log of these kinds, in all namespaces, for the length of the block."""
    log = ObjectLog()
    async with connected(kubeconfig) as client, asyncio.TaskGroup() as tasks:
        watches = []
        for resource in resources:
            is_synced = asyncio.Event()
            watches.append(tasks.create_task(log.follow(client, resource, is_synced)))
            await is_synced.wait()
        yield log
        for watch in watches:
            watch.cancel()
