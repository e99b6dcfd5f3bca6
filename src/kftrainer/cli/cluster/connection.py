"""Shared by commands that use a cluster: connection, waiting with a deadline, and errors."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import structlog

from kftrainer import logs
from kftrainer.cli.errors import in_one_line
from kftrainer.cli.manager_setup.preflight import LAST_TRY, MAY_PASS
from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.errors import KubeError, UnauthorizedError
from kftrainer.kube.client.transport import HttpTransport, Transport
from kftrainer.machinery.exception_groups import leaf_errors
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.backoff import doubling

log = structlog.get_logger(__name__)

FAILED = 1
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0

Check = Callable[[], Awaitable[str | None]]


class CommandError(Exception):
    """The command failed; the message is the reason."""


class DeadlineExceededError(CommandError):
    """The deadline passed while waiting."""


def run_on_cluster(command: str, work: Coroutine[Any, Any, int], *, failed: int = FAILED) -> int:
    """Run the work of a command; print errors in one line and return the exit code."""
    logs.set_up("error")
    try:
        return asyncio.run(work)
    except Exception as error:
        message = in_one_line(map(_message, leaf_errors(error)))
        if any(not isinstance(each, CommandError | KubeError) for each in leaf_errors(error)):
            log.critical("command_crashed", command=command, exc_info=error)
    print(f"kftrainer {command}: {message}", file=sys.stderr)
    return failed


def _message(error: BaseException) -> str:
    if isinstance(error, UnauthorizedError):
        return f"the API server rejected the credentials: {error}"
    if isinstance(error, CommandError | KubeError):
        return str(error)
    return f"unexpected error, see the traceback in the log: {type(error).__name__}: {error}"


@asynccontextmanager
async def connected(arguments: argparse.Namespace) -> AsyncIterator[Transport]:
    """Connect to the cluster that `--kubeconfig` and `--context` select."""
    connection = await load_connection(arguments.kubeconfig, arguments.context)
    user_agent = f"kftrainer/{version('kftrainer')}"
    async with HttpTransport(connection, user_agent=user_agent) as transport:
        yield transport


class Waiter:
    """Waits for conditions, with one deadline for all of them."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._deadline = clock.monotonic() + seconds
        self._awaited: str | None = None

    def awaiting(self, what: str | None) -> None:
        """Set what is being waited for; a check that may still fail can set it beforehand."""
        self._awaited = what

    async def until_passed(
        self, check: Check, report: Callable[[str], None] = lambda _: None
    ) -> None:
        """Repeat the check until it returns None; otherwise it returns what is being waited for.

        Raises DeadlineExceededError with what was last waited for. A failed check is reported in
        addition and does not replace an earlier result.
        """
        self._awaited = None
        for pause in doubling(FIRST_PAUSE, LONGEST_PAUSE):
            failure = await self._run(check)
            message = "; ".join(each for each in (self._awaited, failure) if each)
            if not message:
                return
            left = self._left()
            if left <= 0:
                raise DeadlineExceededError(f"after {self._seconds:g} s: {message}")
            report(message)
            await self._clock.sleep(min(pause, left))

    async def _run(self, check: Check) -> str | None:
        """Run the check once; return the reason if it failed."""
        try:
            async with asyncio.timeout(max(self._left(), LAST_TRY)):
                self._awaited = await check()
        except MAY_PASS as error:
            return f"the last attempt failed: {error}"
        except TimeoutError:
            return "the API server does not respond"
        return None

    def _left(self) -> float:
        return self._deadline - self._clock.monotonic()


def print_line(text: str) -> None:
    """Print a line and flush it, because the next one may take long."""
    print(text, flush=True)
