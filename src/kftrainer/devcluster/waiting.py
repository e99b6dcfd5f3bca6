"""Waiting for what cannot call us back, such as other processes: ask again until a deadline."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kftrainer.devcluster.errors import NotReadyError

T = TypeVar("T")

ASK_EVERY = 0.05


async def until(
    check: Callable[[], Awaitable[T | None]], *, within: float, what: str, every: float = ASK_EVERY
) -> T:
    """Return the first answer of `check` that is neither None nor False; `what` names the wish."""
    try:
        async with asyncio.timeout(within):
            while True:
                answer = await check()
                if answer is not None and answer is not False:
                    return answer
                await asyncio.sleep(every)
    except TimeoutError:
        raise NotReadyError(f"{what} did not happen within {within:g} s.") from None
