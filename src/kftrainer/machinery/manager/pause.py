"""A sleep that an event ends early."""

import asyncio

from kftrainer.machinery.manager.clock import Clock


async def pause(clock: Clock, seconds: float, *, stop: asyncio.Event) -> bool:
    """Sleep until the time is over or the event is set; return whether it is set."""
    if stop.is_set():
        return True
    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(clock.sleep(seconds), name="pause")
        waiting = group.create_task(stop.wait(), name="pause-event")
        await asyncio.wait((sleeping, waiting), return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        waiting.cancel()
    return stop.is_set()
