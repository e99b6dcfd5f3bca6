"""What commands on a running cluster have in common: a client, patience, and how they fail."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from kftrainer import logs
from kftrainer.cli.preflight import MAY_PASS
from kftrainer.kube.client import Client
from kftrainer.kube.credentials import load_connection
from kftrainer.kube.errors import KubeError, UnauthorizedError
from kftrainer.kube.transport import HttpTransport
from kftrainer.machinery.clock import Clock

FAILED = 1
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
LAST_TRY = 1.0  # so long the last look may take when the time is up

Look = Callable[[], Awaitable[str | None]]


class CommandError(Exception):
    """The command could not do what it says; the text says why."""


class OutOfTimeError(CommandError):
    """Something was waited for in vain."""


def run_on_cluster(command: str, work: Coroutine[Any, Any, int]) -> int:
    """Do the work of a command; the exit code. An error is told in one line."""
    logs.set_up("error")
    try:
        return asyncio.run(work)
    except UnauthorizedError as error:
        told = f"the API server does not accept our credentials: {error}"
    except (CommandError, KubeError) as error:
        told = str(error)
    print(f"kftrainer {command}: {' '.join(told.split())}", file=sys.stderr)
    return FAILED


@asynccontextmanager
async def connected(arguments: argparse.Namespace) -> AsyncIterator[Client]:
    """A client of the cluster that `--kubeconfig` and `--context` lead to."""
    connection = await load_connection(arguments.kubeconfig, arguments.context)
    user_agent = f"kftrainer/{version('kftrainer')}"
    async with HttpTransport(connection, user_agent=user_agent) as transport:
        yield Client(transport)


class Patience:
    """So many seconds for all that has to be waited for."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._deadline = clock.monotonic() + seconds

    async def until_fine(self, look: Look, tell: Callable[[str], None] = lambda _: None) -> None:
        """Look again and again until it finds nothing to wait for; else it says what that is.

        Raises OutOfTimeError with what it said last.
        """
        for pause in _pauses():
            awaited = await self._look(look)
            if awaited is None:
                return
            left = self._left()
            if left <= 0:
                raise OutOfTimeError(f"after {self._seconds:g} s: {awaited}")
            tell(awaited)
            await self._clock.sleep(min(pause, left))

    async def _look(self, look: Look) -> str | None:
        try:
            async with asyncio.timeout(max(self._left(), LAST_TRY)):
                return await look()
        except MAY_PASS as error:
            return str(error)
        except TimeoutError:
            return "the API server does not answer"

    def _left(self) -> float:
        return self._deadline - self._clock.monotonic()


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)


def say(text: str) -> None:
    """Print a line at once, as nobody knows how long the next one takes."""
    print(text, flush=True)
