"""How late the event loop is."""

import asyncio

from kftrainer.machinery.metrics.event_loop import LoopLag
from kftrainer.machinery.metrics.registry import Metrics
from tests.support.fake_clock import FakeClock


class LateClock(FakeClock):
    """A clock whose sleepers are woken too late."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds + 0.1)


async def test_late_wakeup_is_measured_as_lag() -> None:
    clock, metrics, stop = LateClock(), Metrics(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(LoopLag(metrics, clock=clock).run(lambda: None, stop))
        await clock.advance(0.8)
        stop.set()
    name = "machinery_event_loop_lag_seconds"
    assert metrics.registry.get_sample_value(f"{name}_count") == 2
    assert metrics.registry.get_sample_value(f"{name}_bucket", {"le": "0.05"}) == 0
    assert metrics.registry.get_sample_value(f"{name}_bucket", {"le": "0.25"}) == 2
