"""Whatever is sent to the webhook server: an AdmissionReview or a 4xx, and then business as usual.

The real server with the real validators, over TLS; seeds are fixed, so each time it is the same.
"""

import asyncio
import gc
import logging
import random
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch
import orjson
import pytest
import structlog
from structlog.testing import capture_logs

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.machinery.certs.serving import self_signed
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.machinery.manager.lifetime import Budget, running
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.webhook.handler import admission
from kftrainer.machinery.webhook.limits import Limits
from kftrainer.machinery.webhook.server import DEFAULT_LIMITS, WebServer
from kftrainer.runtime.canonical_form import canonical_train_job
from kftrainer.runtime.cluster_reader import GivenObjects
from kftrainer.runtime.framework.plugin_loader import load_framework
from kftrainer.runtime.plugins import PLUGIN_RULES
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.runtime.validation.rules import Rule
from kftrainer.webhooks.denials import Denials
from kftrainer.webhooks.registration import defaulter_path, webhook_path
from kftrainer.webhooks.training_runtime import RuntimeAdmission
from kftrainer.webhooks.trainjob import TrainJobAdmission
from kftrainer.webhooks.trainjob_defaulter import TrainJobDefaulter
from tests.support.fake_clock import FakeClock
from tests.support.near_valid_documents import Mutations
from tests.support.other_releases import KUEUE_ENTRY, SDK_PATCH
from tests.support.raw_https import (
    RawTlsConnection,
    Reply,
    chunked,
    open_raw_connection,
    post,
    trusting,
)
from tests.support.reviews import UID, Review, review, train_job
from tests.support.runtimes import SHIPPED

SEED = 20_260_101
REQUESTS = 12_000
AT_ONCE = 8
WARM = REQUESTS // 3  # when caches, pools and the like have the size that they keep
GROWTH = 1.15
SHORT_LIMITS = Limits(silent_within=3.0, headers_within=3.0, body_within=1.0, drain_within=0.2)
JOBS = webhook_path(TRAIN_JOBS)
RUNTIMES = webhook_path(CLUSTER_TRAINING_RUNTIMES)
MUTATING = defaulter_path(TRAIN_JOBS)
CLOCK = FakeClock()  # of the times of patches


def originals() -> Iterator[tuple[str, Review]]:
    """Questions that are all right, and the path for each."""
    pod = {"name": "node", "env": [{"name": "A", "value": "b"}], "volumeMounts": []}
    spec = {
        "containers": [pod],
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"a": "b"},
    }
    overrides = [{"targetJobs": [{"name": "node"}], "spec": spec}]
    for runtime in SHIPPED:
        reference = {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
            "name": runtime["metadata"]["name"],
        }
        job = train_job(runtimeRef=reference, podTemplateOverrides=overrides)
        tuned = train_job(runtimeRef=reference, initializer={"model": {"storageUri": "hf://a/b"}})
        tuned["spec"]["trainer"] |= {"command": ["tune", "run"], "args": ["model.quantize_base=1"]}
        written = train_job(
            runtimeRef=reference,
            podTemplateOverrides=overrides,
            trainer={"env": [], "resourcesPerNode": {"limits": {"cpu": 4.0}, "requests": {}}},
            runtimePatches=[KUEUE_ENTRY, SDK_PATCH],
        )
        yield MUTATING, review(written)
        yield MUTATING, review(written, job, operation="UPDATE")
        yield MUTATING, review(job, written, operation="UPDATE")
        yield MUTATING, review(None, job, operation="DELETE")
        yield JOBS, review(job)
        yield JOBS, review(tuned)
        yield JOBS, review(job, tuned, operation="UPDATE")
        yield JOBS, review(None, job, operation="DELETE")
        yield RUNTIMES, review(runtime)
        yield RUNTIMES, review(runtime, SHIPPED[0], operation="UPDATE")


@dataclass
class FuzzedServer:
    """The server, and what it has noticed."""

    server: WebServer
    metrics: Metrics

    async def wire(self) -> RawTlsConnection:
        return await open_raw_connection(self.server.port, trusting())

    @property
    def panics(self) -> float | None:
        return self.metrics.registry.get_sample_value("controller_runtime_webhook_panics_total")

    @property
    def broken_rules(self) -> set[tuple[str, str]]:
        """The rules of all denials, by kind."""
        return {
            (sample.labels["kind"], sample.labels["rule"])
            for family in self.metrics.registry.collect()
            if family.name == "kftrainer_admission_denials"
            for sample in family.samples
        }

    async def is_healthy(self) -> bool:
        """Whether a good request is answered well."""
        wire = await self.wire()
        await wire.send(post(f"{JOBS}?timeout=10s", orjson.dumps(review())))
        reply = await wire.reply()
        wire.abort()
        return reply is not None and orjson.loads(reply.body)["response"]["allowed"]


@asynccontextmanager
async def fuzzed_server(limits: Limits = DEFAULT_LIMITS) -> AsyncIterator[FuzzedServer]:
    """The server with all validators, as the manager has them."""
    clock, metrics = SystemClock(), Metrics()
    framework = load_framework()
    validators = {
        MUTATING: TrainJobDefaulter(clock=CLOCK),
        JOBS: TrainJobAdmission(Runtimes(framework), GivenObjects(SHIPPED), None),
        **{
            webhook_path(each): RuntimeAdmission(each, framework)
            for each in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
        },
    }
    count = Denials(metrics.registry).count
    handler = admission(validators, clock=clock, metrics=metrics, on_denied=count)
    tls = self_signed(clock.now())
    server = WebServer("webhooks", "127.0.0.1:0", handler, tls=tls, limits=limits)
    async with running(server, budget=Budget(clock, 10)):
        yield FuzzedServer(server, metrics)


def only_failures(_: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Passes on what a person would have to look at; keeping all would look like a leak."""
    if event.get("exc_info") or method in ("error", "exception", "critical"):
        return event
    raise structlog.DropEvent


@contextmanager
def no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing in the block may log an error or a traceback, neither we nor the libraries."""
    caplog.set_level(logging.WARNING)
    with capture_logs(processors=[only_failures]) as logs:
        yield
    assert logs == []
    assert [record.getMessage() for record in caplog.records] == []


def uid_in(body: bytes) -> object:
    """The uid that the answer must have."""
    return orjson.loads(body)["request"]["uid"]


def is_patch(response: dict[str, Any]) -> bool:
    """Whether the patch, if there is one, is one that an API server takes, of the spec only."""
    if "patch" not in response:
        return "patchType" not in response
    operations = orjson.loads(b64decode(response["patch"], validate=True))
    return (
        response["patchType"] == "JSONPatch"
        and response["allowed"]
        and bool(operations)
        and all(each["path"].startswith("/spec/") for each in operations)
    )


def is_review(reply: Reply, uid: object, path: str = JOBS) -> bool:
    """Whether it is an answer that an API server takes."""
    review_ = orjson.loads(reply.body)
    response = review_["response"]
    return (
        reply.headers["content-type"] == "application/json"
        and (review_["apiVersion"], review_["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        and response["uid"] == uid
        and isinstance(response["allowed"], bool)
        and response["allowed"] == (response["status"]["code"] == 200)
        and (path == MUTATING or "patch" not in response)
        and is_patch(response)
        and all(isinstance(each, str) for each in response.get("warnings", ()))
    )


def check(reply: Reply, body: bytes, path: str) -> None:
    """The property: a review with the uid that was sent, or a 4xx with a line of text.

    The defaulter allows every request, and its patch can be applied.
    """
    if reply.status == 200:
        assert is_review(reply, uid_in(body), path), (reply, body[:2000])
        response = orjson.loads(reply.body)["response"]
        assert response["status"]["code"] < 500, (reply, body[:2000])
        if path == MUTATING:
            assert response["allowed"], (reply, body[:2000])
            check_patch(response, orjson.loads(body)["request"])
    else:
        assert 400 <= reply.status < 500, (reply, body[:2000])
        assert reply.body.count(b"\n") == 1, (reply, body[:2000])


def check_patch(response: dict[str, Any], request: dict[str, Any]) -> None:
    """The patch can be applied, and the result needs no further patch."""
    if "patch" in response:
        operations = orjson.loads(b64decode(response["patch"]))
        patched = jsonpatch.apply_patch(request["object"], operations)
        old = request["oldObject"] if request["operation"] == "UPDATE" else None
        assert canonical_train_job(old, patched, CLOCK.now()) == patched


def malformed_request(rng: random.Random, path: str, body: bytes) -> bytes:  # noqa: PLR0911
    """The body in a request that may be wrong in itself."""
    match rng.randrange(20):
        case 0:
            cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randrange(5)))
            pieces = zip([0, *cuts], [*cuts, len(body)], strict=True)
            return chunked(path, [body[start:end] for start, end in pieces if start < end])
        case 1:
            kind = rng.choice(("", "text/plain", "application/json;charset=utf-16", "application/"))
            return post(path, body, Content_Type=kind)
        case 2:
            return post(path, body, Content_Encoding=rng.choice(("gzip", "identity", "br")))
        case 3:
            return post(rng.choice(("/", f"{path}/", f"{path}/..", "/%00", "//", "/é")), body)
        case 4:
            method = rng.choice((b"GET", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"OPTIONS"))
            return method + post(path, body)[4:]
        case 5:
            timeout = rng.choice(("5s", "-1s", "10", "1h1h", "%00", "a" * 2000, "5s&timeout=6s"))
            return post(f"{path}?timeout={timeout}", body)
        case _:
            return post(path, body)


class Fuzzer:
    """Sends requests over some connections at a time, and checks every response."""

    def __init__(self, fuzzed: FuzzedServer, paths: Collection[str]) -> None:
        self._server = fuzzed
        self._rng = random.Random(SEED)  # noqa: S311
        self._mutations = Mutations(self._rng)
        self._originals = [each for each in originals() if each[0] in paths]
        self._left = REQUESTS
        self.statuses: Counter[int] = Counter()
        self.patches = 0
        self.memory: list[int] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._send_all())

    async def _send_all(self) -> None:
        wire = await self._server.wire()
        try:
            while self._left > 0:
                self._left -= 1
                if self._left in (REQUESTS - WARM, 0):
                    self.memory.append(resident())
                reply = await self._send_one(wire)
                if reply is None or reply.is_last:
                    wire.abort()
                    wire = await self._server.wire()
        finally:
            wire.abort()

    async def _send_one(self, wire: RawTlsConnection) -> Reply | None:
        path, original = self._rng.choice(self._originals)
        body = self._mutations.body(original)
        request = malformed_request(self._rng, path, body)
        await wire.send(request)
        if request.startswith(b"HEAD"):  # the answer has no body, whatever its headers
            return None
        reply = await wire.reply()
        assert reply is not None, request[:2000]
        check(reply, body, path)
        self.statuses[reply.status] += 1
        self.patches += path == MUTATING and b'"patch"' in reply.body
        return reply


def resident() -> int:
    """Pages of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1])


async def test_any_request_is_answered_with_a_review_or_a_4xx(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with no_failures(caplog):
        async with fuzzed_server() as server:
            fuzzer = Fuzzer(server, {JOBS, RUNTIMES})
            await fuzzer.run()
            assert await server.is_healthy()
            assert server.panics == 0
    kinds, rules = (set(each) for each in zip(*server.broken_rules, strict=True))
    assert kinds == {"TrainJob", "ClusterTrainingRuntime"}
    assert (
        {"schema", "runtime-missing", "runtime-trainer"}
        <= rules
        <= {*map(str, (*Rule, *PLUGIN_RULES))}
    )
    assert sum(fuzzer.statuses.values()) > 0.95 * REQUESTS
    assert fuzzer.statuses[200] > REQUESTS / 4, "most no longer reach a validator"
    assert set(fuzzer.statuses) == {200, 400, 404, 405, 415}
    before, after = fuzzer.memory
    assert after < before * GROWTH, "memory grows with the number of requests"


async def test_any_request_to_the_mutating_webhook_gets_a_patch_that_applies_or_a_4xx(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with no_failures(caplog):
        async with fuzzed_server() as server:
            fuzzer = Fuzzer(server, {MUTATING})
            await fuzzer.run()
            assert await server.is_healthy()
            assert server.panics == 0
            assert not server.broken_rules, "it denies nothing"
    assert sum(fuzzer.statuses.values()) > 0.95 * REQUESTS
    assert fuzzer.patches > REQUESTS / 8
    assert set(fuzzer.statuses) == {200, 400, 404, 405, 415}
    before, after = fuzzer.memory
    assert after < before * GROWTH, "memory grows with the number of requests"


MOST = DEFAULT_LIMITS.body
HUGE = MOST + 1
GOOD = orjson.dumps(review())


async def test_too_large_bodies_are_rejected_in_every_transfer_encoding(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with no_failures(caplog):
        async with fuzzed_server() as server:
            for request in (
                post(JOBS, b" " * HUGE),
                chunked(JOBS, [b" " * 65536] * (HUGE // 65536 + 1)),
                post(JOBS, b"", Content_Length=str(10**15)),
            ):
                wire = await server.wire()
                await wire.send(request)
                reply = await wire.reply()
                assert reply is not None
                assert reply.status == 413
                wire.abort()
            wire = await server.wire()
            padded = GOOD + b" " * (MOST - len(GOOD))
            await wire.send(post(JOBS, padded))
            reply = await wire.reply()
            assert reply is not None
            assert is_review(reply, UID)
            wire.abort()


def unfinished() -> Iterator[bytes]:
    """Requests that have begun, each in another place."""
    whole = post(JOBS, GOOD)
    yield b""
    yield from (whole[:cut] for cut in range(1, 200, 13))
    yield from (whole[:cut] for cut in range(200, len(whole), 101))
    yield post(JOBS, b"", Content_Length="", Transfer_Encoding="chunked") + b"5\r\nab"
    yield whole + whole[:20]


async def test_requests_that_never_end_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    with no_failures(caplog):
        async with fuzzed_server(SHORT_LIMITS) as server:

            async def begin(request: bytes) -> RawTlsConnection:
                wire = await server.wire()
                await wire.send(request)
                if request.count(b"POST") > 1:
                    await wire.reply()
                    await wire.send(b" ")  # which is when it has begun to be slow
                return wire

            async with asyncio.TaskGroup() as group:
                beginning = [group.create_task(begin(each)) for each in unfinished()]
            # Now that all have shaken hands, a good request is not late because of that.
            assert await server.is_healthy()
            for wire in (each.result() for each in beginning):
                await wire.closed()
                wire.abort()


async def test_disconnected_clients_are_released(caplog: pytest.LogCaptureFixture) -> None:
    with no_failures(caplog):
        async with fuzzed_server() as server:
            for request in (*unfinished(), post(JOBS, GOOD), post(JOBS, GOOD) * 3):
                dropped, half = await server.wire(), await server.wire()
                await dropped.send(request)
                dropped.abort()
                await half.send(request)
                half.half_close()
                await half.closed()
                half.abort()
            assert await server.is_healthy()


async def test_bytes_that_are_not_tls_or_http_do_not_affect_other_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = random.Random(SEED)  # noqa: S311
    with no_failures(caplog):
        async with fuzzed_server() as server:
            for _ in range(50):
                plain = await open_raw_connection(server.server.port, None)
                await plain.send(rng.choice((post(JOBS, GOOD), b"\x16\x03\x01", rng.randbytes(99))))
                plain.abort()
                wire = await server.wire()
                await wire.send(rng.randbytes(rng.randint(1, 300)) + b"\r\n\r\n")
                reply = await wire.reply()
                assert reply is None or reply.status == 400
                wire.abort()
            assert await server.is_healthy()
