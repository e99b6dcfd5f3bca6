"""Events of TrainJobs, JobSets and Jobs update the counts, which the leader exports."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kftrainer.api.resources import JOB_SETS, JOBS, TRAIN_JOBS
from kftrainer.controllers.metrics.collectors import JobHistograms
from kftrainer.controllers.metrics.counts import TrainJobCounts
from kftrainer.controllers.metrics.job_watch import (
    LABEL_JOB_SET,
    RECHECK_AFTER,
    JobWatch,
    loses_its_pods,
)
from kftrainer.controllers.metrics.observer import TrainJobObserver
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ForbiddenError, TransportError
from kftrainer.kube.client.watch import Bookmark, Upserted, WatchEvent
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, key_of
from kftrainer.machinery.cache.cache import Cache, NotCachedError
from kftrainer.machinery.cache.cached_object import CachedObjectFactory
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.metrics.text_format import exposition
from tests.support.fake_clock import FakeClock, at_rest
from tests.support.objects import Object, train_job

CREATED = "2025-12-31T23:59:50Z"  # ten seconds before the clock's time
KEY = ObjectKey("ns", "job")
CREATION_SECONDS = "kftrainer_trainjob_jobset_creation_seconds"
RAN = "kftrainer_trainjob_first_pod_running_seconds"


class FakeInformer:
    """The objects of one kind, and the handlers of changes."""

    def __init__(self, resource: Resource[Any]) -> None:
        self.factory: CachedObjectFactory[Any] = CachedObjectFactory(resource, None, {})
        self.objects: dict[ObjectKey, Any] = {}
        self.handlers: list[Callable[[ObjectEvent[Any]], None]] = []
        self.synced = asyncio.Event()
        self.synced.set()

    def cached_object(self, key: ObjectKey) -> Any:
        return self.objects.get(key)

    def add_handler(self, handler: Callable[[ObjectEvent[Any]], None]) -> asyncio.Event:
        self.handlers.append(handler)
        for key, entry in self.objects.items():
            handler(ObjectEvent(key, None, entry, initial=True))
        return self.synced

    async def wait_synced(self) -> None:
        pass

    def put(self, manifest: Manifest) -> None:
        key, entry = key_of(manifest), self.factory.create(manifest)
        old, self.objects[key] = self.objects.get(key), entry
        for handler in self.handlers:
            handler(ObjectEvent(key, old, entry))

    def delete(self, manifest: Manifest) -> None:
        key = key_of(manifest)
        old = self.objects.pop(key)
        for handler in self.handlers:
            handler(ObjectEvent(key, old, None))


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
    """Jobs are not watched."""

    def __init__(self) -> None:
        self.has_begun = False
        self.ends = 0
        self.gives_up = False
        self.job_sets: list[tuple[ObjectKey, float | None]] = []

    async def run(self) -> None:
        self.has_begun = True
        if self.gives_up:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ends += 1
            raise

    def job_set_changed(self, key: ObjectKey, now: float | None) -> None:
        self.job_sets.append((key, now))


class Harness:
    """A counts, and all that is written into it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.counts = TrainJobCounts(JobHistograms(self.registry))
        self.cache = FakeCache({kind: FakeInformer(kind) for kind in (TRAIN_JOBS, JOB_SETS)})
        self.jobs, self.sets = (self.cache.informers[kind] for kind in (TRAIN_JOBS, JOB_SETS))
        self.pods = NoPods()
        self.watch = TrainJobObserver(
            self.counts,
            cast("Cache", self.cache),
            self.registry,
            cast("JobWatch", self.pods),
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
def harness() -> Harness:
    return Harness()


async def test_counts_are_exported_after_all_trainjobs_are_counted(
    harness: Harness,
) -> None:
    harness.jobs.put(a_job())
    assert harness.series("kftrainer_trainjobs") == {}
    harness.jobs.synced.clear()
    async with harness.leading():
        assert harness.series("kftrainer_trainjobs") == {}
        harness.jobs.synced.set()
        await at_rest()
        labels = '{namespace="ns",runtime="torch-distributed",state="Pending"}'
        assert harness.series("kftrainer_trainjobs") == {labels: 1}
        assert harness.pods.has_begun
        harness.jobs.delete(a_job())
        assert harness.series("kftrainer_trainjobs") == {}


async def test_trainjobs_of_another_manager_are_not_counted(harness: Harness) -> None:
    async with harness.leading():
        harness.jobs.put(a_job(managedBy="kueue.x-k8s.io/multikueue"))
        assert harness.series("kftrainer_trainjobs") == {}


async def test_job_set_is_measured_once(harness: Harness) -> None:
    async with harness.leading():
        harness.jobs.put(a_job())
        harness.sets.put(an_object("s", owner="0"))
        assert (
            harness.measured(CREATION_SECONDS) == []
        )  # it is of another TrainJob, of the same name
        harness.sets.delete(an_object("s", owner="0"))
        for _ in range(2):
            harness.sets.put(an_object("s", owner="1"))
            harness.sets.delete(an_object("s", owner="1"))
        assert harness.measured(CREATION_SECONDS) == [10, 1]


async def test_job_set_that_existed_before_is_not_measured(harness: Harness) -> None:
    harness.jobs.put(a_job())
    harness.sets.put(an_object("s", owner="1"))
    async with harness.leading():
        harness.sets.put(an_object("s", owner="1"))
        assert harness.measured(CREATION_SECONDS) == []
        assert harness.counts.awaiting(KEY, "pod") == "1"


async def test_job_set_of_the_initial_list_is_not_measured(harness: Harness) -> None:
    """Its creation time is unknown if its kind was not cached when the TrainJob was created."""
    del harness.cache.informers[JOB_SETS]
    async with harness.leading():
        harness.jobs.put(a_job())
        harness.sets.put(an_object("s", owner="1"))
        harness.cache.informers[JOB_SETS] = harness.sets
        harness.watch.installed(JOB_SETS)
        harness.sets.put(an_object("s", owner="1"))
        assert harness.measured(CREATION_SECONDS) == []
        assert harness.pods.job_sets == [(KEY, None), (KEY, harness.clock.now().timestamp())]


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_observer_that_stopped_ignores_events_and_exports_nothing(
    harness: Harness, how: str
) -> None:
    harness.jobs.put(a_job())
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(harness.watch.run(lambda: None, stop))
        await at_rest()
        assert harness.series("kftrainer_trainjobs")
        stop.set() if how == "stopped" else task.cancel()
    assert harness.pods.ends == 1
    assert harness.series("kftrainer_trainjobs") == {}
    harness.sets.put(an_object("s", owner="1"))
    harness.jobs.put(a_job("2"))
    harness.watch.installed(JOB_SETS)
    assert (harness.measured(CREATION_SECONDS), harness.pods.job_sets) == ([], [])
    assert harness.counts.awaiting(KEY, "JobSet") == "1", "the counts is as it was"


async def test_observer_that_stops_before_the_sync_exports_nothing(harness: Harness) -> None:
    harness.jobs.synced.clear()
    async with harness.leading():
        pass
    assert not harness.pods.has_begun


async def test_job_sets_may_be_installed_later(harness: Harness) -> None:
    del harness.cache.informers[JOB_SETS]
    harness.watch.installed(JOB_SETS)
    async with harness.leading():
        harness.jobs.put(a_job())
        harness.watch.installed(JOB_SETS)
        harness.cache.informers[JOB_SETS] = harness.sets
        for _ in range(2):
            harness.watch.installed(JOB_SETS)
            harness.watch.installed(JOBS)
        assert len(harness.sets.handlers) == 1
        harness.sets.put(an_object("s", owner="1"))
        assert harness.measured(CREATION_SECONDS) == [10, 1]


class RefusingClient(Client):
    """A client whose requests are first denied, then accepted."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)

    def list_pages(self, *_: Any, **__: Any) -> Any:
        async def pages() -> AsyncIterator[None]:
            if self.answers:
                raise self.answers.pop(0)
            yield None

        return pages()


def job_watch(
    harness: Harness,
    client: Client | None = None,
    on_ready_pods: Callable[[ObjectKey], None] = lambda _: None,
    on_failing: Callable[[Any], None] = lambda _: None,
) -> JobWatch:
    return JobWatch(
        harness.counts,
        cast("Cache", harness.cache),
        client or RefusingClient(),
        clock=harness.clock,
        metrics=Metrics(),
        on_ready_pods=on_ready_pods,
        on_failing=on_failing,
    )


class Jobs(RefusingClient):
    """The server's Jobs, which an informer watches."""

    def __init__(self) -> None:
        super().__init__()
        self.events: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self.versions = count(1)

    @asynccontextmanager
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async def events() -> AsyncIterator[WatchEvent]:
            while True:
                yield await self.events.get()

        yield events()

    async def show(self, name: str = "j", *, owner: str = "s", **status: int) -> None:
        """A Job is like this."""
        job = an_object(name, owner, status=status)
        job["metadata"] |= {"name": name, "resourceVersion": str(next(self.versions))}
        await self.send(Upserted(job, added=True))

    async def send(self, event: WatchEvent) -> None:
        self.events.put_nowait(event)
        await at_rest()

    async def all_shown(self) -> None:
        """What comes from now on is new."""
        await self.send(Bookmark(str(next(self.versions)), initial_events_end=True))


@pytest.fixture
async def shown(harness: Harness) -> AsyncIterator[Jobs]:
    """Jobs that are being listed, when a TrainJob has its JobSet."""
    jobs = Jobs()
    watching = job_watch(harness, jobs)
    harness.pods.job_set_changed = watching.job_set_changed  # type: ignore[method-assign]
    async with harness.leading(), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watching.run())
        harness.jobs.put(a_job())
        harness.sets.put(an_object("s", owner="1"))
        yield jobs
        task.cancel()


@pytest.fixture
async def pods(shown: Jobs) -> Jobs:
    """The same, when they have been listed."""
    await shown.all_shown()
    return shown


@pytest.mark.parametrize("sign", [{"ready": 1}, {"succeeded": 1}], ids=str)
async def test_first_pod_is_measured_once(harness: Harness, pods: Jobs, sign: Any) -> None:
    await pods.show()
    await pods.show(active=1, ready=0, failed=1)
    assert harness.measured(RAN) == []
    for name in "jjk":
        await pods.show(name, **sign)
    assert harness.measured(RAN) == [10, 1]


async def test_first_pod_before_the_event_of_its_job_set_is_counted(
    harness: Harness, pods: Jobs
) -> None:
    harness.sets.delete(an_object("s", owner="1"))
    harness.jobs.put(a_job("2"))
    await pods.show(ready=1)  # of the one that was there before
    await pods.show("k", owner="t", ready=1)
    assert harness.measured(RAN) == []
    await harness.clock.advance(5)
    harness.sets.put(an_object("t", owner="2"))
    assert harness.measured(RAN) == [15, 1]
    await harness.clock.advance(5)
    await pods.show("k", owner="t", succeeded=1)
    assert harness.measured(RAN) == [15, 1], "not the length of the training"


async def test_first_pod_of_a_recreated_job_set_is_counted(harness: Harness, pods: Jobs) -> None:
    await pods.show(owner="t", ready=1)
    assert harness.measured(RAN) == []
    harness.sets.put(an_object("t", owner="1"))
    assert harness.measured(RAN) == [10, 1]


async def test_pods_of_an_earlier_job_set_do_not_count(harness: Harness, pods: Jobs) -> None:
    await pods.show(owner="earlier", ready=1)
    harness.sets.put(an_object("s", owner="1"))
    assert harness.measured(RAN) == []


async def test_pods_of_an_earlier_job_do_not_count(harness: Harness, pods: Jobs) -> None:
    harness.jobs.put(a_job("2"))
    await pods.show(ready=1)
    harness.sets.put(an_object("s", owner="1"))
    assert harness.measured(RAN) == []


async def test_pods_are_ignored_while_job_sets_are_not_cached(harness: Harness, pods: Jobs) -> None:
    del harness.cache.informers[JOB_SETS]
    await pods.show(ready=1)
    assert harness.measured(RAN) == []


async def test_job_with_an_invalid_label_is_ignored(harness: Harness, pods: Jobs) -> None:
    job = an_object("j", owner="s", status={"ready": 1})
    del job["metadata"]["labels"]
    job["metadata"]["resourceVersion"] = "9"
    await pods.send(Upserted(job, added=True))
    assert harness.measured(RAN) == []


async def test_pods_that_ran_before_are_not_measured(harness: Harness, shown: Jobs) -> None:
    await shown.show(ready=1)
    await shown.all_shown()
    await shown.show("k", ready=1)
    harness.sets.put(an_object("s", owner="1"))
    assert harness.measured(RAN) == []


async def test_pods_that_the_status_reports_first_are_not_measured(
    harness: Harness, pods: Jobs
) -> None:
    """As when Jobs could not be read for some time."""
    row = {"name": "node", "ready": 1, "succeeded": 0, "failed": 0, "active": 1}
    harness.jobs.put({**a_job(), "status": {"jobsStatus": [row]}})
    await pods.show(succeeded=1)
    assert harness.measured(RAN) == []


def job_set(**numbers: int) -> Manifest:
    rows = [{"name": "node", **numbers}]
    return {**an_object("s", owner="1"), "status": {"replicatedJobsStatus": rows}}


@pytest.mark.parametrize(
    ("policy", "conditions", "is_reported"),
    [
        ("OnFailure", {"FailureTarget": "True"}, True),
        ("OnFailure", {"FailureTarget": "False"}, False),
        ("OnFailure", {"FailureTarget": "True", "Failed": "True"}, False),
        ("OnFailure", {}, False),
        ("Never", {"FailureTarget": "True"}, False),
    ],
)
def test_job_is_reported_before_its_pods_are_deleted(
    policy: str, conditions: dict[str, str], is_reported: bool
) -> None:
    found = [{"type": kind, "status": status} for kind, status in conditions.items()]
    spec = {"template": {"spec": {"restartPolicy": policy}}}
    assert loses_its_pods({"spec": spec, "status": {"conditions": found}}) == is_reported


@pytest.mark.parametrize(("owner", "is_reported"), [("s", True), ("other", False)])
async def test_only_failing_jobs_of_job_sets_are_reported(
    harness: Harness, owner: str, is_reported: bool
) -> None:
    reported = list[Any]()
    jobs = Jobs()
    watching = job_watch(harness, jobs, on_failing=reported.append)
    async with harness.leading(), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watching.run())
        harness.sets.put(an_object("s", owner="1"))
        await jobs.all_shown()
        job = an_object("j", owner, status={})
        job["metadata"] |= {"resourceVersion": "7"}
        job["spec"] = {"template": {"spec": {"restartPolicy": "OnFailure"}}}
        job["status"] = {"conditions": [{"type": "FailureTarget", "status": "True"}]}
        await jobs.send(Upserted(job, added=True))
        task.cancel()
    assert [each["metadata"]["name"] for each in reported] == (
        [job["metadata"]["name"]] * is_reported
    )


async def test_ready_pods_are_not_known_before_all_jobs_have_been_listed(harness: Harness) -> None:
    jobs, reported = Jobs(), list[ObjectKey]()
    watching = job_watch(harness, jobs, reported.append)
    assert watching.ready_pods(job_set(active=1)) is None
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watching.run())
        await at_rest()
        assert watching.ready_pods(job_set(active=1)) is None
        assert watching.ready_pods(job_set(active=1, ready=1)) == {}
        assert reported == []
        await jobs.all_shown()
        assert reported == [KEY]
        assert watching.ready_pods(job_set(active=1)) == {}
        task.cancel()


async def test_jobs_that_are_not_readable_count_whole(harness: Harness, started: list[str]) -> None:
    reported = list[ObjectKey]()
    refusing = RefusingClient(ForbiddenError(403, "Forbidden", "jobs is forbidden"))
    watching = job_watch(harness, refusing, reported.append)
    assert watching.ready_pods(job_set(active=1)) is None
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watching.run())
        await at_rest()
        assert (reported, watching.ready_pods(job_set(active=1))) == ([KEY], {})
        await harness.clock.advance(RECHECK_AFTER)
        assert watching.ready_pods(job_set(active=1)) is None
        assert started == ["informer of Job.batch"]
        task.cancel()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The informers that were started."""
    names: list[str] = []

    async def run(self: Any, _ready: Callable[[], None], stop: asyncio.Event) -> None:
        names.append(self.name)
        await stop.wait()

    monkeypatch.setattr("kftrainer.machinery.cache.informer.Informer.run", run)
    return names


async def test_missing_permission_is_logged_once_and_checked_periodically(
    harness: Harness, started: list[str]
) -> None:
    refusals = [ForbiddenError(403, "Forbidden", "jobs is forbidden") for _ in range(3)]
    with capture_logs() as logged:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(job_watch(harness, RefusingClient(*refusals)).run())
            await harness.clock.advance(2 * RECHECK_AFTER)
            assert started == []
            assert [entry["log_level"] for entry in logged] == ["warning", "debug", "debug"]
            assert logged[0]["consequence"].startswith(f"{RAN} stays empty")
            await harness.clock.advance(RECHECK_AFTER)
            assert started == ["informer of Job.batch"]
            task.cancel()


async def test_unreachable_server_is_retried_by_the_informer(
    harness: Harness, started: list[str]
) -> None:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(job_watch(harness, RefusingClient(TransportError("gone"))).run())
        await at_rest()
        assert started == ["informer of Job.batch"]
        task.cancel()


@pytest.mark.parametrize("part", ["_has_had_pods", "_slim", "_index_job_set"])
async def test_bug_in_the_job_watch_only_ends_that_watch(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def broken(_: Any) -> Any:
        raise KeyError(part)

    monkeypatch.setattr(f"kftrainer.controllers.metrics.job_watch.{part}", broken)
    jobs = Jobs()
    with capture_logs() as logged:
        async with asyncio.timeout(10), harness.leading(), asyncio.TaskGroup() as tasks:
            harness.jobs.put(a_job())
            tasks.create_task(job_watch(harness, jobs).run())
            await jobs.show(ready=1)
    [entry] = [each for each in logged if each["log_level"] == "error"]
    assert entry["event"] == "jobs_watch_failed"
    assert entry["consequence"].startswith(f"{RAN} is not updated any more")


async def test_counts_are_updated_after_the_job_watch_failed(harness: Harness) -> None:
    harness.pods.gives_up = True
    async with harness.leading():
        harness.jobs.put(a_job())
        harness.sets.put(an_object("s", owner="1"))
        assert harness.measured(CREATION_SECONDS) == [10, 1]
        assert len(harness.series("kftrainer_trainjobs")) == 1
