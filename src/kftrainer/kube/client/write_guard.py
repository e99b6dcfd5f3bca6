"""A fence before writes: nothing is sent once we have no right to write any more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import aiohttp
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection

from kftrainer.kube.client.errors import KubeError

# Asked right before each attempt of a write: a wait may lie before it, for the last attempt's
# failure to pass or for a connection to be free.
WriteGuard = Callable[[], bool]

_fence: ContextVar[WriteGuard | None] = ContextVar("fence", default=None)


class WriteGuardError(KubeError):
    """The write was not sent: by our own word we may not write any more, as after a lost lease."""


@contextmanager
def guarded_by(fence: WriteGuard | None) -> Iterator[None]:
    """Requests of this block are sent only while the fence lets them."""
    token = _fence.set(fence)
    try:
        yield
    finally:
        _fence.reset(token)


def check(fence: WriteGuard | None, what: str) -> None:
    """Raise FencedError if there is a fence and it says no."""
    if fence is not None and not fence():
        raise WriteGuardError(f"{what}: not sent, as we may not write any more")


class GuardedRequest(ClientRequest):
    """A request that asks its fence when it has a connection: all that is left is to send it."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Send it, or raise FencedError."""
        check(_fence.get(), f"{self.method} {self.url.path}")
        return await super().send(conn)
