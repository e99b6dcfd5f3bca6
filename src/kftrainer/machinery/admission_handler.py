"""Answers the API server: reads a review, asks the validator of its path, and says so in time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog
from structlog.contextvars import bind_contextvars

from kftrainer.machinery.admission import AdmissionRequest, Validator, Verdict, refused
from kftrainer.machinery.admission_review import (
    MalformedReviewError,
    answer_within,
    decoded,
    encoded,
)
from kftrainer.machinery.bounded_labels import OTHER
from kftrainer.machinery.clock import Clock
from kftrainer.machinery.garbage import collect_recent
from kftrainer.machinery.metrics import Metrics, WebhookMetrics
from kftrainer.machinery.webserver import NOT_FOUND, Answer, Asked, BodyError, Handler

log = structlog.get_logger(__name__)

# Told of each refusal: the path that it was asked at, what was asked, and the answer.
Refused = Callable[[str, AdmissionRequest, Verdict], None]

JSON = "application/json"
SLOW = 1.0
# An API server writes 200 objects at a time unless told otherwise, and a validator takes about a
# millisecond: the last of so many waits half a second. Who comes after them would only wait until
# the API server gives up on them, so it is better told at once to come again.
MOST_IN_FLIGHT = 500
# What is sent as one byte may take twenty when it is decoded, and some microseconds to validate:
# those that are larger than nearly all wait for each other, and not all others for them. Between
# two of them there is a pause as long as the last one took, up to the longest.
LARGE = 32 * 1024
MOST_LARGE = 2
LONGEST_PAUSE = 0.25
# Reviews that are validated in one pass of the event loop, before anything else gets its turn.
MOST_IN_A_PASS = 4

NOT_POST = Answer(405, "Method Not Allowed\n", headers={"Allow": "POST"})
NOT_JSON = Answer(415, f"The body must be {JSON}, and not compressed.\n")
TOO_MANY = replace(
    refused(
        429,
        "TooManyRequests",
        "Too many requests are being looked at: try again.",
        rule="too-many-requests",
    ),
    details={"retryAfterSeconds": 1},
)
TOO_LATE = refused(
    504, "Timeout", "Looking at this request took too long: try again.", rule="timeout"
)
BROKEN = refused(
    500,
    "InternalError",
    "Looking at this request failed: the logs of the manager say why.",
    rule="internal-error",
)
OWN_RULES = (OTHER, *TOO_MANY.rules, *TOO_LATE.rules, *BROKEN.rules)


def _tell_nobody(_path: str, _request: AdmissionRequest, _verdict: Verdict) -> None:
    """For who does not count them."""


def admission(
    validators: Mapping[str, Validator],
    *,
    clock: Clock,
    metrics: Metrics,
    on_refusal: Refused = _tell_nobody,
    most_in_flight: int = MOST_IN_FLIGHT,
) -> Handler:
    """Handles AdmissionReviews by the path that they are sent to."""
    desks = {
        path: _Desk(path, validator, clock=clock, metrics=metrics, on_refusal=on_refusal)
        for path, validator in validators.items()
    }
    in_flight = _Load(most_in_flight, clock)

    async def handle(asked: Asked) -> Answer:
        desk = desks.get(asked.path)
        return NOT_FOUND if desk is None else await desk.answer(asked, in_flight)

    return handle


class _Load:
    """How many requests are being looked at, at all paths together."""

    def __init__(self, most: int, clock: Clock) -> None:
        self.most = most
        self.now = 0
        self._clock = clock
        self._large = asyncio.Semaphore(MOST_LARGE)
        self._next_large = 0.0  # the time at which the next large body may be decoded
        self._in_this_pass = 0

    @asynccontextmanager
    async def room_for(self, size: int, within: float) -> AsyncIterator[None]:
        """For the block, a body of this size may be decoded; raises BodyError if it never may."""
        if size <= LARGE:
            yield
            return
        try:
            async with asyncio.timeout(within):
                await self._large.acquire()
        except TimeoutError:
            raise _too_many_large() from None
        try:
            await self._pause(within)
            began = self._clock.monotonic()
            try:
                yield
            finally:
                collect_recent()
                self._worked(self._clock.monotonic() - began)
        finally:
            self._large.release()

    async def _pause(self, within: float) -> None:
        """Wait until the pause after the last large body is over."""
        pause = self._next_large - self._clock.monotonic()
        if pause > within:
            raise _too_many_large()
        if pause > 0:
            self._next_large += LONGEST_PAUSE  # of whoever comes next, until this one is done
            await self._clock.sleep(pause)

    def _worked(self, seconds: float) -> None:
        self._next_large = self._clock.monotonic() + min(seconds, LONGEST_PAUSE)

    async def turn(self) -> None:
        """Return when a review may be validated in this pass of the event loop."""
        # Those who came at the same time are counted before the first of them is looked at:
        # validators that wait for nothing would otherwise never be seen to be more than one.
        await self._clock.sleep(0)
        while self._in_this_pass >= MOST_IN_A_PASS:
            await self._clock.sleep(0)
        if not self._in_this_pass:
            asyncio.get_running_loop().call_soon(self._next_pass)
        self._in_this_pass += 1

    def _next_pass(self) -> None:
        self._in_this_pass = 0


class _Desk:
    """Where the requests for one path are answered."""

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

    async def answer(self, asked: Asked, load: _Load) -> Answer:
        began = self._clock.monotonic()
        self._metrics.in_flight(1)
        try:
            answer = await self._answer(asked, load, began)
        finally:
            self._metrics.in_flight(-1)
        self._metrics.answered(answer.status, self._clock.monotonic() - began)
        return answer

    async def _answer(self, asked: Asked, load: _Load, began: float) -> Answer:
        if asked.method != "POST":
            return NOT_POST
        if not _is_json(asked.headers):
            return NOT_JSON
        until = began + answer_within(dict(asked.query).get("timeout"))
        try:
            body = await asked.read_body()
            async with load.room_for(len(body), until - self._clock.monotonic()):
                request = decoded(body)
                del body
                return await self._looked_at(request, load, began, until)
        except BodyError as error:
            return error.answer
        except MalformedReviewError as error:
            return Answer(400, f"{error}\n")

    async def _looked_at(
        self, request: AdmissionRequest, load: _Load, began: float, until: float
    ) -> Answer:
        # Each request has a task, and with it a context, of its own: nothing to undo.
        bind_contextvars(
            webhook=self._path, uid=request.uid, namespace=request.namespace, name=request.name
        )
        verdict = await self._verdict(request, load, until)
        seconds = self._clock.monotonic() - began
        if seconds > SLOW:
            log.warning("admission.slow", seconds=round(seconds, 3), code=verdict.code)
        if not verdict.allowed:
            log.debug(
                "admission.denied",
                code=verdict.code,
                rules=list(verdict.rules),
                message=verdict.message,
            )
            self._on_refusal(self._path, request, verdict)
        self._metrics.judged(verdict.code)
        return Answer(200, self._bytes(request, verdict), content_type=JSON)

    def _bytes(self, request: AdmissionRequest, verdict: Verdict) -> bytes:
        try:
            return encoded(request.uid, verdict)
        except TypeError:  # a validator's details are its own
            log.exception("admission.not_encodable")
            self._metrics.panicked()
            return encoded(request.uid, BROKEN)

    async def _verdict(self, request: AdmissionRequest, load: _Load, until: float) -> Verdict:
        if load.now >= load.most:
            return TOO_MANY
        load.now += 1
        try:
            await load.turn()
            within = until - self._clock.monotonic()
            # A validator that waits for nothing is not stopped by a timeout, and may have stood in
            # line behind others of its kind.
            return TOO_LATE if within <= 0 else await self._judged(request, within)
        finally:
            load.now -= 1

    async def _judged(self, request: AdmissionRequest, within: float) -> Verdict:
        deadline = asyncio.timeout(within)
        try:
            async with deadline:
                return await self._validator(request)
        except Exception:
            if deadline.expired():
                return TOO_LATE
            log.exception("admission.failed")
            self._metrics.panicked()
            return BROKEN


def _too_many_large() -> BodyError:
    return BodyError(429, "Too many large bodies at a time: try again.")


def _is_json(headers: Mapping[str, str]) -> bool:
    """Whether the body says that it is JSON; what it says of its characters does not matter."""
    kind, _, _ = headers.get("Content-Type", "").partition(";")
    encoding = headers.get("Content-Encoding", "identity")
    return kind.strip().lower() == JSON and encoding.strip().lower() == "identity"
