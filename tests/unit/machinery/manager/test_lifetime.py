import asyncio
from collections.abc import Callable

import pytest

from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.lifetime import Budget, RunnableEndedError, running
from kftrainer.machinery.manager.manager import Manager, Parts


class Recorded:
    """A service that writes down what happens to it."""

    def __init__(self, name: str, log: list[str], *, ignores_cancel: bool = False) -> None:
        self.name = name
        self._log = log
        self._ignores_cancel = ignores_cancel

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        self._log.append(f"{self.name} starts")
        ready()
        try:
            await (asyncio.Event() if self._ignores_cancel else stop).wait()
        except asyncio.CancelledError:
            self._log.append(f"{self.name} is cancelled")
            raise
        self._log.append(f"{self.name} stops")


class Failing(Recorded):
    """A service that fails on request."""

    def __init__(self, name: str, log: list[str], error: Exception | None) -> None:
        super().__init__(name, log)
        self.now = asyncio.Event()
        self._error = error

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        ready()
        await self.now.wait()
        if self._error is not None:
            raise self._error


def never() -> asyncio.Event:
    return asyncio.Event()


def budget(seconds: float = 30.0) -> Budget:
    return Budget(SystemClock(), seconds)


async def test_blocks_start_in_order_and_stop_in_reverse() -> None:
    log: list[str] = []
    shared = budget()
    async with (
        running(Recorded("server", log), budget=shared, stop=never()),
        running(Recorded("cache", log), budget=shared, stop=never()),
    ):
        log.append("body")
    assert log == ["server starts", "cache starts", "body", "cache stops", "server stops"]


async def test_a_service_that_fails_ends_the_block_and_its_siblings() -> None:
    log: list[str] = []
    failing = Failing("failing", log, RuntimeError("broken"))

    async def block() -> None:
        async with running(Recorded("other", log), failing, budget=budget(), stop=asyncio.Event()):
            failing.now.set()
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        await block()
    assert [str(each) for each in raised.value.exceptions] == ["broken"]
    assert log == ["other starts", "other is cancelled"]


async def test_a_service_that_merely_returns_counts_as_failed() -> None:
    failing_runnable = Failing("quitter", [], None)

    async def block() -> None:
        async with running(failing_runnable, budget=budget(), stop=never()):
            failing_runnable.now.set()
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        await block()
    assert raised.group_contains(RunnableEndedError, match="quitter ended before")


async def test_a_service_that_does_not_stop_in_time_is_cancelled() -> None:
    log: list[str] = []
    async with running(
        Recorded("deaf", log, ignores_cancel=True), budget=budget(0.01), stop=asyncio.Event()
    ):
        pass
    assert log == ["deaf starts", "deaf is cancelled"]


async def test_all_blocks_share_one_budget() -> None:
    log: list[str] = []
    shared = budget(0.05)
    async with running(Recorded("outer", log, ignores_cancel=True), budget=shared, stop=never()):
        async with running(
            Recorded("inner", log, ignores_cancel=True), budget=shared, stop=asyncio.Event()
        ):
            pass
        assert shared.remaining() == 0
    assert log[2:] == ["inner is cancelled", "outer is cancelled"]


class NeverReady(Recorded):
    """A service that waits for what never comes, as an informer of a kind that is not there."""

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        await super().run(lambda: None, stop)


async def test_stop_is_handled_while_services_are_not_ready() -> None:
    log: list[str] = []
    stop_requested = asyncio.Event()
    stop_requested.set()
    async with running(NeverReady("cache", log), budget=budget(), stop=stop_requested):
        log.append("body")
    assert "body" in log
    assert log[-1] == "cache stops"


async def test_a_manager_whose_caches_never_sync_can_be_stopped() -> None:
    log: list[str] = []
    stop = asyncio.Event()
    manager = Manager(Parts(caches=[NeverReady("cache", log)]), clock=SystemClock())
    async with asyncio.TaskGroup() as group:
        running_manager = group.create_task(manager.run(stop))
        await asyncio.sleep(0)
        stop.set()
        async with asyncio.timeout(10):
            await running_manager
    assert manager.stopping
