"""A bounded queue in front of shared work that serves its clients in turn."""

import asyncio
from collections import deque


class QueueFullError(Exception):
    """A client has too many waiting requests."""


class FairQueue:
    """Starts waiting requests round-robin by client, one in each event loop iteration.

    However many requests one client sends, a request of another client waits for at most one
    request of each client before it starts. At most `most` requests are in progress, and at most
    `per_client` of one client. Memory is bounded: a client without requests is not stored, and one
    with `waiting` requests in the queue gets QueueFullError.
    """

    def __init__(self, most: int, per_client: int, waiting: int) -> None:
        self._most = most
        self._per_client = per_client
        self._waiting = waiting
        self._in_progress: dict[str, int] = {}
        self._total = 0
        # In the order of turns. A client that was served moves to the end.
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._dispatch: asyncio.Handle | None = None  # set while no request may start at once
        self._has_started = False  # a request was started in this event loop iteration

    async def acquire(self, client: str) -> None:
        """Return when a request of this client may start; call `release` afterwards."""
        if self._dispatch is None and not self._queues and self._has_room(client):
            self._start(client)
            self._schedule()
            return
        queue = self._queues.setdefault(client, deque())
        if len(queue) >= self._waiting:
            raise QueueFullError(client)
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._schedule()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(client)
            else:
                self._remove(client, turn)
            raise

    def release(self, client: str) -> None:
        """End a request of this client."""
        self._total -= 1
        self._in_progress[client] -= 1
        if not self._in_progress[client]:
            del self._in_progress[client]
        if self._queues:
            self._schedule()

    def _has_room(self, client: str) -> bool:
        return self._total < self._most and self._in_progress.get(client, 0) < self._per_client

    def _start(self, client: str) -> None:
        self._total += 1
        self._in_progress[client] = self._in_progress.get(client, 0) + 1

    def _schedule(self) -> None:
        if self._dispatch is None:
            self._dispatch = asyncio.get_running_loop().call_soon(self._start_next)

    def _start_next(self) -> None:
        self._dispatch = None
        client = next((each for each in self._queues if self._has_room(each)), None)
        has_started, self._has_started = self._has_started, client is not None
        if client is None:
            if has_started:
                self._schedule()  # requests that arrive in this iteration wait for the next one
            return  # `release` schedules the next one
        queue = self._queues.pop(client)
        turn = queue.popleft()
        if queue:
            self._queues[client] = queue
        self._start(client)
        turn.set_result(None)
        self._schedule()

    def _remove(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[client]
        queue.remove(turn)
        if not queue:
            del self._queues[client]
