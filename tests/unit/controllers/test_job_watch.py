"""What changes of TrainJobs, JobSets and Jobs mean to the book, and when it is open to readers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kftrainer.api.resources import JOB_SETS, JOBS, TRAIN_JOBS
from kftrainer.controllers.first_pods import ASK_AGAIN, LABEL_JOB_SET, FirstPods
from kftrainer.controllers.job_book import JobBook
from kftrainer.controllers.job_metrics import JobHistograms
from kftrainer.controllers.job_watch import JobWatch
from kftrainer.kube.client import Client
from kftrainer.kube.errors import ForbiddenError, TransportError
from kftrainer.kube.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.machinery.cache import Cache, NotCachedError
from kftrainer.machinery.changes import Change
from kftrainer.machinery.entry import EntryMaker
from kftrainer.machinery.exposition import exposition
from kftrainer.machinery.metrics import Metrics
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.objects import Object, train_job

CREATED = "2025-12-31T23:59:50Z"  # ten seconds before the clock's time
MADE = "kftrainer_trainjob_jobset_creation_seconds"
RAN = "kftrainer_trainjob_first_pod_running_seconds"


class FakeInformer:
    """The objects of one kind, and who is told of changes."""

    def __init__(self, resource: Resource[Any]) -> None:
        self.maker: EntryMaker[Any] = EntryMaker(resource, None, {})
        self.there: dict[ObjectKey, Any] = {}
        self.handlers: list[Callable[[Change[Any]], None]] = []
        self.told = asyncio.Event()
        self.told.set()

    def seen(self, key: ObjectKey) -> Any:
        return self.there.get(key)

    def add_handler(self, handler: Callable[[Change[Any]], None]) -> asyncio.Event:
        self.handlers.append(handler)
        for key, entry in self.there.items():
            handler(Change(key, None, entry, initial=True))
        return self.told

    async def wait_synced(self) -> None:
        pass

    def put(self, manifest: Manifest) -> None:
        key, entry = key_of(manifest), self.maker.make(manifest)
        old, self.there[key] = self.there.get(key), entry
        for handler in self.handlers:
            handler(Change(key, old, entry))

    def delete(self, manifest: Manifest) -> None:
        key = key_of(manifest)
        old = self.there.pop(key)
        for handler in self.handlers:
            handler(Change(key, old, None))


@dataclass
class FakeCache:
    """The informers that are there."""

    informers: dict[Resource[Any], FakeInformer] = field(default_factory=dict)

    def informer(self, resource: Resource[Any]) -> FakeInformer:
        try:
            return self.informers[resource]
        except KeyError:
            raise NotCachedError from None


class NoPods:
    """Nobody watches Jobs."""

    def __init__(self) -> None:
        self.has_begun = False

    async def run(self, stop: asyncio.Event) -> None:
        self.has_begun = True
        await stop.wait()


class Desk:
    """A book, and all that is written into it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.book = JobBook(JobHistograms(self.registry))
        self.cache = FakeCache({kind: FakeInformer(kind) for kind in (TRAIN_JOBS, JOB_SETS)})
        self.jobs, self.sets = (self.cache.informers[kind] for kind in (TRAIN_JOBS, JOB_SETS))
        self.pods = NoPods()
        self.watch = JobWatch(
            self.book,
            cast("Cache", self.cache),
            self.registry,
            cast("FirstPods", self.pods),
            clock=self.clock,
        )

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        stop, ready = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch.run(ready.set, stop))
            await at_rest()
            assert ready.is_set()
            yield
            stop.set()

    def series(self, name: str) -> dict[str, float]:
        lines = exposition(self.registry).decode().splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith(f"{name}{{"))
        return {labels.removeprefix(name): float(value) for labels, _, value in found}

    def measured(self, name: str) -> list[float]:
        """The sums and counts of a histogram."""
        return [*self.series(f"{name}_sum").values(), *self.series(f"{name}_count").values()]


def a_job(uid: str = "1", **spec: Any) -> Object:
    job = train_job(**spec)
    job["metadata"] |= {"namespace": "ns", "uid": uid, "creationTimestamp": CREATED}
    return job


def an_object(uid: str, owner: str, **more: Any) -> Object:
    """A JobSet or a Job."""
    references = [{"kind": "?", "name": "job", "uid": owner, "controller": True}]
    metadata = {"name": "job", "namespace": "ns", "uid": uid, "ownerReferences": references}
    return {"metadata": {**metadata, "labels": {LABEL_JOB_SET: "job"}}, **more}


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_it_begins_to_count_when_it_leads_and_tells_when_it_knows_all(desk: Desk) -> None:
    desk.jobs.put(a_job())
    assert desk.series("kftrainer_trainjobs") == {}
    desk.jobs.told.clear()
    async with desk.leading():
        assert desk.series("kftrainer_trainjobs") == {}
        desk.jobs.told.set()
        await at_rest()
        labels = '{namespace="ns",runtime="torch-distributed",state="Pending"}'
        assert desk.series("kftrainer_trainjobs") == {labels: 1}
        assert desk.pods.has_begun
        desk.jobs.delete(a_job())
        assert desk.series("kftrainer_trainjobs") == {}


async def test_jobs_of_somebody_else_do_not_count(desk: Desk) -> None:
    async with desk.leading():
        desk.jobs.put(a_job(managedBy="kueue.x-k8s.io/multikueue"))
        assert desk.series("kftrainer_trainjobs") == {}


async def test_a_job_set_is_measured_once_when_it_comes(desk: Desk) -> None:
    async with desk.leading():
        desk.jobs.put(a_job())
        desk.sets.put(an_object("s", owner="0"))
        assert desk.measured(MADE) == []  # it is of another TrainJob, of the same name
        desk.sets.delete(an_object("s", owner="0"))
        for _ in range(2):
            desk.sets.put(an_object("s", owner="1"))
            desk.sets.delete(an_object("s", owner="1"))
        assert desk.measured(MADE) == [10, 1]


async def test_a_job_set_that_was_there_before_is_not_measured(desk: Desk) -> None:
    desk.jobs.put(a_job())
    desk.sets.put(an_object("s", owner="1"))
    async with desk.leading():
        desk.sets.put(an_object("s", owner="1"))
        assert desk.measured(MADE) == []
        assert desk.book.awaits(ObjectKey("ns", "job"), "pod")


async def test_job_sets_may_be_installed_later(desk: Desk) -> None:
    del desk.cache.informers[JOB_SETS]
    desk.watch.installed(JOB_SETS)
    async with desk.leading():
        desk.jobs.put(a_job())
        desk.watch.installed(JOB_SETS)
        desk.cache.informers[JOB_SETS] = desk.sets
        for _ in range(2):
            desk.watch.installed(JOB_SETS)
            desk.watch.installed(JOBS)
        assert len(desk.sets.handlers) == 1
        desk.sets.put(an_object("s", owner="1"))
        assert desk.measured(MADE) == [10, 1]


class Asked(Client):
    """A client that is refused, and then heard."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)

    def list_pages(self, *_: Any, **__: Any) -> Any:
        async def pages() -> AsyncIterator[None]:
            if self.answers:
                raise self.answers.pop(0)
            yield None

        return pages()


def first_pods(desk: Desk, client: Client | None = None) -> FirstPods:
    return FirstPods(
        desk.book,
        cast("Cache", desk.cache),
        client or Asked(),
        clock=desk.clock,
        metrics=Metrics(),
    )


@pytest.fixture
async def pods(desk: Desk) -> AsyncIterator[FirstPods]:
    """What is told of Jobs, when a TrainJob has its JobSet."""
    async with desk.leading():
        desk.jobs.put(a_job())
        desk.sets.put(an_object("s", owner="1"))
        yield first_pods(desk)


def told(pods: FirstPods, job: Object, *, initial: bool = False) -> None:
    """What an informer does."""
    if pods.is_awaited(job):
        pods.changed(Change(key_of(job), None, EntryMaker(JOBS, None, {}).make(job), initial))


@pytest.mark.parametrize("sign", ["ready", "succeeded"])
def test_the_first_pod_is_measured_once(desk: Desk, pods: FirstPods, sign: str) -> None:
    told(pods, an_object("j", owner="s"))
    told(pods, an_object("j", owner="s", status={"active": 1, "ready": 0, "failed": 1}))
    assert desk.measured(RAN) == []
    for _ in range(2):
        told(pods, an_object("j", owner="s", status={sign: 1}))
    assert desk.measured(RAN) == [10, 1]


def test_pods_of_an_earlier_job_set_do_not_count(desk: Desk, pods: FirstPods) -> None:
    told(pods, an_object("j", owner="earlier", status={"ready": 1}))
    assert desk.measured(RAN) == []


def test_without_job_sets_there_is_nobody_whose_pods_they_are(desk: Desk, pods: FirstPods) -> None:
    del desk.cache.informers[JOB_SETS]
    assert not pods.is_awaited(an_object("j", owner="s", status={"ready": 1}))
    unlabelled = an_object("j", owner="s", status={"ready": 1})
    del unlabelled["metadata"]["labels"]
    assert not pods.is_awaited(unlabelled)


def test_pods_that_ran_before_are_not_measured(desk: Desk, pods: FirstPods) -> None:
    job = an_object("j", owner="s", status={"ready": 1})
    told(pods, job, initial=True)
    told(pods, job)
    pods.changed(Change(key_of(job), None, None))
    assert desk.measured(RAN) == []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The informers that were started."""
    names: list[str] = []

    async def run(self: Any, _ready: Callable[[], None], stop: asyncio.Event) -> None:
        names.append(self.name)
        await stop.wait()

    monkeypatch.setattr("kftrainer.machinery.informer.Informer.run", run)
    return names


async def test_without_the_right_it_warns_once_and_asks_now_and_then(
    desk: Desk, started: list[str]
) -> None:
    refusals = [ForbiddenError(403, "Forbidden", "jobs is forbidden") for _ in range(3)]
    stop = asyncio.Event()
    with capture_logs() as logged:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(first_pods(desk, Asked(*refusals)).run(stop))
            await desk.clock.advance(2 * ASK_AGAIN)
            assert started == []
            assert [entry["log_level"] for entry in logged] == ["warning", "debug", "debug"]
            await desk.clock.advance(ASK_AGAIN)
            assert started == ["informer of Job.batch"]
            stop.set()


async def test_a_server_that_cannot_be_asked_is_left_to_the_informer(
    desk: Desk, started: list[str]
) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first_pods(desk, Asked(TransportError("gone"))).run(stop))
        await at_rest()
        assert started == ["informer of Job.batch"]
        stop.set()
