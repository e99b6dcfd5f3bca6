"""HTTP handler for AdmissionReviews: decode, validate within the deadline, respond."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
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
    Validator,
    denied,
)
from kftrainer.machinery.webhook.client_limits import CURRENT_CLIENT
from kftrainer.machinery.webhook.review import (
    MalformedReviewError,
    answer_within,
    decoded,
    encoded,
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
Refused = Callable[[str, AdmissionRequest, AdmissionResponse], None]

JSON = "application/json"
SLOW = 1.0
# An API server sends up to 200 writes at a time by default, and a validator takes about a
# millisecond, so the last of 500 requests waits half a second. Requests beyond that would only wait
# until the API server times out, so they are rejected at once and can be retried.
MOST_IN_FLIGHT = 500
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
TOO_MANY = replace(
    denied(
        429,
        "TooManyRequests",
        "Too many requests are being looked at: try again.",
        rule="too-many-requests",
    ),
    details={"retryAfterSeconds": 1},
)
TOO_LATE = denied(
    504, "Timeout", "Looking at this request took too long: try again.", rule="timeout"
)
BROKEN = denied(
    500,
    "InternalError",
    "Looking at this request failed: the logs of the manager say why.",
    rule="internal-error",
)
OWN_RULES = (OTHER, *TOO_MANY.rules, *TOO_LATE.rules, *BROKEN.rules)


def _tell_nobody(_path: str, _request: AdmissionRequest, _verdict: AdmissionResponse) -> None:
    """Do nothing; the default if denials are not counted."""


def admission(
    validators: Mapping[str, Validator],
    *,
    clock: Clock,
    metrics: Metrics,
    on_refusal: Refused = _tell_nobody,
    most_in_flight: int = MOST_IN_FLIGHT,
) -> Handler:
    """Return a handler that routes AdmissionReviews to validators by path."""
    desks = {
        path: _Desk(path, validator, clock=clock, metrics=metrics, on_refusal=on_refusal)
        for path, validator in validators.items()
    }
    in_flight = _Load(most_in_flight, clock)

    async def handle(asked: HttpRequest) -> HttpResponse:
        desk = desks.get(asked.path)
        return NOT_FOUND if desk is None else await desk.answer(asked, in_flight)

    return handle


class _Load:
    """The requests in progress, on all paths together."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._now = 0
        self._clock = clock
        self._large = FairQueue(MOST_LARGE, MOST_LARGE_OF_A_CLIENT, MOST_LARGE_WAITING)
        self._next_large = 0.0  # the time at which the next large body may be decoded
        self._last_pause = 0.0  # seconds
        # The server limits the number of requests; each waits for one turn at a time.
        self._turns = FairQueue(1, 1, waiting=sys.maxsize)

    @contextmanager
    def counted(self) -> Iterator[bool]:
        """Count a request for the duration of the block; yield False if there are too many."""
        if self._now >= self._most:
            yield False
            return
        self._now += 1
        try:
            yield True
        finally:
            self._now -= 1

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
        # Yield first, so that simultaneous requests are all counted before one is processed:
        # validators without I/O would otherwise never appear to be concurrent.
        await self._clock.sleep(0)
        client = CURRENT_CLIENT.get()
        await self._turns.acquire(client)
        self._turns.release(client)


class _Desk:
    """Answers the requests for one path."""

    def __init__(
        self,
        path: str,
        validator: Validator,
        *,
        clock: Clock,
        metrics: Metrics,
        on_refusal: Refused,
    ) -> None:
        self._path = path
        self._on_refusal = on_refusal
        self._validator = validator
        self._clock = clock
        self._metrics: WebhookMetrics = metrics.for_webhook(path)

    async def answer(self, asked: HttpRequest, load: _Load) -> HttpResponse:
        began = self._clock.monotonic()
        self._metrics.in_flight(1)
        try:
            answer = await self._answer(asked, load, began)
        finally:
            self._metrics.in_flight(-1)
        self._metrics.responded(answer.status, self._clock.monotonic() - began)
        return answer

    async def _answer(self, asked: HttpRequest, load: _Load, began: float) -> HttpResponse:
        if asked.method != "POST":
            return NOT_POST
        if not _is_json(asked.headers):
            return NOT_JSON
        until = began + answer_within(dict(asked.query).get("timeout"))
        try:
            body = await asked.read_body()
            with load.counted() as is_counted:
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
                    verdict = await self._verdict(request, until) if is_counted else TOO_MANY
                    return self._answered(request, verdict, began)
        except BodyError as error:
            return error.answer
        except MalformedReviewError as error:
            return HttpResponse(400, f"{error}\n")

    async def _verdict(self, request: AdmissionRequest, until: float) -> AdmissionResponse:
        within = until - self._clock.monotonic()
        # A timeout does not interrupt a validator without I/O, and the request may already have
        # waited for others.
        return TOO_LATE if within <= 0 else await self._judged(request, within)

    def _answered(
        self, request: AdmissionRequest, verdict: AdmissionResponse, began: float
    ) -> HttpResponse:
        """Record the response and encode it."""
        seconds = self._clock.monotonic() - began
        if seconds > SLOW:
            log.warning("admission_slow", seconds=round(seconds, 3), code=verdict.code)
        if not verdict.allowed:
            log.debug(
                "admission_denied",
                code=verdict.code,
                rules=list(verdict.rules),
                message=verdict.message,
            )
            self._on_refusal(self._path, request, verdict)
        self._metrics.reviewed(verdict.code)
        return HttpResponse(200, self._bytes(request, verdict), content_type=JSON)

    def _bytes(self, request: AdmissionRequest, verdict: AdmissionResponse) -> bytes:
        try:
            return encoded(request.uid, verdict)
        except TypeError:  # details come from the validator and may not be serializable
            log.exception("admission_response_not_encodable")
            self._metrics.panicked()
            return encoded(request.uid, BROKEN)

    async def _judged(self, request: AdmissionRequest, within: float) -> AdmissionResponse:
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
