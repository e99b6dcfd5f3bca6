"""Leader election: of several processes, the one that holds a Lease is the leader.

A process that has lost the lease writes nothing. Three mechanisms ensure that:

- `is_leading` becomes false at the renew deadline, before another candidate may take over. Clients
  created with it as their `write_guard` (see `kube.client.write_guard`) then refuse to send writes,
  also in the middle of a reconcile. The client of the manager's controllers is such a client.
- `hold` raises at that time.
- A thread ends the process if it still runs soon after, as it does when the event loop is blocked
  or a task ignores its cancellation.
"""

import asyncio
from functools import partial
from random import Random, SystemRandom

import structlog

from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.client.errors import AlreadyExistsError, ConflictError, KubeError
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.manager.lease import (
    LEASES,
    Observation,
    Wait,
    claimed,
    decide,
    new_lease,
    observe,
    released,
)
from kftrainer.machinery.manager.pause import pause
from kftrainer.machinery.manager.watchdog import Watchdog, end_process
from kftrainer.machinery.metrics.registry import Metrics

log = structlog.get_logger(__name__)

JITTER = 1.2  # candidates wait between 1 and 2.2 retry periods
SHORTEST_ATTEMPT = 1.0


class LeaseLostError(Exception):
    """This process is no longer the leader and must not write."""


class LeaderElector:
    """One candidate for one Lease.

    Use a separate client on the lane `lease`, so that its requests do not wait behind others. Call
    `release` when everything that only the leader runs has ended, also after the lease was lost:
    until then the process is ended when the lease expires.
    """

    def __init__(  # noqa: PLR0913  the options of client-go
        self,
        client: Client,
        *,
        clock: Clock,
        lease_name: str,
        lease_namespace: str,
        identity: str,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        metrics: Metrics | None = None,
        rng: Random | None = None,
    ) -> None:
        if not lease_duration > renew_deadline > JITTER * retry_period > 0:
            raise ValueError(
                "the lease duration must be longer than the renew deadline, and the renew deadline "
                f"longer than {JITTER} retry periods"
            )
        self._client = client
        self._clock = clock
        self._key = ObjectKey(lease_namespace, lease_name)
        self._me = identity
        self._duration = lease_duration
        self._deadline = renew_deadline
        self._retry = retry_period
        self._metrics = metrics
        self._rng = rng if rng is not None else SystemRandom()
        self._attempt_timeout = max(SHORTEST_ATTEMPT, renew_deadline / 2)
        self._seen: Observation | None = None
        self._renewed_at: float | None = None
        self._may_hold = False  # a claim was sent or granted
        self._watchdog = Watchdog(
            clock,
            (renew_deadline + lease_duration) / 2,
            partial(end_process, f"the lease {self._key} was not renewed in time"),
        )
        self._report(leading=False)

    @property
    def is_leading(self) -> bool:
        """Whether this process is the leader now; check right before each write."""
        return self._left() > 0

    async def acquire(self) -> None:
        """Return when this process is the leader."""
        log.info("lease_waiting", lease=str(self._key), identity=self._me)
        while not await self._attempt(self._attempt_timeout):
            await self._clock.sleep(self._retry * (1 + JITTER * self._rng.random()))
        log.info("lease_acquired", lease=str(self._key), identity=self._me)
        self._report(leading=True)

    async def hold(self, stop: asyncio.Event) -> None:
        """Renew until `stop` is set; raise LeaseLostError when the lease is lost."""
        while True:
            if await pause(self._clock, min(self._retry, self._left()), stop=stop):
                return
            if self.is_leading:
                await self._attempt(min(self._attempt_timeout, self._left()))
            if not self.is_leading:
                self._stop_leading()
                self._may_hold = False  # the lease is no longer ours to release
                raise LeaseLostError(f"the lease {self._key} was lost")

    async def release(self) -> None:
        """Release the lease if this process holds it, so that another can lead at once."""
        self._stop_leading()
        self._watchdog.stop()
        if not self._may_hold:
            return
        try:
            async with asyncio.timeout(self._attempt_timeout):
                await self._release()
        except (KubeError, TimeoutError) as error:  # the lease expires by itself, only later
            log.warning("lease_not_released", lease=str(self._key), error=repr(error))

    def _left(self) -> float:
        """Return the seconds until this process stops leading."""
        if self._renewed_at is None:
            return 0.0
        return max(0.0, self._renewed_at + self._deadline - self._clock.monotonic())

    def _stop_leading(self) -> None:
        self._renewed_at = None
        self._report(leading=False)

    def _report(self, *, leading: bool) -> None:
        if self._metrics is not None:
            self._metrics.leader(self._key.name, leading)

    async def _attempt(self, within: float) -> bool:
        """Try once to acquire or renew the lease; return False on any failure."""
        try:
            async with asyncio.timeout(within):
                return await self._acquire_or_renew()
        except (ConflictError, AlreadyExistsError):
            log.debug("lease_conflict", lease=str(self._key))
        except (KubeError, TimeoutError) as error:
            log.warning("lease_attempt_failed", lease=str(self._key), error=repr(error))
        except Exception:  # the lease keeps expiring: no error may stop the renewals
            log.exception("lease_attempt_failed", lease=str(self._key))
        return False

    async def _acquire_or_renew(self) -> bool:
        if self.is_leading and self._seen is not None:
            try:
                await self._claim(self._seen)
            except ConflictError:  # possibly an earlier renewal of ours whose response was lost
                log.debug("lease_renewal_conflict", lease=str(self._key))
            else:
                return True
        found = await get_or_none(self._client, LEASES, self._key, kind_may_be_missing=True)
        if found is None:
            await self._create()
            return True
        # The time after the read, not before: the holder's duration starts when it wrote the lease.
        self._seen = observe(self._seen, found, self._clock.monotonic())
        if isinstance(decide(self._seen, self._me, self._clock.monotonic()), Wait):
            self._may_hold = False
            self._renewed_at = None  # another candidate holds it: do not wait for the deadline
            return False
        await self._claim(self._seen)
        return True

    async def _create(self) -> None:
        sent_at = self._clock.monotonic()
        lease = new_lease(self._key, self._me, self._duration, self._clock.now())
        self._may_hold = True
        self._granted(await self._client.create(LEASES, lease), sent_at)

    async def _claim(self, seen: Observation) -> None:
        sent_at = self._clock.monotonic()
        lease = claimed(seen, self._me, self._duration, self._clock.now())
        self._may_hold = True
        self._granted(await self._client.update(LEASES, lease), sent_at)

    def _granted(self, lease: Manifest, sent_at: float) -> None:
        # The time before the request: other candidates count from when they read the lease, which
        # is later.
        self._seen = observe(None, lease, sent_at)
        self._renewed_at = sent_at
        self._watchdog.feed(sent_at)

    async def _release(self) -> None:
        seen = observe(self._seen, await self._client.get(LEASES, self._key), 0.0)
        if seen.record.holder == self._me:
            await self._client.update(LEASES, released(seen, self._clock.now()))
            log.info("lease_released", lease=str(self._key))
        self._may_hold = False
