"""TLS context for new connections, rebuilt when its files change.

A cluster's CA and client certificates are rotated while the process runs. Open connections stay
open; only new ones use the new context.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import structlog

from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.clock import Clock

CHECK_EVERY = 5.0  # seconds; shorter than the time a leader has to renew its Lease

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A context and the files that it was built from."""

    context: ssl.SSLContext
    files: tuple[str, ...]

    def contents(self) -> tuple[bytes | None, ...]:
        """Return the current contents of the files; None for an unreadable file."""
        return tuple(map(_content, self.files))


class ReloadedTls:
    """Provides the context, and rebuilds it soon after one of its files has changed.

    If the files cannot be used, the last context stays: they may be only partly written.
    """

    def __init__(self, first: Loaded, load: Callable[[], Awaitable[Loaded]], clock: Clock) -> None:
        self._loaded = first
        self._contents = first.contents()
        self._load = load
        self._clock = clock
        self._checked_at = clock.monotonic()
        self._checking = asyncio.Lock()
        self._reported = ""

    async def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        if self._is_due():
            async with self._checking:
                if self._is_due():  # not checked by another request meanwhile
                    await self._check()
        return self._loaded.context

    def _is_due(self) -> bool:
        return self._clock.monotonic() - self._checked_at >= CHECK_EVERY

    async def _check(self) -> None:
        self._checked_at = self._clock.monotonic()
        seen, files = self._loaded.contents(), self._loaded.files
        if seen == self._contents:
            return
        try:
            loaded = await self._load()
        except (KubeError, OSError) as error:
            if str(error) != self._reported:
                self._reported = str(error)
                log.warning("certificates_not_reloaded", error=str(error))
            return
        # The contents from before the load: a file that changed during the load is then loaded
        # again.
        self._contents = seen if loaded.files == files else loaded.contents()
        self._loaded, self._reported = loaded, ""
        log.info("certificates_reloaded")


def existing(paths: Iterable[str | None]) -> tuple[str, ...]:
    """Return the paths that are not empty."""
    return tuple(path for path in paths if path)


def _content(path: str) -> bytes | None:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            return file.read()
    except OSError:
        return None
