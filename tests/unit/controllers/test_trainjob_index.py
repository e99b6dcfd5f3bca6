"""TrainJobs are found by their runtimes without being decoded, however many there are."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.runtime_finalizer import enqueue_runtime
from kftrainer.controllers.trainjob_index import (
    INDEX_RUNTIME,
    TRAIN_JOB_INDEXES,
    index_value,
    is_finished_manifest,
)
from kftrainer.controllers.watches import enqueue_begun, enqueue_unfinished, unfinished
from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.cache import cached_object
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.handlers import enqueue_mapped, enqueue_self
from kftrainer.machinery.controller.reconcile import DONE, Request, Result
from kftrainer.machinery.manager.clock import SystemClock
from kftrainer.runtime.info import is_finished
from tests.support.fake_clock import FakeClock
from tests.support.informers import running
from tests.support.objects import Object, train_job
from tests.unit.machinery.cache.test_informer import FakeTransport, all_sent

MANY = 5_000
NODES = [{"name": f"VARIABLE_{number}", "value": "x" * 20} for number in range(30)]


def condition(kind: str, status: str = "True", reason: str = "AsItIs") -> Object:
    at = "2026-01-01T00:00:00Z"
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": at,
    }


def stored(name: str, /, *conditions: Object, namespace: str = "n", **reference: Any) -> Object:
    """A TrainJob as the API server stores it."""
    runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "torch"}
    job = train_job(name, runtimeRef={**runtime, **reference}, trainer={"env": NODES})
    job["metadata"] |= {"namespace": namespace, "resourceVersion": "1", "uid": f"uid-{name}"}
    return {**job, "status": {"conditions": [*conditions]}} if conditions else job


DONE_JOB = stored("done", condition("Complete"))


@asynccontextmanager
async def cached(*jobs: Object) -> AsyncIterator[Cache]:
    """A cache of these TrainJobs."""
    wire, cache = FakeTransport(), Cache()
    cache.add(Informer(Client(wire), TRAIN_JOBS, clock=FakeClock(), indexes=TRAIN_JOB_INDEXES))
    async with running(cache):
        events = [orjson.dumps({"type": "ADDED", "object": each}) + b"\n" for each in jobs]
        await wire.send(b"".join(events), all_sent(5))
        yield cache


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the objects that were decoded."""
    names: list[str] = []
    for kind in (cached_object.CachedObject, cached_object._Unpacked):
        decode = kind.object.fget  # type: ignore[attr-defined]

        def counted(self: Any, decode: Callable[[Any], Any] = decode) -> Any:
            names.append(self.metadata["name"])
            return decode(self)

        monkeypatch.setattr(kind, "object", property(counted))
    return names


def names(found: Any) -> list[str]:
    return sorted(str(each) for each in found)


async def test_keys_are_found_without_decoding(decoded: list[str]) -> None:
    cluster = {"kind": "ClusterTrainingRuntime", "name": "shared"}
    jobs = [
        stored("one"),
        stored("two", condition("Suspended")),
        stored("elsewhere", namespace="m"),
        stored("cluster", **cluster),
        DONE_JOB,
    ]
    torch, shared = ObjectKey("n", "torch"), ObjectKey("", "shared")
    async with cached(*jobs) as cache:
        on_torch = enqueue_unfinished(cache, TRAINING_RUNTIMES)
        assert names(on_torch(ObjectEvent(torch, None, None))) == ["n/one", "n/two"]
        on_shared = enqueue_unfinished(cache, CLUSTER_TRAINING_RUNTIMES)
        assert names(on_shared(ObjectEvent(shared, None, None))) == ["n/cluster"]
        assert names(unfinished(cache)) == ["m/elsewhere", "n/cluster", "n/one", "n/two"]
        assert names(unfinished(cache, "m")) == ["m/elsewhere"]
        assert cache.has_index(TRAIN_JOBS, INDEX_RUNTIME, index_value(TRAINING_RUNTIMES, torch))
        seen = cache.informer(TRAIN_JOBS).cached_object(ObjectKey("n", "one"))
        used = enqueue_runtime(TRAINING_RUNTIMES)(ObjectEvent(ObjectKey("n", "one"), seen, seen))
        assert names(used) == ["n/torch"]
    assert decoded == []


async def test_job_that_the_model_rejects_still_uses_its_runtime() -> None:
    malformed = stored("odd")
    malformed["spec"]["trainer"] = {"numNodes": "many"}
    with pytest.raises(ValueError, match="numNodes"):
        TrainJob.parse(malformed)
    async with cached(malformed) as cache:
        value = index_value(TRAINING_RUNTIMES, ObjectKey("n", "torch"))
        assert cache.has_index(TRAIN_JOBS, INDEX_RUNTIME, value)
        assert names(unfinished(cache)) == ["n/odd"]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"spec": None, "status": None},
        {"spec": {"runtimeRef": None}, "status": {"conditions": None}},
        {"spec": {"runtimeRef": {"name": "x"}}, "status": {"conditions": [{}]}},
    ],
)
async def test_job_of_any_shape_is_indexed(document: Object) -> None:
    metadata = {"name": "odd", "namespace": "n", "resourceVersion": "1"}
    async with cached({**document, "metadata": metadata}) as cache:
        assert names(unfinished(cache)) == ["n/odd"]


@pytest.mark.parametrize("kind", ["Complete", "Failed", "Suspended", "Blocked"])
@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
@pytest.mark.parametrize("reason", ["AsItIs", "TrainingRuntimeNotSupported"])
def test_end_of_a_job_is_decided_as_from_the_decoded_object(
    kind: str, status: str, reason: str
) -> None:
    manifest = stored("job", condition("Suspended", "False"), condition(kind, status, reason))
    assert is_finished_manifest(manifest) == is_finished(TrainJob.parse(manifest))
    assert not is_finished_manifest(stored("job"))


class Idle:
    """Reconciles nothing; sets an event when it has seen all TrainJobs."""

    def __init__(self) -> None:
        self.seen_all = asyncio.Event()
        self._count = 0

    async def reconcile(self, request: Request) -> Result:
        self._count += 1
        if self._count == MANY:
            self.seen_all.set()
        return DONE


class DelayedKind:
    """A kind whose events a test makes."""

    resource, has_synced = TRAINING_RUNTIMES, True

    async def wait_synced(self) -> None:
        """Nothing is there."""

    def add_handler(self, handler: Callable[[ObjectEvent[Any]], None], /) -> asyncio.Event:
        self.handler, notified = handler, asyncio.Event()
        notified.set()
        return notified


async def longest_step(action: Callable[[], None]) -> float:
    """The most seconds of CPU that the event loop is kept busy for between two of its turns."""
    longest, last = 0.0, time.process_time()

    async def tick(stop: asyncio.Event) -> None:
        nonlocal longest, last
        while not stop.is_set():
            await asyncio.sleep(0)
            now = time.process_time()
            longest, last = max(longest, now - last), now

    stop = asyncio.Event()
    gc.disable()  # collecting the objects of all tests before takes longer than any step
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(tick(stop))
            await asyncio.sleep(0)
            last = time.process_time()
            action()
            for _ in range(1_000):
                await asyncio.sleep(0)
            stop.set()
    finally:
        gc.enable()
    return longest


async def test_no_step_of_the_event_loop_grows_with_the_number_of_jobs() -> None:
    """A runtime edit must cost far less at once than decoding the runtime's TrainJobs."""
    jobs = (stored(f"job-{number}") for number in range(MANY))
    with capture_logs():
        await _measure_steps(*jobs)


async def _measure_steps(*jobs: Object) -> None:
    clock = SystemClock()
    async with cached(*jobs) as cache:
        informer = cache.informer(TRAIN_JOBS)
        idle = Idle()
        controller = Controller("idle", idle, clock=clock)
        controller.watch(informer, enqueue_self)
        edit = enqueue_unfinished(cache, TRAINING_RUNTIMES)
        async with running(controller):
            await idle.seen_all.wait()
            began = time.process_time()
            assert len(informer.list()) == MANY
            decoding = time.process_time() - began

            def at_a_runtime_edit() -> None:
                controller.enqueue_all(edit(ObjectEvent(ObjectKey("n", "torch"), None, None)))

            assert await longest_step(at_a_runtime_edit) < decoding / 5

            def at_a_slow_mapping() -> None:
                def slowly() -> Iterator[Request]:
                    for job in informer.iterate():
                        yield ObjectKey(job.metadata.namespace or "", job.metadata.name)

                controller.enqueue_all(slowly())

            assert await longest_step(at_a_slow_mapping) < decoding / 5

            def no_owner(_: Any) -> Iterator[None]:
                for _job in informer.iterate():
                    yield None

            kind = DelayedKind()
            controller.watch(kind, enqueue_mapped(no_owner))
            change = ObjectEvent(
                ObjectKey("", "a"), None, informer.cached_object(ObjectKey("n", "job-0"))
            )
            assert await longest_step(lambda: kind.handler(change)) < decoding / 5


async def test_deleted_revision_enqueues_only_unfinished_jobs() -> None:
    ended = stored("ended", condition("Complete"))
    running_job, other = stored("job"), stored("other")
    for each, name in ((ended, "torch-1"), (running_job, "torch-1"), (other, "torch-2")):
        each["status"] = {**each.get("status", {}), "runtimeRevision": name}
    async with cached(ended, running_job, other) as cache:
        is_deleted: ObjectEvent[Any] = ObjectEvent(ObjectKey("n", "torch-1"), None, None)
        assert list(enqueue_begun(cache)(is_deleted)) == [ObjectKey("n", "job")]
