"""Checks at start whether the manager can work, and reports why not."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from kftrainer.kube.client.client import Client
from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.errors import (
    ForbiddenError,
    KubeError,
    ServerError,
    TooManyRequestsError,
    TransportError,
    UnauthorizedError,
)
from kftrainer.kube.objects.resource import Resource
from kftrainer.kube.permissions import refusals_to_list
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.queue.backoff import doubling

log = structlog.get_logger(__name__)

TRY_FOR = 30.0  # seconds; after that the manager exits and its supervisor decides
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
LAST_TRY = 1.0  # seconds that the last attempt may take after the deadline
# CRDs and RBAC rules are often created just before the manager, and may take a moment to apply.
SETTLE_FOR, SETTLE_PAUSE = 5.0, 1.0
# Errors of an API server that is starting or overloaded.
MAY_PASS = (TransportError, ServerError, TooManyRequestsError)


class PreflightError(KubeError):
    """The manager cannot work here; the message contains the reason and a remedy."""


class MissingRequirementError(PreflightError):
    """The API server responds, but a required kind or permission is missing."""


class NamespacesUnavailableError(MissingRequirementError):
    """Some namespaces do not exist or cannot be read; the others can be served."""


class Preflight:
    """Checks once that the API server responds, serves our kinds and lets us read them.

    As a Runnable it is ready when all checks pass. An unavailable API server is retried for half a
    minute, missing kinds and permissions for a few seconds. If at least one namespace can be read,
    it does not wait longer for the others; informers do.
    """

    name = "preflight"

    def __init__(
        self,
        client: Client,
        mapper: RestMapper,
        *,
        clock: Clock,
        ours: Sequence[Resource[Any]],
        watched: Sequence[Resource[Any]],
        namespaces: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._mapper = mapper
        self._clock = clock
        self._ours = ours
        self._watched = watched  # may be installed later
        self._namespaces = namespaces

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Run the checks, then wait for `stop`; raise PreflightError."""
        async with asyncio.TaskGroup() as tasks:
            checking = tasks.create_task(self._check(ready), name=self.name)
            await stop.wait()
            checking.cancel()

    async def _check(self, ready: Callable[[], None]) -> None:
        try:
            await self._until_settled()
        except UnauthorizedError as error:
            raise PreflightError(f"the API server rejected the credentials: {error}") from error
        ready()

    async def _until_settled(self) -> None:
        try:
            return await self._until_answered()
        except MissingRequirementError as error:
            missing, deadline = error, self._clock.monotonic() + SETTLE_FOR
        while (left := deadline - self._clock.monotonic()) > 0:
            log.warning("preflight_waiting", error=str(missing), seconds_left=round(left, 1))
            await self._clock.sleep(min(SETTLE_PAUSE, left))
            try:
                return await self._until_answered()
            except MissingRequirementError as error:
                missing = error
        if not isinstance(missing, NamespacesUnavailableError):
            raise missing
        log.warning("preflight_namespaces_unavailable", error=str(missing))
        return None

    async def _until_answered(self) -> None:
        deadline = self._clock.monotonic() + TRY_FOR
        last = "no response"
        for pause in doubling(FIRST_PAUSE, LONGEST_PAUSE):
            try:
                left = deadline - self._clock.monotonic()
                async with asyncio.timeout(max(left, LAST_TRY)):
                    return await self._require()
            except MAY_PASS as error:
                last = str(error)
            except TimeoutError:
                pass  # keep the last error, which is more specific
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise PreflightError(
                    f"cannot reach the API server after {TRY_FOR:g} s of trying: {last}"
                )
            log.warning("preflight_waiting", error=last, seconds_left=round(left, 1))
            await self._clock.sleep(min(pause, left))
        return None

    async def _require(self) -> None:
        for resource in self._ours:
            if not await self._mapper.is_served(resource):
                raise MissingRequirementError(
                    f"the API server does not serve {resource.group_kind}: install the "
                    "CustomResourceDefinitions, for example with "
                    "`kftrainer crds | kubectl apply -f -`"
                )
        installed = [each for each in self._watched if await self._mapper.is_served(each)]
        refusals = {
            resource.group_kind: refused
            for resource in (*self._ours, *installed)
            if (refused := await refusals_to_list(self._client, resource, self._namespaces))
        }
        if refusals:
            raise self._missing_permission(refusals)

    def _missing_permission(
        self, refusals: Mapping[str, Mapping[str, ForbiddenError]]
    ) -> MissingRequirementError:
        """Decide from the errors, by kind and namespace, whether any namespace can be served."""
        places = {place for refused in refusals.values() for place in refused}
        first = next(error for refused in refusals.values() for error in refused.values())
        text = f"no permission to read {', '.join(refusals)}: {first}"
        if "" in places or places.issuperset(self._namespaces):
            return MissingRequirementError(text)
        return NamespacesUnavailableError(
            f"these namespaces do not exist or cannot be read: {', '.join(sorted(places))}: {text}"
        )
