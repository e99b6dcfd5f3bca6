"""Reconciles every unfinished TrainJob once per period, in case that an event was missed.

TrainJobs that are up to date cause no write. They are spread over the period to avoid bursts.
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
SLOTS = 600  # one per minute with the default period


class Resync:
    """Runnable for the leader that enqueues each unfinished TrainJob once per period.

    The period is divided into slots. The slot of a TrainJob depends on its key and on a seed of
    this process, so that a TrainJob is enqueued within one period whenever it is created.
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
        """Enqueue the TrainJobs of one slot after the other until `stop` is set."""
        ready()
        slot = 0
        while not await pause(self._clock, self._period / SLOTS, stop=stop):
            self._controller.enqueue_all(self._in_slot(slot), priority=INITIAL_PRIORITY)
            slot = (slot + 1) % SLOTS

    def _in_slot(self, slot: int) -> Iterator[Request]:
        try:
            requests = unfinished(self._cache)
        except NotCachedError:  # not listed yet: the initial list will enqueue all of them
            return
        for request in requests:
            if crc32(str(request).encode(), self._seed) % SLOTS == slot:
                yield request
