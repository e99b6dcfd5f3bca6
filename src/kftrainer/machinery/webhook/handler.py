"""HTTP handler for AdmissionReviews: decode, validate within the deadline, respond."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog
from structlog.contextvars import bind_contextvars

from kftrainer.machinery.garbage_collection import collect_recent
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.metrics.bounded_labels import OTHER
from kftrainer.machinery.metrics.registry import Metrics, WebhookMetrics
from kftrainer.machinery.queue.fair_queue import FairQueue, QueueFullError
from kftrainer.machinery.webhook.admission import (
    AdmissionRequest,
    AdmissionResponse,
    Defaulter,
    Validator,
    denied,
)
from kftrainer.machinery.webhook.per_client_rate_limiter import CURRENT_CLIENT
from kftrainer.machinery.webhook.review import (
    MalformedReviewError,
    decoded,
    encoded,
    response_timeout,
)
from kftrainer.machinery.webhook.server import (
    NOT_FOUND,
    BodyError,
    Handler,
    HttpRequest,
    HttpResponse,
)

log = structlog.get_logger(__name__)

# Called for each denial with the path, the request and the response.
OnDenied = Callable[[str, AdmissionRequest, AdmissionResponse], None]

JSON = "application/json"
SLOW = 1.0
# One byte of a body may take twenty in memory, and some microseconds to validate. Unusually large
# reviews wait for each other, in turn by client; smaller ones do not wait for them. After a large
# review there is a pause as long as its processing took, up to LONGEST_PAUSE.
LARGE = 32 * 1024
MOST_LARGE = 2
MOST_LARGE_OF_A_CLIENT = 1
# About the number that can be answered within the API server's timeout.
MOST_LARGE_WAITING = 100  # per client
LONGEST_PAUSE = 0.25

NOT_POST = HttpResponse(405, "Method Not Allowed\n", headers={"Allow": "POST"})
NOT_JSON = HttpResponse(415, f"The body must be {JSON}, and not compressed.\n")
TOO_LATE = denied(
    504, "Timeout", "Reviewing this request took too long: try again.", rule="timeout"
)
BROKEN = denied(
    500,
    "InternalError",
    "Reviewing this request failed: see the logs of the manager.",
    rule="internal-error",
)
OWN_RULES = (OTHER, *TOO_LATE.rules, *BROKEN.rules)


def _ignore(_path: str, _request: AdmissionRequest, _response: AdmissionResponse) -> None:
    """Do nothing; the default if denials are not counted."""


def admission(
    validators: Mapping[str, Validator | Defaulter],
    *,
    clock: Clock,
    metrics: Metrics,
    on_denied: OnDenied = _ignore,
) -> Handler:
    """Return a handler that routes AdmissionReviews to validators and defaulters by path."""
    webhooks = {
        path: _Webhook(path, validator, clock=clock, metrics=metrics, on_denied=on_denied)
        for path, validator in validators.items()
    }
    in_flight = _Load(clock)

    async def handle(http_request: HttpRequest) -> HttpResponse:
        webhook = webhooks.get(http_request.path)
        return NOT_FOUND if webhook is None else await webhook.respond(http_request, in_flight)

    return handle


class _Load:
    """Turns of the requests in progress, on all paths together; the server limits their number."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._large = FairQueue(MOST_LARGE, MOST_LARGE_OF_A_CLIENT, MOST_LARGE_WAITING)
        self._next_large = 0.0  # the time at which the next large body may be decoded
        self._last_pause = 0.0  # seconds
        # The server limits the number of requests; each waits for one turn at a time.
        self._turns = FairQueue(1, 1, waiting=sys.maxsize)

    @asynccontextmanager
    async def room_for(self, size: int, within: float) -> AsyncIterator[None]:
        """Wait until a body of this size may be decoded; raise BodyError if that takes too long.

        The block starts with a turn.
        """
        if size <= LARGE:
            await self.turn()
            yield
            return
        client = CURRENT_CLIENT.get()
        try:
            async with asyncio.timeout(within):
                await self._large.acquire(client)
        except (TimeoutError, QueueFullError):
            raise _too_many_large() from None
        try:
            await self._pause(within)
            await self.turn()
            began = self._clock.monotonic()
            try:
                yield
            finally:
                collect_recent()
                self._worked(self._clock.monotonic() - began)
        finally:
            self._large.release(client)

    async def _pause(self, within: float) -> None:
        """Wait for the end of the pause after the last large body."""
        pause = self._next_large - self._clock.monotonic()
        if pause > within:
            raise _too_many_large()
        if pause > 0:
            # Until this request is done, schedule the next one as if this one took as long as the
            # last one and were followed by a pause.
            self._next_large += 2 * self._last_pause
            await self._clock.sleep(pause)

    def _worked(self, seconds: float) -> None:
        self._last_pause = min(seconds, LONGEST_PAUSE)
        self._next_large = self._clock.monotonic() + self._last_pause

    async def turn(self) -> None:
        """Return in a pass of the event loop in which no other review is processed.

        Clients take turns, so a review waits for at most one review of each other client. The
        duration of a pass is bounded by the processing time of one review.
        """
        # Yield first, so that simultaneous requests are all queued before one is processed.
        await self._clock.sleep(0)
        client = CURRENT_CLIENT.get()
        await self._turns.acquire(client)
        self._turns.release(client)


class _Webhook:
    """Handles the requests for one path."""

    def __init__(
        self,
        path: str,
        validator: Validator | Defaulter,
        *,
        clock: Clock,
        metrics: Metrics,
        on_denied: OnDenied,
    ) -> None:
        self._path = path
        self._on_denied = on_denied
        self._validator = validator
        self._clock = clock
        self._metrics: WebhookMetrics = metrics.for_webhook(path)

    async def respond(self, http_request: HttpRequest, load: _Load) -> HttpResponse:
        began = self._clock.monotonic()
        self._metrics.in_flight(1)
        try:
            response = await self._respond(http_request, load, began)
        finally:
            self._metrics.in_flight(-1)
        self._metrics.responded(response.status, self._clock.monotonic() - began)
        return response

    async def _respond(self, http_request: HttpRequest, load: _Load, began: float) -> HttpResponse:
        if http_request.method != "POST":
            return NOT_POST
        if not _is_json(http_request.headers):
            return NOT_JSON
        until = began + response_timeout(dict(http_request.query).get("timeout"))
        try:
            body = await http_request.read_body()
            async with load.room_for(len(body), until - self._clock.monotonic()):
                request = replace(decoded(body), turn=load.turn)
                del body
                # Each request has its own task and context, so this need not be undone.
                bind_contextvars(
                    webhook=self._path,
                    uid=request.uid,
                    namespace=request.namespace,
                    name=request.name,
                )
                response = await self._review(request, until)
                return self._encode(request, response, began)
        except BodyError as error:
            return error.response
        except MalformedReviewError as error:
            return HttpResponse(400, f"{error}\n")

    async def _review(self, request: AdmissionRequest, until: float) -> AdmissionResponse:
        within = until - self._clock.monotonic()
        # A timeout does not interrupt a validator without I/O, and the request may already have
        # waited for others.
        return TOO_LATE if within <= 0 else await self._validate(request, within)

    def _encode(
        self, request: AdmissionRequest, response: AdmissionResponse, began: float
    ) -> HttpResponse:
        """Record the response and encode it."""
        seconds = self._clock.monotonic() - began
        if seconds > SLOW:
            log.warning("admission_slow", seconds=round(seconds, 3), code=response.code)
        if not response.allowed:
            log.debug(
                "admission_denied",
                code=response.code,
                rules=list(response.rules),
                message=response.message,
            )
            self._on_denied(self._path, request, response)
        self._metrics.reviewed(response.code)
        return HttpResponse(200, self._bytes(request, response), content_type=JSON)

    def _bytes(self, request: AdmissionRequest, response: AdmissionResponse) -> bytes:
        try:
            return encoded(request.uid, response)
        except TypeError:  # details come from the validator and may not be serializable
            log.exception("admission_response_not_encodable")
            self._metrics.panicked()
            return encoded(request.uid, BROKEN)

    async def _validate(self, request: AdmissionRequest, within: float) -> AdmissionResponse:
        deadline = asyncio.timeout(within)
        try:
            async with deadline:
                return await self._validator(request)
        except Exception:
            if deadline.expired():
                return TOO_LATE
            log.exception("admission_failed")
            self._metrics.panicked()
            return BROKEN


def _too_many_large() -> BodyError:
    return BodyError(429, "Too many large bodies at a time: try again.")


def _is_json(headers: Mapping[str, str]) -> bool:
    """Return whether the body is declared as uncompressed JSON; the charset is ignored."""
    kind, _, _ = headers.get("Content-Type", "").partition(";")
    encoding = headers.get("Content-Encoding", "identity")
    return kind.strip().lower() == JSON and encoding.strip().lower() == "identity"
