"""The start and stop contract of everything that a manager runs."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Runnable(Protocol):
    """A named component that a manager starts and stops."""

    @property
    def name(self) -> str:
        """Name for logs and error messages."""
        ...

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Call `ready` once when others may depend on this, and return soon after `stop` is set.

        Returning earlier, or raising, ends the manager. When cancelled, end at once.
        """
        ...
