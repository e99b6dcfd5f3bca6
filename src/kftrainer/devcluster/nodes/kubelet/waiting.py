"""Waiting for the first of several things."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from kftrainer.machinery.manager.clock import Clock


async def first_of(*awaited: Coroutine[Any, Any, object]) -> None:
    """Return when the first one has returned, and cancel the others; raise if one fails."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in awaited]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in running:
            each.cancel()


async def sleep_unless(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Sleep for this time, or until the event is set; return whether it is set."""
    if not event.is_set():
        await first_of(clock.sleep(seconds), event.wait())
    return event.is_set()
