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


class Desk:
    """A handler with one path, and what it has counted."""

    def __init__(
        self, validator: Validator, *, clock: Clock | None = None, most_in_flight: int = 500
    ) -> None:
        self.metrics = Metrics()
        self.refused: list[tuple[str, AdmissionRequest, AdmissionResponse]] = []
        self.handle: Handler = admission(
            {PATH: validator},
            clock=clock or SystemClock(),
            metrics=self.metrics,
            on_denied=lambda *refusal: self.refused.append(refusal),
            most_in_flight=most_in_flight,
        )

    async def ask(self, body: Any = None, **asked: Any) -> HttpResponse:
        return await self.send(orjson.dumps(body or review()), **asked)

    async def send(self, body: bytes, *, client: str = "", **asked: Any) -> HttpResponse:
        CURRENT_CLIENT.set(client)
        return await self.handle(question(body, **asked))

    async def response(self, **asked: Any) -> Any:
        answer = await self.ask(**asked)
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
    response = await Desk(allow).response()
    assert response == {"uid": UID, "allowed": True, "status": {"code": 200}}


async def test_denial_is_a_regular_response_and_logged_at_debug() -> None:
    with capture_logs(processors=[merge_contextvars]) as logs:
        response = await Desk(forbid, clock=FakeClock()).response()
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
    desk = Desk(forbid)
    for dry_run in (False, True):
        await desk.ask(review(dryRun=dry_run))
    told = [(path, request.dry_run, verdict.rules) for path, request, verdict in desk.refused]
    assert told == [(PATH, False, ("no",)), (PATH, True, ("no",))]
    kind = Desk(allow)
    await kind.ask()
    await kind.send(b"what?")
    assert kind.refused == []


async def test_denial_callback_is_called_for_denials_without_object() -> None:
    broken, full, late = Desk(break_down), Desk(allow, most_in_flight=0), Desk(allow)
    with capture_logs():
        await broken.ask()
    await full.ask()
    await late.ask(timeout="1ns")
    rules = [verdict.rules for desk in (broken, full, late) for _, _, verdict in desk.refused]
    assert rules == [("internal-error",), ("too-many-requests",), ("timeout",)]


async def test_each_path_has_its_validator() -> None:
    handle = admission({"/a": allow, "/b": forbid}, clock=SystemClock(), metrics=Metrics())
    body = orjson.dumps(review())
    answers = [await handle(question(body, path=path)) for path in ("/a", "/b", "/c")]
    assert [answer.status for answer in answers] == [200, 200, 404]
    assert [b'"allowed":true' in bytes(answer.body) for answer in answers[:2]] == [True, False]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "status"),
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
    asked: dict[str, Any], status: int
) -> None:
    assert (await Desk(allow).ask(**asked)).status == status


async def test_body_read_error_determines_the_response_status() -> None:
    async def never() -> bytes:
        raise BodyError(408, "The body was not received in time.")

    desk = Desk(allow)
    answer = await desk.ask(read=never)
    assert (answer.status, answer.body) == (408, "The body was not received in time.\n")
    assert desk.count(f"{REQUESTS}_total", webhook=PATH, code="408") == 1


async def test_a_validator_that_breaks_refuses_without_telling_its_secrets() -> None:
    desk = Desk(break_down)
    with capture_logs() as logs:
        response = await desk.response()
    assert (response["allowed"], response["status"]["code"]) == (False, 500)
    assert response["status"]["reason"] == "InternalError"
    assert "secret" not in str(response)
    assert [(entry["event"], entry["exc_info"]) for entry in logs if "exc_info" in entry] == [
        ("admission_failed", True)
    ]
    assert desk.count("controller_runtime_webhook_panics_total") == 1


async def test_a_validator_whose_own_waiting_timed_out_has_broken() -> None:
    async def wait_in_vain(_: AdmissionRequest) -> AdmissionResponse:
        raise TimeoutError

    assert (await Desk(wait_in_vain).response())["status"]["code"] == 500


async def test_details_that_are_not_valid_json_count_as_a_failure() -> None:
    async def tell_too_much(_: AdmissionRequest) -> AdmissionResponse:
        return AdmissionResponse(allowed=False, code=403, details={"number": 2**70})

    desk = Desk(tell_too_much)
    assert (await desk.response())["status"]["code"] == 500
    assert desk.count("controller_runtime_webhook_panics_total") == 1


async def test_response_is_sent_before_the_client_timeout() -> None:
    async def never(_: AdmissionRequest) -> AdmissionResponse:
        await asyncio.Event().wait()
        return ALLOWED

    desk = Desk(never)
    async with asyncio.timeout(10):
        response = await desk.response(timeout="200ms")
    assert (response["allowed"], response["status"]["code"]) == (False, 504)
    assert response["status"]["reason"] == "Timeout"
    assert desk.count("controller_runtime_webhook_panics_total") == 0


async def test_the_time_that_a_body_took_counts() -> None:
    clock, waited = FakeClock(), []

    async def slowly() -> bytes:
        await clock.sleep(9.45)
        return orjson.dumps(review())

    async def never(_: AdmissionRequest) -> AdmissionResponse:
        waited.append(asyncio.get_running_loop().time())
        await asyncio.Event().wait()
        return ALLOWED

    async with asyncio.timeout(9), asyncio.TaskGroup() as group:
        asking = group.create_task(Desk(never, clock=clock).response(read=slowly, timeout="10s"))
        await clock.advance(9.45)
        response = await asking
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

    desk = Desk(work_hard, clock=clock)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(desk.response(timeout="10s")) for _ in range(5)]
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

    desk = Desk(wait)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(desk.send(large(review(name=name)), client=name[0], timeout="30s"))
            for name in ("a1", "a2", "b", "c")
        ]
        small = group.create_task(desk.ask(review(name="small")))
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

    desk = Desk(work_hard, clock=clock)

    async def send(name: str) -> HttpResponse:
        return await desk.send(large(review(name=name)), client=name, timeout="30s")

    async with asyncio.TaskGroup() as group:
        flood = [group.create_task(send("stranger")) for _ in range(MOST_LARGE_WAITING)]
        await clock.advance(0.2)
        before = len(begun)
        victims = [group.create_task(send("victim")) for _ in range(5)]
        await clock.advance(60)
    assert all(task.result().status == 200 for task in (*flood, *victims))
    # The stranger's review that has started, and then one of each client in turn.
    last = len(begun) - begun[::-1].index("victim")
    assert begun[before:last].count("stranger") <= len(victims) + 1


async def test_client_with_too_many_large_bodies_waiting_is_rejected_alone() -> None:
    gate = asyncio.Event()

    async def wait(_: AdmissionRequest) -> AdmissionResponse:
        await gate.wait()
        return ALLOWED

    desk = Desk(wait)
    body = large(review())
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for _ in range(MOST_LARGE_WAITING + 1):
            group.create_task(desk.send(body, client="a", timeout="30s"))
        await at_rest()
        late = await desk.send(body, client="a")
        other = group.create_task(desk.send(body, client="b"))
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

    desk = Desk(wait)
    body = large(review())
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        first = [group.create_task(desk.send(body, client=each)) for each in "ab"]
        await at_rest()
        late = await desk.send(body, timeout="100ms")
        assert (late.status, late.body) == (429, "Too many large bodies at a time: try again.\n")
        gate.set()
    assert all(task.result().status == 200 for task in first)
    assert (await desk.send(body)).status == 200


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

    desk = Desk(work_hard, clock=clock)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(desk.send(large(review()))) for _ in range(4)]
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

    desk = Desk(work_hard, clock=clock)
    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(desk.send(large(review())))
        await clock.advance(0.3)
        asked_at = clock.monotonic()
        group.create_task(desk.ask(review(name="small")))
        await clock.advance(30)
    assert small[0] - asked_at <= 0.1


async def test_large_body_that_waits_too_long_for_a_pause_is_rejected_with_retry() -> None:
    clock = WorkClock()

    async def work_hard(_: AdmissionRequest) -> AdmissionResponse:
        clock.work(0.2)
        return ALLOWED

    desk = Desk(work_hard, clock=clock)
    assert (await desk.send(large(review()))).status == 200
    late = await desk.send(large(review()), timeout="100ms")
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

    desk = Desk(count)
    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(desk.response())
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

    desk = Desk(read_something)
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(desk.response())
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

    desk = Desk(note)
    async with asyncio.TaskGroup() as group:
        for name in (*["stranger"] * 50, "victim"):
            body = orjson.dumps(review(name=name))
            group.create_task(desk.send(body, client=name))
    assert order.index("victim") <= 2


async def test_excess_requests_get_retry_after() -> None:
    gate = asyncio.Event()

    async def wait(_: AdmissionRequest) -> AdmissionResponse:
        await gate.wait()
        return ALLOWED

    desk = Desk(wait, most_in_flight=3)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(desk.response()) for _ in range(3)]
        await at_rest()
        late = await desk.response()
        gate.set()
    assert (late["allowed"], late["status"]["code"]) == (False, 429)
    assert late["status"]["reason"] == "TooManyRequests"
    assert late["status"]["details"] == {"retryAfterSeconds": 1}
    assert all(task.result()["allowed"] for task in waiting)
    assert (await desk.response())["allowed"]


async def test_concurrent_requests_are_counted_even_without_a_queue() -> None:
    desk = Desk(allow, most_in_flight=3)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(desk.response()) for _ in range(10)]
    codes = [task.result()["status"]["code"] for task in tasks]
    assert sorted(codes) == [200] * 3 + [429] * 7


async def test_slow_request_is_logged() -> None:
    clock = FakeClock()

    async def ponder(_: AdmissionRequest) -> AdmissionResponse:
        await clock.sleep(1.5)
        return ALLOWED

    desk = Desk(ponder, clock=clock)
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.response())
            await clock.advance(1.5)
    assert [(entry["event"], entry["seconds"]) for entry in logs] == [("admission_slow", 1.5)]


async def test_requests_are_counted_by_path_and_status() -> None:
    desk = Desk(forbid)
    await desk.response()
    await desk.ask(method="GET")
    await desk.ask(path="/made/up")
    assert desk.count(f"{REQUESTS}_total", webhook=PATH, code="200") == 1
    assert desk.count(f"{REQUESTS}_total", webhook=PATH, code="405") == 1
    assert desk.count(f"{REQUESTS}_in_flight", webhook=PATH) == 0
    assert desk.count("controller_runtime_webhook_latency_seconds_count", webhook=PATH) == 2
    assert desk.count("machinery_webhook_verdicts_total", webhook=PATH, code="403") == 1
    assert b"/made/up" not in desk.metrics.render()


async def test_requests_in_flight_are_seen_while_they_are() -> None:
    gate = asyncio.Event()

    async def wait(_: AdmissionRequest) -> AdmissionResponse:
        await gate.wait()
        return ALLOWED

    desk = Desk(wait)
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.response())
        await at_rest()
        assert desk.count(f"{REQUESTS}_in_flight", webhook=PATH) == 1
        gate.set()
    assert desk.count(f"{REQUESTS}_in_flight", webhook=PATH) == 0
