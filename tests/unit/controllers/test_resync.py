"""Every unfinished TrainJob is reconciled once in a period, and they are spread over it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, cast

from kftrainer.controllers.resync import PERIOD, SLOTS, Resync
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.cache.cache import NotSyncedError
from kftrainer.machinery.controller.controller import INITIAL_PRIORITY
from kftrainer.machinery.controller.reconcile import Request
from tests.support.fake_clock import FakeClock

if TYPE_CHECKING:
    from kftrainer.machinery.cache.cache import Cache
    from kftrainer.machinery.controller.controller import Controller


class Jobs:
    """A cache that holds keys, and a controller that notes when it is given which."""

    def __init__(self, count: int) -> None:
        self.clock = FakeClock()
        self.keys = [ObjectKey("n", f"job-{number}") for number in range(count)]
        self.is_synced = True
        self.enqueued: list[tuple[float, Request]] = []

    def index_keys(self, *_: Any) -> list[ObjectKey]:
        if not self.is_synced:
            raise NotSyncedError("not yet")
        return list(self.keys)

    def enqueue_all(self, requests: Iterable[Request], *, priority: int) -> None:
        assert priority == INITIAL_PRIORITY
        self.enqueued += [(self.clock.monotonic(), each) for each in requests]


@asynccontextmanager
async def resyncing(jobs: Jobs, seed: int = 1) -> AsyncIterator[None]:
    resync = Resync(
        cast("Controller", jobs),
        cast("Cache", jobs),
        clock=jobs.clock,
        rng=Random(seed),  # noqa: S311
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(resync.run(lambda: None, stop))
        yield
        stop.set()


async def test_trainjob_is_enqueued_once_in_every_period() -> None:
    jobs = Jobs(200)
    async with resyncing(jobs):
        await jobs.clock.advance(PERIOD + 1)
        assert sorted(key for _, key in jobs.enqueued) == sorted(jobs.keys)
        await jobs.clock.advance(PERIOD)
        assert set(Counter(key for _, key in jobs.enqueued).values()) == {2}


async def test_trainjobs_are_spread_over_the_period() -> None:
    jobs = Jobs(SLOTS * 10)
    async with resyncing(jobs):
        await jobs.clock.advance(PERIOD + 1)
    at_once = Counter(at for at, _ in jobs.enqueued)
    assert max(at_once.values()) <= 4 * len(jobs.keys) / SLOTS


async def test_two_processes_use_different_slots() -> None:
    times = []
    for seed in (1, 2):
        jobs = Jobs(5)
        async with resyncing(jobs, seed):
            await jobs.clock.advance(PERIOD + 1)
        times.append([at for at, _ in sorted(jobs.enqueued, key=lambda each: each[1])])
    assert times[0] != times[1]


async def test_finished_and_unlisted_jobs_are_not_enqueued() -> None:
    jobs = Jobs(3)
    jobs.is_synced = False
    async with resyncing(jobs):
        await jobs.clock.advance(PERIOD)
        jobs.is_synced, jobs.keys = True, jobs.keys[:1]
        await jobs.clock.advance(PERIOD)
    assert [key for _, key in jobs.enqueued] == jobs.keys
