"""Reconciles every unfinished TrainJob once in a long while, in case that an event was missed.

Settled TrainJobs cost no write, and they are spread over the whole period: there is no burst.
"""

import asyncio
from collections.abc import Callable, Iterator
from random import Random, SystemRandom
from zlib import crc32

from kftrainer.controllers.watches import unfinished
from kftrainer.machinery.cache.cache import Cache, NotCachedError
from kftrainer.machinery.controller.controller import INITIAL_PRIORITY, Controller
from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.pause import pause

PERIOD = 10 * 3600.0  # seconds, as controller-runtime's SyncPeriod
SLOTS = 600  # so that with the default period some are enqueued every minute


class Resync:
    """A service for the leader: enqueues each unfinished TrainJob once in each period.

    The period is divided into slots. The slot of a TrainJob depends on its key and on a seed of
    this process, so that a TrainJob that is created at any time is enqueued within one period.
    """

    name = "resync"

    def __init__(
        self,
        controller: Controller,
        cache: Cache,
        *,
        clock: Clock,
        period: float = PERIOD,
        rng: Random | None = None,
    ) -> None:
        self._controller = controller
        self._cache = cache
        self._clock = clock
        self._period = period
        self._seed = (rng if rng is not None else SystemRandom()).getrandbits(32)

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Enqueue one slot after the other until `stop` is set."""
        ready()
        slot = 0
        while not await pause(self._clock, self._period / SLOTS, unless=stop):
            self._controller.enqueue_all(self._in_slot(slot), priority=INITIAL_PRIORITY)
            slot = (slot + 1) % SLOTS

    def _in_slot(self, slot: int) -> Iterator[Request]:
        try:
            requests = unfinished(self._cache)
        except NotCachedError:  # not listed yet: all of them will be enqueued then
            return
        for request in requests:
            if crc32(str(request).encode(), self._seed) % SLOTS == slot:
                yield request
