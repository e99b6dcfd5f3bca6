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
from kftrainer.machinery.queue.backoff import spread

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

Answer = Literal["served", "missing", "unknown"]
OnInstalled = Callable[[Resource[Any]], None]


def pauses(rng: Random) -> Iterator[float]:
    """Yield 1 s, doubling up to 30 s, each with a jitter of up to a tenth."""
    jitter, pause = spread(rng), FIRST_PAUSE
    while True:
        yield jitter(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


class OptionalKinds:
    """Add informers to a running cache as soon as the server serves their kinds.

    Ready when discovery has run once for each kind and the kinds that are served have synced.
    `on_installed` is called once for each kind after it has synced, for example to add watches on
    its informer. By then everything that was in the cache at the start can be read.
    """

    # A kind that is uninstalled later stays in the cache: its informer reports that it cannot be
    # read, and lists it again every few seconds until it is reinstalled.

    name = "late kinds"

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
        self._answers: dict[Resource[Any], Answer] = {}

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
            asking = tasks.create_task(self._ask(ready), name=f"{self.name}: ask")
            await stop.wait()
            asking.cancel()

    async def _ask(self, ready: Callable[[], None]) -> None:
        first = await self._take_up()
        await self._cache.wait_synced()
        for informer in first:
            self._on_installed(informer.resource)
        ready()
        async with asyncio.TaskGroup() as tasks:
            while self._waiting:
                await self._clock.sleep(next(self._pauses))
                for informer in await self._take_up():
                    tasks.create_task(self._introduce(informer), name=f"{self.name}: introduce")

    async def _introduce(self, informer: AnyInformer[Any]) -> None:
        await informer.wait_synced()
        self._on_installed(informer.resource)

    async def _take_up(self) -> list[AnyInformer[Any]]:
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
            self._note(resource, "unknown", error=str(error))
            return False
        self._note(resource, "served" if is_served else "missing")
        return is_served

    def _note(self, resource: Resource[Any], answer: Answer, **why: str) -> None:
        """Log the discovery result if it differs from the previous one."""
        if answer == self._answers.get(resource):
            return
        self._answers[resource] = answer
        say = log.warning if answer == "unknown" else log.info
        say("late_kinds.answer", kind=resource.group_kind, answer=answer, **why)
