"""How long requests to an unresponsive API server are retried, and the effect of each answer."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from kftrainer.api.resources import JOB_SETS, RUNTIME_CLASSES, TRAIN_JOBS
from kftrainer.cli.manager_setup.preflight import SETTLE_FOR, TRY_FOR, Preflight, PreflightError
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.client.transport import Response
from kftrainer.kube.objects.resource import Resource
from tests.support.fake_clock import FakeClock, at_rest


def status(code: int, reason: str, message: str = "") -> Response:
    fields = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return Response(code, {}, orjson.dumps(fields))


def group_of(*resources: Resource[Any]) -> Response:
    kinds = [{"kind": r.kind, "name": r.plural, "namespaced": r.namespaced} for r in resources]
    return Response(200, {}, orjson.dumps({"resources": kinds}))


EMPTY = Response(200, {}, orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": []}))
NOT_FOUND = Response(404, {}, b"404 page not found\n")
OURS = "/apis/trainer.kubeflow.org/v1alpha1"
JOBSET = "/apis/jobset.x-k8s.io/v1alpha2"
NODE = "/apis/node.k8s.io/v1"


class Server:
    """A transport to a server that answers by path; of a list, the last answer stays."""

    def __init__(self, **other_replies: list[Response | Exception | None]) -> None:
        self.answers: dict[str, list[Response | Exception | None]] = {
            OURS: [group_of(TRAIN_JOBS)],
            f"{OURS}/trainjobs": [EMPTY],
            JOBSET: [NOT_FOUND],
            NODE: [NOT_FOUND],
            **other_replies,
        }
        self.requests: list[str] = []

    async def request(self, _method: str, path: str, **_: Any) -> Response:
        self.requests.append(path)
        answers = self.answers[path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer

    def stream(
        self, path: str, *, query: Mapping[str, str], **_: Any
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError("unexpected watch")

    async def close(self) -> None:
        pass


class PreflightRun:
    """A preflight under way."""

    def __init__(self, server: Server, clock: FakeClock, *namespaces: str) -> None:
        self._clock = clock
        self._preflight = Preflight(
            Client(server),
            RestMapper(server),
            clock=clock,
            ours=(TRAIN_JOBS,),
            watched=(JOB_SETS, RUNTIME_CLASSES),
            namespaces=namespaces,
        )
        self.is_ready = False

    async def over(self, seconds: float = 0.0) -> str | None:
        """Run for this number of seconds; return the error, or None."""
        stop = asyncio.Event()

        def ready() -> None:
            self.is_ready = True

        async def live() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._preflight.run(ready, stop))
                await self._clock.advance(seconds)
                stop.set()

        try:
            await live()
        except ExceptionGroup as group:
            found, others = group.split(PreflightError)
            assert others is None
            assert found is not None
            error: BaseException = found
            while isinstance(error, BaseExceptionGroup):
                [error] = error.exceptions
            return str(error)
        return None


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_valid_setup_passes(clock: FakeClock) -> None:
    preflight_run = PreflightRun(Server(), clock)
    assert await preflight_run.over() is None
    assert preflight_run.is_ready


async def test_missing_kinds_are_reported(clock: FakeClock) -> None:
    preflight_run = PreflightRun(Server(**{OURS: [NOT_FOUND]}), clock)
    error = await preflight_run.over(SETTLE_FOR)
    assert error is not None
    assert error.startswith(
        "the API server does not serve TrainJob.trainer.kubeflow.org: install the "
        "CustomResourceDefinitions"
    )
    assert not preflight_run.is_ready
    assert clock.monotonic() == SETTLE_FOR


@pytest.mark.parametrize("missing", ["kinds", "rights"])
async def test_kinds_just_installed_are_waited_for(clock: FakeClock, missing: str) -> None:
    server = Server()
    if missing == "kinds":
        server.answers[OURS] = [NOT_FOUND, NOT_FOUND, group_of(TRAIN_JOBS)]
    else:
        not_permitted = status(403, "Forbidden", "trainjobs is forbidden")
        server.answers[f"{OURS}/trainjobs"] = [not_permitted, not_permitted, EMPTY]
    preflight_run = PreflightRun(server, clock)
    with capture_logs() as logged:
        assert await preflight_run.over(SETTLE_FOR) is None
    assert preflight_run.is_ready
    assert [(entry["event"], entry["seconds_left"]) for entry in logged] == [
        ("preflight_waiting", 5),
        ("preflight_waiting", 4),
    ]


async def test_server_that_stops_responding_is_waited_for(clock: FakeClock) -> None:
    answers = [NOT_FOUND, TransportError("x"), TransportError("x"), group_of(TRAIN_JOBS)]
    preflight_run = PreflightRun(Server(**{OURS: answers}), clock)
    assert await preflight_run.over(SETTLE_FOR) is None
    assert preflight_run.is_ready


async def test_optional_kinds_are_not_required(clock: FakeClock) -> None:
    server = Server()
    assert await PreflightRun(server, clock).over() is None
    assert JOBSET in server.requests


async def test_all_kinds_with_forbidden_reads_are_reported(clock: FakeClock) -> None:
    ours = status(403, "Forbidden", 'trainjobs is forbidden: User "ada" cannot list')
    theirs = status(403, "Forbidden", "jobsets is forbidden")
    server = Server(
        **{
            f"{OURS}/trainjobs": [ours],
            JOBSET: [group_of(JOB_SETS)],
            f"{JOBSET}/jobsets": [theirs],
        }
    )
    assert await PreflightRun(server, clock).over(SETTLE_FOR) == (
        "no permission to read TrainJob.trainer.kubeflow.org, JobSet.jobset.x-k8s.io: "
        'trainjobs is forbidden: User "ada" cannot list'
    )


async def test_a_right_in_each_namespace_is_enough_and_kinds_without_one_are_read_everywhere(
    clock: FakeClock,
) -> None:
    server = Server(
        **{
            f"{OURS}/namespaces/a/trainjobs": [EMPTY],
            f"{OURS}/namespaces/b/trainjobs": [EMPTY, status(403, "Forbidden", "not in b")],
            NODE: [group_of(RUNTIME_CLASSES)],
            f"{NODE}/runtimeclasses": [EMPTY],
        }
    )
    assert await PreflightRun(server, clock, "a", "b").over() is None
    assert server.requests.count(f"{NODE}/runtimeclasses") == 1
    assert f"{OURS}/trainjobs" not in server.requests


def in_two_namespaces(**other_replies: list[Response | Exception | None]) -> Server:
    """A server that refuses TrainJobs in b."""
    refused = status(403, "Forbidden", "not in b")
    return Server(
        **{
            f"{OURS}/namespaces/a/trainjobs": [EMPTY],
            f"{OURS}/namespaces/b/trainjobs": [refused],
            **other_replies,
        }
    )


async def test_namespace_without_rights_does_not_keep_the_others_from_being_served(
    clock: FakeClock,
) -> None:
    preflight_run = PreflightRun(in_two_namespaces(), clock, "a", "b")
    with capture_logs() as logged:
        assert await preflight_run.over(SETTLE_FOR) is None
    assert preflight_run.is_ready
    assert clock.monotonic() == SETTLE_FOR, "rights that were just granted may come a moment later"
    assert (logged[-1]["event"], logged[-1]["error"]) == (
        "preflight_namespaces_unavailable",
        "these namespaces do not exist or cannot be read: b: no permission to read "
        "TrainJob.trainer.kubeflow.org: not in b",
    )


async def test_rights_in_no_namespace_end_the_manager(clock: FakeClock) -> None:
    refused = status(403, "Forbidden", "not in a")
    server = in_two_namespaces(**{f"{OURS}/namespaces/a/trainjobs": [refused]})
    assert await PreflightRun(server, clock, "a", "b").over(SETTLE_FOR) == (
        "no permission to read TrainJob.trainer.kubeflow.org: not in a"
    )


async def test_kind_without_namespaces_that_must_not_be_read_ends_the_manager(
    clock: FakeClock,
) -> None:
    refused = status(403, "Forbidden", "no classes")
    classes = {NODE: [group_of(RUNTIME_CLASSES)], f"{NODE}/runtimeclasses": [refused]}
    server = in_two_namespaces(**classes)
    error = await PreflightRun(server, clock, "a", "b").over(SETTLE_FOR)
    assert error is not None
    assert error.startswith("no permission to read")


async def test_rejected_credentials_are_reported_immediately(clock: FakeClock) -> None:
    server = Server(**{OURS: [status(401, "Unauthorized", "Unauthorized")]})
    error = await PreflightRun(server, clock).over()
    assert error == "the API server rejected the credentials: Unauthorized"


@pytest.mark.parametrize(
    "failure",
    [
        TransportError("cannot connect"),
        status(503, "ServiceUnavailable", "cannot connect"),
        status(429, "TooManyRequests", "cannot connect"),
    ],
)
async def test_unresponsive_server_is_retried_until_the_timeout(
    clock: FakeClock, failure: Response | Exception
) -> None:
    server = Server(**{OURS: [failure]})
    preflight_run = PreflightRun(server, clock)
    with capture_logs() as logged:
        error = await preflight_run.over(TRY_FOR + 1)
    assert error == "cannot reach the API server after 30 s of trying: cannot connect"
    assert not preflight_run.is_ready
    assert clock.monotonic() == TRY_FOR
    assert [entry["seconds_left"] for entry in logged] == [
        30,
        29.5,
        28.5,
        26.5,
        22.5,
        17.5,
        12.5,
        7.5,
        2.5,
    ]
    assert {entry["event"] for entry in logged} == {"preflight_waiting"}
    assert len(server.requests) == len(logged) + 1


async def test_slow_server_is_waited_for(clock: FakeClock) -> None:
    server = Server(**{OURS: [TransportError("x"), TransportError("x"), group_of(TRAIN_JOBS)]})
    preflight_run = PreflightRun(server, clock)
    assert await preflight_run.over(1.4) is None
    assert not preflight_run.is_ready
    preflight_run = PreflightRun(
        Server(**{OURS: [TransportError("x"), group_of(TRAIN_JOBS)]}), clock
    )
    assert await preflight_run.over(0.5) is None
    assert preflight_run.is_ready


async def test_stop_ends_the_preflight_of_a_silent_server(clock: FakeClock) -> None:
    preflight_run = PreflightRun(Server(**{OURS: [None]}), clock)
    assert await preflight_run.over(1) is None
    assert not preflight_run.is_ready
    await at_rest()
