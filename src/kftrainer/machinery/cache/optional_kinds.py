"""Kinds that may be installed after the start; they are watched once they are served."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from random import Random, SystemRandom
from typing import Any, Literal

import structlog

from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.resource import Resource
from kftrainer.machinery.cache.cache import Cache, NotCachedError
from kftrainer.machinery.cache.multi_namespace import AnyInformer
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.backoff import doubling, spread

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

Discovered = Literal["served", "missing", "unknown"]
OnInstalled = Callable[[Resource[Any]], None]


def pauses(rng: Random) -> Iterator[float]:
    """Return the pauses: 1 s, doubling up to 30 s, each with a jitter of up to a tenth."""
    return map(spread(rng), doubling(FIRST_PAUSE, LONGEST_PAUSE))


class OptionalKinds:
    """Add informers to a running cache as soon as the server serves their kinds.

    Ready when discovery has run once for each kind and the kinds that are served have synced.
    `on_installed` is called once for each kind after it has synced, for example to add watches on
    its informer. By then everything that was in the cache at the start can be read.
    """

    # A kind that is uninstalled later stays in the cache: its informer reports that it cannot be
    # read, and lists it again every few seconds until it is reinstalled.

    name = "optional-kinds"

    def __init__(
        self,
        informers: Iterable[AnyInformer[Any]],
        *,
        cache: Cache,
        mapper: RestMapper,
        clock: Clock,
        on_installed: OnInstalled,
        rng: Random | None = None,
    ) -> None:
        self._waiting = list(informers)
        self._cache = cache
        self._mapper = mapper
        self._clock = clock
        self._on_installed = on_installed
        self._pauses = pauses(rng if rng is not None else SystemRandom())
        self._results: dict[Resource[Any], Discovered] = {}

    def installed(self, resource: Resource[Any]) -> bool:
        """Return whether the kind is in the cache and has synced."""
        try:
            return self._cache.informer(resource).has_synced
        except NotCachedError:
            return False

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Poll discovery until all kinds are served or `stop` is set.

        Raises NotSyncedError, within an ExceptionGroup, if a kind that is served at the start takes
        longer than the cache's timeout to sync. Kinds installed later have no timeout.
        """
        async with asyncio.TaskGroup() as tasks:
            polling = tasks.create_task(self._poll(ready), name=f"{self.name}: poll")
            await stop.wait()
            polling.cancel()

    async def _poll(self, ready: Callable[[], None]) -> None:
        first = await self._add_served()
        await self._cache.wait_synced()
        for informer in first:
            self._on_installed(informer.resource)
        ready()
        async with asyncio.TaskGroup() as tasks:
            while self._waiting:
                await self._clock.sleep(next(self._pauses))
                for informer in await self._add_served():
                    tasks.create_task(self._announce(informer), name=f"{self.name}: announce")

    async def _announce(self, informer: AnyInformer[Any]) -> None:
        await informer.wait_synced()
        self._on_installed(informer.resource)

    async def _add_served(self) -> list[AnyInformer[Any]]:
        """Add the informers of newly served kinds to the cache and return them."""
        found = []
        for informer in tuple(self._waiting):
            if await self._is_served(informer.resource):
                self._waiting.remove(informer)
                self._cache.add(informer)
                found.append(informer)
        return found

    async def _is_served(self, resource: Resource[Any]) -> bool:
        try:
            is_served = await self._mapper.is_served(resource)
        except KubeError as error:
            self._report(resource, "unknown", error=str(error))
            return False
        self._report(resource, "served" if is_served else "missing")
        return is_served

    def _report(self, resource: Resource[Any], result: Discovered, **why: str) -> None:
        """Log the discovery result if it differs from the previous one."""
        if result == self._results.get(resource):
            return
        self._results[resource] = result
        write = log.warning if result == "unknown" else log.info
        write("optional_kind_checked", kind=resource.group_kind, result=result, **why)
