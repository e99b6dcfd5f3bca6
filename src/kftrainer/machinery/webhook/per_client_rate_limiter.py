"""Rate limits per client of a server on live reads from the API server during admission.

Limits on connections, bodies and timeouts are in `limits`.
"""

from contextvars import ContextVar

from kftrainer.kube.client.ratelimit import RateLimiter
from kftrainer.kube.clock import Clock
from kftrainer.machinery.lru import Lru

# The source address of the request in progress; empty outside of requests.
CURRENT_CLIENT: ContextVar[str] = ContextVar("client", default="")
MOST_CLIENTS = 1024
ALL_TOGETHER = 4  # times the rate of one client


class PerClientRateLimiter:
    """A rate limit per client of a server, and a larger one for all clients together.

    One client cannot use up the rate of another. The limiters of the clients that were idle longest
    are discarded.
    """

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        self._qps, self._burst, self._clock = qps, burst, clock
        self._all = RateLimiter(qps * ALL_TOGETHER, burst * ALL_TOGETHER, clock)
        self._limiters: Lru[str, RateLimiter] = Lru(MOST_CLIENTS)

    async def wait(self) -> None:
        """Return when one more request may be sent on behalf of the current client."""
        client = CURRENT_CLIENT.get()
        limiter = self._limiters.get(client)
        if limiter is None:
            limiter = RateLimiter(self._qps, self._burst, self._clock)
            self._limiters.put(client, limiter)
        await limiter.wait()
        await self._all.wait()
