"""Polling with a deadline, for conditions without notification, such as other processes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kftrainer.devcluster.errors import NotReadyError

T = TypeVar("T")

POLL_EVERY = 0.05


async def until(
    check: Callable[[], Awaitable[T | None]], *, within: float, what: str, every: float = POLL_EVERY
) -> T:
    """Return the first result of `check` that is neither None nor False.

    `what` describes the condition in the NotReadyError that is raised after `within` seconds.
    """
    try:
        async with asyncio.timeout(within):
            while True:
                answer = await check()
                if answer is not None and answer is not False:
                    return answer
                await asyncio.sleep(every)
    except TimeoutError:
        raise NotReadyError(f"Timed out after {within:g} s waiting for {what}.") from None
