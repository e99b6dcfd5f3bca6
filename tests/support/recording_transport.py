"""A transport that records the bytes of all responses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kftrainer.kube.client.credentials import load_connection
from kftrainer.kube.client.transport import HttpTransport, Response


class RecordingTransport(HttpTransport):
    """An HttpTransport that records; `recording_transport` creates one."""

    received = b""

    async def request(self, *about: Any, **options: Any) -> Response:
        """Return the response and record it."""
        response = await super().request(*about, **options)
        self.received += response.body
        return response

    @asynccontextmanager
    async def stream(self, *about: Any, **options: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """Return the response and record it as it is read."""
        async with super().stream(*about, **options) as chunks:
            yield self._recorded(chunks)

    async def _recorded(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self.received += chunk
            yield chunk


@asynccontextmanager
async def recording_transport(kubeconfig: Path) -> AsyncIterator[RecordingTransport]:
    """A recording transport that is closed after the block."""
    connection = await load_connection(kubeconfig)
    async with RecordingTransport(connection, user_agent="tests") as transport:
        yield transport
