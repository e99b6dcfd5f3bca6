"""Writes the status of one pod to the API server whenever it has changed."""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from kftrainer.devcluster.client import NOT_FOUND, ApiClient, Object, UnreachableError
from kftrainer.devcluster.errors import ApiError
from kftrainer.machinery.manager.clock import Clock

STRATEGIC_MERGE = "application/strategic-merge-patch+json"
CONFLICT = 409  # the pod was replaced by one with the same name
RETRY_AFTER, LONGEST_RETRY = 0.5, 10.0

log = structlog.get_logger(__name__)


class StatusWriter:
    """Writes the status that `compute` returns; changes in quick succession are written once."""

    def __init__(
        self, api: ApiClient, clock: Clock, pod: Object, compute: Callable[[], dict[str, Any]]
    ) -> None:
        metadata = pod["metadata"]
        self._api = api
        self._clock = clock
        self._compute = compute
        self._uid = metadata["uid"]
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._written: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()

    def changed(self) -> None:
        """Request that the status is written."""
        self._changed.set()

    async def run(self) -> None:
        """Write the status after each change, until cancelled."""
        while True:
            await self._changed.wait()
            await self.flush()

    async def flush(self) -> None:
        """Return when the current status is written or the pod does not exist any more."""
        async with self._writing:
            self._changed.clear()
            delay = RETRY_AFTER
            while not await self._write():
                await self._clock.sleep(delay)
                delay = min(2 * delay, LONGEST_RETRY)

    async def _write(self) -> bool:
        status = self._compute()
        if status == self._written:
            return True
        body = {"metadata": {"uid": self._uid}, "status": status}
        try:
            await self._api.request(
                "PATCH", f"{self._path}/status", body=body, content_type=STRATEGIC_MERGE
            )
        except UnreachableError as error:
            log.warning("pod_status_not_written", pod=self._path, error=str(error))
            return False
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                log.warning("pod_status_not_written", pod=self._path, error=str(error))
                return False
        self._written = status
        return True

    async def delete_pod(self) -> None:
        """Delete the pod from the API server, as its containers have ended."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": self._uid},
        }
        delay = RETRY_AFTER
        while True:
            try:
                await self._api.request("DELETE", self._path, body=body)
            except UnreachableError as error:
                log.warning("pod_not_deleted", pod=self._path, error=str(error))
            except ApiError as error:
                if error.status in (NOT_FOUND, CONFLICT):
                    return
                log.warning("pod_not_deleted", pod=self._path, error=str(error))
            else:
                return
            await self._clock.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY)
