"""Requests of the API server, from their bytes to the bytes of the answer."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import orjson
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from kftrainer.machinery.manager.clock import Clock, SystemClock
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.webhook.admission import (
    ALLOWED,
    AdmissionRequest,
    AdmissionResponse,
    Validator,
    denied,
)
from kftrainer.machinery.webhook.handler import MOST_LARGE_WAITING, admission
from kftrainer.machinery.webhook.per_client_rate_limiter import CURRENT_CLIENT
from kftrainer.machinery.webhook.server import BodyError, Handler, HttpRequest, HttpResponse
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.reviews import UID, review

PATH = "/validate-thing"
REQUESTS = "controller_runtime_webhook_requests"


async def allow(_: AdmissionRequest) -> AdmissionResponse:
    return ALLOWED


async def forbid(_: AdmissionRequest) -> AdmissionResponse:
    return denied(403, "Forbidden", "spec: Forbidden: no", rule="no")


async def break_down(_: AdmissionRequest) -> AdmissionResponse:
    raise ValueError("the secret of the house")


class ReviewServer:
    """A handler with one path, and what it has counted."""

    def __init__(self, validator: Validator, *, clock: Clock | None = None) -> None:
        self.metrics = Metrics()
        self.refused: list[tuple[str, AdmissionRequest, AdmissionResponse]] = []
        self.handle: Handler = admission(
            {PATH: validator},
            clock=clock or SystemClock(),
            metrics=self.metrics,
            on_denied=lambda *refusal: self.refused.append(refusal),
        )

    async def post(self, body: Any = None, **options: Any) -> HttpResponse:
        return await self.send(orjson.dumps(body or review()), **options)

    async def send(self, body: bytes, *, client: str = "", **options: Any) -> HttpResponse:
        CURRENT_CLIENT.set(client)
        return await self.handle(question(body, **options))

    async def response(self, **options: Any) -> Any:
        answer = await self.post(**options)
        assert answer.status == 200
        assert answer.content_type == "application/json"
        assert isinstance(answer.body, bytes)
        parsed = orjson.loads(answer.body)
        assert (parsed["apiVersion"], parsed["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert parsed["response"]["uid"] == UID
        return parsed["response"]

    def count(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def question(  # noqa: PLR0913  as many as a request has parts
    body: bytes,
    *,
    method: str = "POST",
    path: str = PATH,
    timeout: str | None = None,
    content_type: str = "application/json",
    encoding: str = "identity",
    read: Callable[[], Awaitable[bytes]] | None = None,
) -> HttpRequest:
    async def at_once() -> bytes:
        return body

    query = [] if timeout is None else [("timeout", timeout)]
    headers = {"Content-Type": content_type, "Content-Encoding": encoding}
    return HttpRequest(method, path, query, headers, read or at_once)


async def test_review_gets_a_review_response() -> None:
    response = await ReviewServer(allow).response()
    assert response == {"uid": UID, "allowed": True, "status": {"code": 200}}


async def test_denial_is_a_regular_response_and_logged_at_debug() -> None:
    with capture_logs(processors=[merge_contextvars]) as logs:
        response = await ReviewServer(forbid, clock=FakeClock()).response()
    assert response["allowed"] is False
    assert response["status"]["message"] == "spec: Forbidden: no"
    assert logs == [
        {
            "event": "admission_denied",
            "log_level": "debug",
            "webhook": PATH,
            "uid": UID,
            "namespace": "default",
            "name": "job",
            "code": 403,
            "rules": ["no"],
            "message": "spec: Forbidden: no",
        }
    ]


async def test_denial_callback_is_called_for_each_denial() -> None:
    review_server = ReviewServer(forbid)
    for dry_run in (False, True):
        await review_server.post(review(dryRun=dry_run))
    refusals = [
        (path, request.dry_run, response.rules) for path, request, response in review_server.refused
    ]
    assert refusals == [(PATH, False, ("no",)), (PATH, True, ("no",))]
    kind = ReviewServer(allow)
    await kind.post()
    await kind.send(b"what?")
    assert kind.refused == []


async def test_denial_callback_is_called_for_denials_without_object() -> None:
    broken, late = ReviewServer(break_down), ReviewServer(allow)
    with capture_logs():
        await broken.post()
    await late.post(timeout="1ns")
    rules = [
        response.rules
        for review_server in (broken, late)
        for _, _, response in review_server.refused
    ]
    assert rules == [("internal-error",), ("timeout",)]


async def test_each_path_has_its_validator() -> None:
    handle = admission({"/a": allow, "/b": forbid}, clock=SystemClock(), metrics=Metrics())
    body = orjson.dumps(review())
    answers = [await handle(question(body, path=path)) for path in ("/a", "/b", "/c")]
    assert [answer.status for answer in answers] == [200, 200, 404]
    assert [b'"allowed":true' in bytes(answer.body) for answer in answers[:2]] == [True, False]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"method": "GET"}, 405),
        ({"method": "PUT"}, 405),
        ({"path": f"{PATH}/"}, 404),
        ({"content_type": "application/yaml"}, 415),
        ({"content_type": ""}, 415),
        ({"encoding": "gzip"}, 415),
        ({"content_type": "Application/JSON; charset=utf-8"}, 200),
        ({"body": {"kind": "Pod"}}, 400),
        ({"body": review(uid="")}, 400),
    ],
)
async def test_invalid_admission_request_gets_an_http_error_status(
    options: dict[str, Any], status: int
) -> None:
    assert (await ReviewServer(allow).post(**options)).status == status


async def test_body_read_error_determines_the_response_status() -> None:
    async def never() -> bytes:
        raise BodyError(408, "The body was not received in time.")

    review_server = ReviewServer(allow)
    answer = await review_server.post(read=never)
    assert (answer.status, answer.body) == (408, "The body was not received in time.\n")
    assert review_server.count(f"{REQUESTS}_total", webhook=PATH, code="408") == 1


async def test_failing_validator_rejects_without_exposing_secrets() -> None:
    review_server = ReviewServer(break_down)
    with capture_logs() as logs:
        response = await review_server.response()
    assert (response["allowed"], response["status"]["code"]) == (False, 500)
    assert response["status"]["reason"] == "InternalError"
    assert "secret" not in str(response)
    assert [(entry["event"], entry["exc_info"]) for entry in logs if "exc_info" in entry] == [
        ("admission_failed", True)
    ]
    assert review_server.count("controller_runtime_webhook_panics_total") == 1


async def test_a_validator_whose_own_waiting_timed_out_has_broken() -> None:
    async def wait_forever(_: AdmissionRequest) -> AdmissionResponse:
        raise TimeoutError

    assert (await ReviewServer(wait_forever).response())["status"]["code"] == 500


async def test_details_that_are_not_valid_json_count_as_a_failure() -> None:
    async def return_too_much(_: AdmissionRequest) -> AdmissionResponse:
        return AdmissionResponse(allowed=False, code=403, details={"number": 2**70})

    review_server = ReviewServer(return_too_much)
    assert (await review_server.response())["status"]["code"] == 500
    assert review_server.count("controller_runtime_webhook_panics_total") == 1


async def test_response_is_sent_before_the_client_timeout() -> None:
    async def never(_: AdmissionRequest) -> AdmissionResponse:
        await asyncio.Event().wait()
        return ALLOWED

    review_server = ReviewServer(never)
    async with asyncio.timeout(10):
        response = await review_server.response(timeout="200ms")
    assert (response["allowed"], response["status"]["code"]) == (False, 504)
    assert response["status"]["reason"] == "Timeout"
    assert review_server.count("controller_runtime_webhook_panics_total") == 0


async def test_time_to_read_the_body_counts() -> None:
    clock, waited = FakeClock(), []

    async def slowly() -> bytes:
        await clock.sleep(9.45)
        return orjson.dumps(review())

    async def never(_: AdmissionRequest) -> AdmissionResponse:
        waited.append(asyncio.get_running_loop().time())
        await asyncio.Event().wait()
        return ALLOWED

    async with asyncio.timeout(9), asyncio.TaskGroup() as group:
        pending = group.create_task(
            ReviewServer(never, clock=clock).response(read=slowly, timeout="10s")
        )
        await clock.advance(9.45)
        response = await pending
    assert waited
    assert response["status"]["code"] == 504  # after 50 ms, not after 9.5 s


async def test_request_queued_beyond_its_deadline_is_not_processed() -> None:
    class WorkingHours(SystemClock):
        """Passes by work alone, during which nothing else happens."""

        worked = 0.0

        def monotonic(self) -> float:
            return self.worked

    clock, seen = WorkingHours(), []

    async def work_hard(request: AdmissionRequest) -> AdmissionResponse:
        seen.append(request.uid)
        clock.worked += 4
        return ALLOWED

    review_server = ReviewServer(work_hard, clock=clock)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(review_server.response(timeout="10s")) for _ in range(5)]
    assert [task.result()["status"]["code"] for task in tasks] == [200, 200, 200, 504, 504]
    assert len(seen) == 3


def large(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body) + b" " * 300_000


async def test_large_bodies_are_decoded_two_at_a_time_and_one_of_each_client() -> None:
    gate, begun = asyncio.Event(), []

    async def wait(request: AdmissionRequest) -> AdmissionResponse:
        begun.append(request.name)
        await gate.wait()
        return ALLOWED

    review_server = ReviewServer(wait)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                review_server.send(large(review(name=name)), client=name[0], timeout="30s")
            )
            for name in ("a1", "a2", "b", "c")
        ]
        small = group.create_task(review_server.post(review(name="small")))
        await at_rest()
        assert sorted(begun) == ["a1", "b", "small"]
        gate.set()
    assert sorted(begun) == ["a1", "a2", "b", "c", "small"]
    assert all(task.result().status == 200 for task in (*tasks, small))


async def test_flood_of_large_bodies_does_not_delay_those_of_another_client() -> None:
    clock, begun = WorkClock(), list[str]()

    async def work_hard(request: AdmissionRequest) -> AdmissionResponse:
        begun.append(request.name)
        clock.work(0.05)
        return ALLOWED

    review_server = ReviewServer(work_hard, clock=clock)

    async def send(name: str) -> HttpResponse:
        return await review_server.send(large(review(name=name)), client=name, timeout="30s")

    async with asyncio.TaskGroup() as group:
        flood = [group.create_task(send("stranger")) for _ in range(MOST_LARGE_WAITING)]
        await clock.advance(0.2)
        before = len(begun)
        delayed = [group.create_task(send("victim")) for _ in range(5)]
        await clock.advance(60)
    assert all(task.result().status == 200 for task in (*flood, *delayed))
    # The other client's review that has started, and then one of each client in turn.
    last = len(begun) - begun[::-1].index("victim")
    assert begun[before:last].count("stranger") <= len(delayed) + 1


async def test_client_with_too_many_large_bodies_waiting_is_rejected_alone() -> None:
    gate = asyncio.Event()

    async def wait(_: AdmissionRequest) -> AdmissionResponse:
        await gate.wait()
        return ALLOWED

    review_server = ReviewServer(wait)
    body = large(review())
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for _ in range(MOST_LARGE_WAITING + 1):
            group.create_task(review_server.send(body, client="a", timeout="30s"))
        await at_rest()
        late = await review_server.send(body, client="a")
        other = group.create_task(review_server.send(body, client="b"))
        await at_rest()
        assert (late.status, late.body) == (429, "Too many large bodies at a time: try again.\n")
        group.create_task(opened(gate))
    assert other.result().status == 200


async def opened(gate: asyncio.Event) -> None:
    gate.set()


async def test_large_body_waiting_too_long_gets_retry_after() -> None:
    gate = asyncio.Event()

    async def wait(_: AdmissionRequest) -> AdmissionResponse:
        await gate.wait()
        return ALLOWED

    review_server = ReviewServer(wait)
    body = large(review())
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        first = [group.create_task(review_server.send(body, client=each)) for each in "ab"]
        await at_rest()
        late = await review_server.send(body, timeout="100ms")
        assert (late.status, late.body) == (429, "Too many large bodies at a time: try again.\n")
        gate.set()
    assert all(task.result().status == 200 for task in first)
    assert (await review_server.send(body)).status == 200


class WorkClock(FakeClock):
    """A fake clock on which work takes time, too."""

    def work(self, seconds: float) -> None:
        self._time += seconds


async def test_between_large_bodies_there_is_a_pause_as_long_as_the_work() -> None:
    clock, begun = WorkClock(), list[float]()

    async def work_hard(_: AdmissionRequest) -> AdmissionResponse:
        begun.append(clock.monotonic())
        clock.work(0.1)
        return ALLOWED

    review_server = ReviewServer(work_hard, clock=clock)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(review_server.send(large(review()))) for _ in range(4)]
        await clock.advance(5)
    assert all(task.result().status == 200 for task in tasks)
    pauses = [after - before for before, after in pairwise(begun)]
    assert all(pause >= 0.199 for pause in pauses), pauses


async def test_small_body_does_not_wait_for_the_pauses_between_large_ones() -> None:
    clock, small = WorkClock(), list[float]()

    async def work_hard(request: AdmissionRequest) -> AdmissionResponse:
        if request.name == "small":
            small.append(clock.monotonic())
        else:
            clock.work(0.05)
        return ALLOWED

    review_server = ReviewServer(work_hard, clock=clock)
    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(review_server.send(large(review())))
        await clock.advance(0.3)
        started_at = clock.monotonic()
        group.create_task(review_server.post(review(name="small")))
        await clock.advance(30)
    assert small[0] - started_at <= 0.1


async def test_large_body_that_waits_too_long_for_a_pause_is_rejected_with_retry() -> None:
    clock = WorkClock()

    async def work_hard(_: AdmissionRequest) -> AdmissionResponse:
        clock.work(0.2)
        return ALLOWED

    review_server = ReviewServer(work_hard, clock=clock)
    assert (await review_server.send(large(review()))).status == 200
    late = await review_server.send(large(review()), timeout="100ms")
    assert (late.status, late.body) == (429, "Too many large bodies at a time: try again.\n")


class Passes:
    """Counts how often something is done in each pass of the event loop."""

    def __init__(self) -> None:
        self.counts = [0]
        self.total = 0

    def count(self) -> None:
        self.counts[-1] += 1
        self.total += 1

    async def until(self, total: int) -> None:
        while self.total < total:
            self.counts.append(0)
            await asyncio.sleep(0)


async def test_one_review_is_validated_in_each_pass_of_the_event_loop() -> None:
    passes = Passes()

    async def count(_: AdmissionRequest) -> AdmissionResponse:
        passes.count()
        return ALLOWED

    review_server = ReviewServer(count)
    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(review_server.response())
        group.create_task(passes.until(100))
    assert (max(passes.counts), passes.total) == (1, 100)


async def test_one_waiting_review_continues_per_event_loop_iteration() -> None:
    passes, gate, arrived = Passes(), asyncio.Event(), 0

    async def read_something(request: AdmissionRequest) -> AdmissionResponse:
        nonlocal arrived
        arrived += 1
        await gate.wait()
        await request.turn()
        passes.count()
        return ALLOWED

    review_server = ReviewServer(read_something)
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(review_server.response())
        await at_rest()
        assert arrived == 20
        gate.set()
        group.create_task(passes.until(20))
    assert (max(passes.counts), passes.total) == (1, 20)


async def test_reviews_of_a_client_that_wait_for_a_turn_do_not_delay_those_of_another() -> None:
    order = list[str]()

    async def note(request: AdmissionRequest) -> AdmissionResponse:
        order.append(request.name)
        return ALLOWED

    review_server = ReviewServer(note)
    async with asyncio.TaskGroup() as group:
        for name in (*["stranger"] * 50, "victim"):
            body = orjson.dumps(review(name=name))
            group.create_task(review_server.send(body, client=name))
    assert order.index("victim") <= 2


async def test_slow_request_is_logged() -> None:
    clock = FakeClock()

    async def think(_: AdmissionRequest) -> AdmissionResponse:
        await clock.sleep(1.5)
        return ALLOWED

    review_server = ReviewServer(think, clock=clock)
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            group.create_task(review_server.response())
            await clock.advance(1.5)
    assert [(entry["event"], entry["seconds"]) for entry in logs] == [("admission_slow", 1.5)]


async def test_requests_are_counted_by_path_and_status() -> None:
    review_server = ReviewServer(forbid)
    await review_server.response()
    await review_server.post(method="GET")
    await review_server.post(path="/made/up")
    assert review_server.count(f"{REQUESTS}_total", webhook=PATH, code="200") == 1
    assert review_server.count(f"{REQUESTS}_total", webhook=PATH, code="405") == 1
    assert review_server.count(f"{REQUESTS}_in_flight", webhook=PATH) == 0
    assert (
        review_server.count("controller_runtime_webhook_latency_seconds_count", webhook=PATH) == 2
    )
    assert review_server.count("machinery_webhook_verdicts_total", webhook=PATH, code="403") == 1
    assert b"/made/up" not in review_server.metrics.render()


async def test_requests_in_flight_are_counted_while_in_progress() -> None:
    gate = asyncio.Event()

    async def wait(_: AdmissionRequest) -> AdmissionResponse:
        await gate.wait()
        return ALLOWED

    review_server = ReviewServer(wait)
    async with asyncio.TaskGroup() as group:
        group.create_task(review_server.response())
        await at_rest()
        assert review_server.count(f"{REQUESTS}_in_flight", webhook=PATH) == 1
        gate.set()
    assert review_server.count(f"{REQUESTS}_in_flight", webhook=PATH) == 0
