"""The manager: starts all runnables in order, runs leader election, stops in reverse order."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.leader_election import LeaderElector
from kftrainer.machinery.manager.lifetime import Budget, running
from kftrainer.machinery.manager.runnable import Runnable

log = structlog.get_logger(__name__)

GRACE = 30.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Allocations between garbage collections of the youngest generation. With the default, 700 in
# Python 3.11, objects that wait for a response soon reach the oldest generation. As that grows it
# is collected again: 22 times instead of 3 while 4,000 TrainJobs are created, taking a tenth of a
# second each time.
YOUNG = 10_000


@dataclass(frozen=True, slots=True)
class Parts:
    """The runnables of a process, grouped by start order.

    Servers start first and stop last, so that probes and metrics are always available. Checks are
    ready when all of them pass, and nothing is read before that. Caches start before webhooks,
    which read from them. Controllers run only on the leader.
    """

    servers: Sequence[Runnable] = ()
    checks: Sequence[Runnable] = ()
    caches: Sequence[Runnable] = ()
    webhooks: Sequence[Runnable] = ()
    controllers: Sequence[Runnable] = ()


class Manager:
    """Runs its parts until it is stopped; without leader election it leads at once."""

    def __init__(
        self,
        parts: Parts,
        *,
        clock: Clock,
        election: LeaderElector | None = None,
        grace: float = GRACE,
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._election = election
        self._grace = grace
        self.stopping = False  # readiness fails when set, so that no more requests are sent here

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, a runnable fails or the lease is lost; the last two raise."""
        budget = Budget(self._clock, self._grace)
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._on_stop(stop, budget), name="stop")
            async with (
                running(*self._parts.servers, budget=budget, stop=stop),
                running(*self._parts.checks, budget=budget, stop=stop),
                running(*self._parts.caches, budget=budget, stop=stop),
            ):
                _freeze_long_lived_objects()
                async with running(*self._parts.webhooks, budget=budget, stop=stop):
                    await self._lead(stop, budget)
            stopping.cancel()

    async def _on_stop(self, stop: asyncio.Event, budget: Budget) -> None:
        """When `stop` is set, fail readiness and start the stop budget."""
        await stop.wait()
        self.stopping = True
        budget.start()
        log.info("manager_stopping")

    async def _lead(self, stop: asyncio.Event, budget: Budget) -> None:
        if self._election is None:
            await self._control(stop, budget)
        elif await _before(stop, self._election):
            async with _holding(self._election):
                await self._control(stop, budget)

    async def _control(self, stop: asyncio.Event, budget: Budget) -> None:
        async with running(*self._parts.controllers, budget=budget, stop=stop):
            log.info("manager_started")
            await stop.wait()


async def _before(stop: asyncio.Event, election: LeaderElector) -> bool:
    """Wait to become the leader; return False if the manager is stopped before."""
    async with asyncio.TaskGroup() as group:
        elected = group.create_task(election.acquire(), name="acquire")
        stopped = group.create_task(stop.wait(), name="stop")
        await asyncio.wait((elected, stopped), return_when=asyncio.FIRST_COMPLETED)
        leading = elected.done() and not stop.is_set()
        elected.cancel()
        stopped.cancel()
    if not leading:
        await election.release()  # a cancelled claim may have been written nevertheless
    return leading


@asynccontextmanager
async def _holding(election: LeaderElector) -> AsyncIterator[None]:
    """Renew the lease during the block and release it afterwards; losing it cancels the block."""
    enough = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(election.hold(enough), name="lease")
            yield
            enough.set()
    finally:
        await election.release()  # after a lost lease this only stops the watchdog


async def run_until_signalled(manager: Manager) -> None:
    """Run until SIGTERM or SIGINT; a second signal ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal(signum: signal.Signals) -> None:
        if stop.is_set():
            os._exit(1)
        log.info("signal_received", signal=signum.name)
        stop.set()

    for signum in SIGNALS:
        loop.add_signal_handler(signum, on_signal, signum)
    try:
        await manager.run(stop)
    finally:
        for signum in SIGNALS:
            loop.remove_signal_handler(signum)


def _freeze_long_lived_objects() -> None:
    """Exclude the objects that caches hold from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
