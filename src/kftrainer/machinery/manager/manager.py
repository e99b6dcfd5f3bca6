"""The manager: starts everything in order, leads if it is elected, stops everything in reverse."""

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
# New objects until Python looks for cycles among them. With its default, 700 in 3.11, whatever
# waits for an answer soon counts as old, and as the old grow all of them are looked at again: 22
# times, not 3, while 4,000 TrainJobs are made, and for a tenth of a second each time.
YOUNG = 10_000


@dataclass(frozen=True, slots=True)
class Parts:
    """What runs in a process, by what it needs.

    Servers run first and stop last, so that probes and metrics are there all along. Checks are
    ready when all is well, and nothing is read before that. Caches come before webhooks, which
    read from them; controllers run only on the leader.
    """

    servers: Sequence[Runnable] = ()
    checks: Sequence[Runnable] = ()
    caches: Sequence[Runnable] = ()
    webhooks: Sequence[Runnable] = ()
    controllers: Sequence[Runnable] = ()


class Manager:
    """Runs its parts until it is told to stop; without an election it leads at once."""

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
        self.stopping = False  # readiness fails from then on, so that nobody sends us more work

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, a service fails, or the lease is lost; the last two raise."""
        budget = Budget(self._clock, self._grace)
        async with asyncio.TaskGroup() as group:
            noticing = group.create_task(self._notice(stop, budget), name="stop")
            async with (
                running(*self._parts.servers, budget=budget, unless=stop),
                running(*self._parts.checks, budget=budget, unless=stop),
                running(*self._parts.caches, budget=budget, unless=stop),
            ):
                _spare_what_lives_on()
                async with running(*self._parts.webhooks, budget=budget, unless=stop):
                    await self._lead(stop, budget)
            noticing.cancel()

    async def _notice(self, stop: asyncio.Event, budget: Budget) -> None:
        """Let readiness fail, and the budget run, from the moment of the stop."""
        await stop.wait()
        self.stopping = True
        budget.start()
        log.info("manager.stopping")

    async def _lead(self, stop: asyncio.Event, budget: Budget) -> None:
        if self._election is None:
            await self._control(stop, budget)
        elif await _before(stop, self._election):
            async with _holding(self._election):
                await self._control(stop, budget)

    async def _control(self, stop: asyncio.Event, budget: Budget) -> None:
        async with running(*self._parts.controllers, budget=budget, unless=stop):
            log.info("manager.started")
            await stop.wait()


async def _before(stop: asyncio.Event, election: LeaderElector) -> bool:
    """Wait to be elected; False if the manager is stopped before."""
    async with asyncio.TaskGroup() as group:
        elected = group.create_task(election.acquire(), name="acquire")
        stopped = group.create_task(stop.wait(), name="stop")
        await asyncio.wait((elected, stopped), return_when=asyncio.FIRST_COMPLETED)
        leading = elected.done() and not stop.is_set()
        elected.cancel()
        stopped.cancel()
    if not leading:
        await election.release()  # a claim that was cut off may have been written all the same
    return leading


@asynccontextmanager
async def _holding(election: LeaderElector) -> AsyncIterator[None]:
    """Renew the lease for the block, and give it back after; losing it cancels the block."""
    enough = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(election.hold(enough), name="lease")
            yield
            enough.set()
    finally:
        await election.release()  # of a lease that was lost this only dismisses the watchdog


async def run_until_signalled(manager: Manager) -> None:
    """Run until SIGTERM or SIGINT; a second one ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def told(signum: signal.Signals) -> None:
        if stop.is_set():
            os._exit(1)
        log.info("manager.signalled", signal=signum.name)
        stop.set()

    for signum in SIGNALS:
        loop.add_signal_handler(signum, told, signum)
    try:
        await manager.run(stop)
    finally:
        for signum in SIGNALS:
            loop.remove_signal_handler(signum)


def _spare_what_lives_on() -> None:
    """Have garbage collection look at what is new, and not again and again at what caches hold."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
