"""What a manager runs: something with a name that becomes ready, and ends when it is told to."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Runnable(Protocol):
    """A part of the manager with a life of its own."""

    @property
    def name(self) -> str:
        """For logs and error messages."""
        ...

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Call `ready` once when others may build on this, and return soon after `stop` is set.

        Returning earlier, or raising, ends the manager. Being cancelled means: end at once.
        """
        ...
