"""WriteGuard: a check that stops writes, for example after the lease is lost.

The client of the manager's controllers has a guard that returns `LeaderElector.is_leading` (see
`machinery.manager.leader_election`). If the lease is lost during a reconcile, the next write is not
sent and raises WriteGuardError; the reconciler treats that as an expected error and requeues.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import aiohttp
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection

from kftrainer.kube.client.errors import KubeError

# Called right before each attempt of a write, because the request may have waited for a retry or a
# free connection.
WriteGuard = Callable[[], bool]

_current: ContextVar[WriteGuard | None] = ContextVar("write_guard", default=None)


class WriteGuardError(KubeError):
    """The write was not sent because the WriteGuard forbids it, for example after a lost lease."""


@contextmanager
def guarded_by(write_guard: WriteGuard | None) -> Iterator[None]:
    """Send the requests of this block only while the WriteGuard allows it."""
    token = _current.set(write_guard)
    try:
        yield
    finally:
        _current.reset(token)


def check(write_guard: WriteGuard | None, what: str) -> None:
    """Raise WriteGuardError if there is a guard and it returns False."""
    if write_guard is not None and not write_guard():
        raise WriteGuardError(
            f"{what}: not sent: writes are no longer allowed, for example after a lost lease"
        )


class GuardedRequest(ClientRequest):
    """A request that checks its WriteGuard after it got a connection, right before sending."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Send the request, or raise WriteGuardError."""
        check(_current.get(), f"{self.method} {self.url.path}")
        return await super().send(conn)
