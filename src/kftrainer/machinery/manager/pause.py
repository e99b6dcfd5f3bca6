"""A sleep that an event ends early."""

import asyncio

from kftrainer.machinery.manager.clock import Clock


async def pause(clock: Clock, seconds: float, *, unless: asyncio.Event) -> bool:
    """Sleep until the time is over or the event is set; return whether it is set."""
    if unless.is_set():
        return True
    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(clock.sleep(seconds), name="pause")
        waiting = group.create_task(unless.wait(), name="pause-event")
        await asyncio.wait((sleeping, waiting), return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        waiting.cancel()
    return unless.is_set()
