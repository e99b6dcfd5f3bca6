"""Checks whether a cache includes everything written before this manager became the leader."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.machinery.cache.source import NO_OBJECT
from kftrainer.machinery.cache.store import is_older
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause
from kftrainer.machinery.queue.backoff import doubling

log = structlog.get_logger(__name__)

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0


class CacheBarrier:
    """Compare a cache with a resourceVersion that this leader has read from the API server.

    Earlier leaders wrote nothing after that version, and our own writes are in the OverlayCache.
    An object is therefore current once the cache has reached the version, even if its watch lags.
    This is a runnable for the leader and must start before the controllers.
    """

    def __init__(
        self,
        client: Client,
        view: OverlayCache,
        resource: Resource[Any],
        *,
        clock: Clock,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._view = view
        self._resource = resource
        self._clock = clock
        self._namespaces = namespaces or (None,)
        self._version: str | None = None

    @property
    def name(self) -> str:
        """Name in logs and error messages."""
        return f"cache barrier of {self._resource.group_kind}"

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Read the version, retrying until that succeeds; nothing is current before."""
        await self._read()
        ready()
        for seconds in doubling(FIRST_PAUSE, LONGEST_PAUSE):
            if self._version is not None or await pause(self._clock, seconds, stop=stop):
                break
            await self._read()
        await stop.wait()

    def is_current(self, metadata: ObjectMeta) -> bool:
        """Whether the object is current; if not, the caller must read it from the API server."""
        if self._version is None:
            return False
        key = ObjectKey(metadata.namespace or "", metadata.name)
        versions = self._view.version(self._resource, key), metadata.resource_version or ""
        return any(not is_older(each, self._version) for each in versions)

    async def _read(self) -> None:
        """Read the version from the first readable namespace; it is the same in all of them."""
        for namespace in self._namespaces:
            try:
                # A list that matches nothing is the cheapest consistent read of the version.
                page = await self._client.list(
                    self._resource, namespace=namespace, field_selector=NO_OBJECT
                )
            except KubeError as error:
                log.warning("resource_version_not_read", namespace=namespace, error=str(error))
            else:
                self._version = page.resource_version
                return
