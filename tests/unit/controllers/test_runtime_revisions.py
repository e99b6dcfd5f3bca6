"""Creation of revisions by many TrainJobs at once, and deletion of those that none records."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
import pytest

from kftrainer.api.resources import CONTROLLER_REVISIONS, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.api.runtime_revisions import content_of, revision_manifest, revision_name
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.controllers.runtime_revisions import GRACE, RevisionCollector
from kftrainer.controllers.trainjob.runtime_revisions import RuntimeRevisions
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ConflictError
from kftrainer.kube.client.transport import Response
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.machinery.cache.cached_object import CachedObject
from kftrainer.machinery.controller.reconcile import DONE, Result
from tests.support.fake_clock import FakeClock
from tests.support.object_server import refusal
from tests.support.objects import Object, runtime, train_job

RUNTIME = TRAINING_RUNTIMES.decode({**runtime(), "metadata": {"name": "torch", "generation": 3}})
NAME = revision_name(content_of(RUNTIME))
KEY = ObjectKey("team", NAME)
REQUEST = ObjectKey("", "team")


class Server:
    """A Transport to a server with ControllerRevisions and one page of TrainJobs."""

    def __init__(self) -> None:
        self.revisions: dict[str, Object] = {}
        self.jobs: list[Object] = []
        self.requests: list[str] = []
        self.bodies: list[Any] = []
        self.during: Callable[[str], None] = lambda _: None  # called with each method
        self.is_full = False  # a quota does not permit more revisions

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, **_: object
    ) -> Response:
        name = path.rpartition("/")[2]
        self.requests.append(f"{method} {name}")
        await asyncio.sleep(0)
        if body is not None:
            self.bodies.append(orjson.loads(body))
        self.during(f"{method} {name}")
        if method == "POST":
            return self._create(self.bodies[-1])
        if name == "trainjobs":
            page = {"metadata": {"resourceVersion": "1"}, "items": self.jobs}
            return Response(200, {}, orjson.dumps(page))
        if name not in self.revisions:
            return refusal(404, "NotFound", name)
        found = self.revisions.pop(name) if method == "DELETE" else self.revisions[name]
        return Response(200, {}, orjson.dumps(found))

    def _create(self, manifest: Object) -> Response:
        name = manifest["metadata"]["name"]
        if self.is_full:
            return refusal(403, "Forbidden", name)
        if name in self.revisions:
            return refusal(409, "AlreadyExists", name)
        return Response(201, {}, orjson.dumps(self.put(manifest)))

    def put(self, manifest: Object) -> Object:
        """Store an object."""
        added = {"uid": f"uid-{len(self.revisions)}", "resourceVersion": "7"}
        stored = {**manifest, "metadata": {**manifest["metadata"], **added}}
        self.revisions[manifest["metadata"]["name"]] = stored
        return stored

    def stream(self, path: str, **_: object) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""


class Cached:
    """A Cache of what the server had at some time; an informer of both kinds at once."""

    has_synced = True

    def __init__(self, server: Server) -> None:
        self._server = server
        self.recorded: set[str] = set()
        self.is_current = True

    def informer(self, _: Resource[Any]) -> "Cached":
        return self

    def is_readable(self, _: str) -> bool:
        return True

    def version_in(self, _: str) -> str:
        return "9" if self.is_current else "0"

    def cached_object(self, key: ObjectKey) -> CachedObject[Any] | None:
        found = self._server.revisions.get(key.name) if self.is_current else None
        return None if found is None else CachedObject(key, "7", found, CONTROLLER_REVISIONS.decode)

    def index_keys(self, *_: object) -> list[ObjectKey]:
        return [ObjectKey("team", each) for each in self._server.revisions]

    def has_index(self, _resource: object, _index: str, value: str) -> bool:
        return value in self.recorded


class Setup:
    """A collector, and the revisions that it shares with the reconciler of TrainJobs."""

    def __init__(self) -> None:
        self.clock, self.server = FakeClock(), Server()
        self.cache = Cached(self.server)
        client = Client(self.server)
        cache: Any = self.cache
        view = OverlayCache(cache, [TRAIN_JOBS, CONTROLLER_REVISIONS], {})
        self.revisions = RuntimeRevisions(client, view, clock=self.clock)
        self.collector = RevisionCollector(client, cache, self.revisions, clock=self.clock)

    def store(self, **changes: Any) -> None:
        """Store the revision on the server."""
        self.server.put({**revision_manifest(content_of(RUNTIME), "team", NAME, 1), **changes})

    async def collect_later(self) -> Result:
        """Find the unused revisions, and delete them after the grace period."""
        first = await self.collector.reconcile(REQUEST)
        assert first == Result(requeue_after=GRACE)
        assert self.server.requests == []
        await self.clock.advance(GRACE + 1)
        return await self.collector.reconcile(REQUEST)


@pytest.fixture
def setup() -> Setup:
    return Setup()


def job(name: str = "train", recorded: str | None = None) -> Object:
    manifest = train_job(name)
    manifest["metadata"] = {"name": name, "namespace": "team", "uid": name}
    if recorded:
        manifest["status"] = {"runtimeRevision": recorded}
    return manifest


async def test_jobs_that_begin_at_once_create_one_revision(setup: Setup) -> None:
    setup.cache.is_current = False
    jobs = [TrainJob.parse(job(f"job-{number}")) for number in range(20)]
    async with asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(setup.revisions.ensure(each, RUNTIME)) for each in jobs]
    assert {each.result() for each in begun} == {NAME}
    assert setup.server.requests == ["POST controllerrevisions"]
    created = setup.server.bodies[0]
    assert created["revision"] == 3
    assert created["metadata"] == {
        "name": NAME,
        "namespace": "team",
        "labels": {"trainer.kubeflow.org/runtime-kind": "TrainingRuntime"},
    }


async def test_unused_revision_is_deleted_with_its_uid_and_version(setup: Setup) -> None:
    setup.store()
    assert await setup.collect_later() == DONE
    assert setup.server.requests == ["GET trainjobs", f"GET {NAME}", f"DELETE {NAME}"]
    assert setup.server.bodies[-1]["preconditions"] == {"uid": "uid-0", "resourceVersion": "7"}


async def test_revision_of_a_job_that_is_not_cached_is_kept(setup: Setup) -> None:
    setup.store()
    setup.server.jobs.append(job(recorded=NAME))
    assert (await setup.collect_later()).requeue_after == pytest.approx(GRACE)
    assert setup.server.requests == ["GET trainjobs"]


async def test_revision_with_which_a_job_begins_during_the_checks_is_kept(setup: Setup) -> None:
    setup.store()

    def begin(request: str) -> None:
        if request == f"GET {NAME}":
            with pytest.raises(StopIteration) as end:  # the revision is cached: nothing is awaited
                setup.revisions.ensure(TrainJob.parse(job()), RUNTIME).send(None)
            assert end.value.value == NAME

    setup.server.during = begin
    assert (await setup.collect_later()).requeue_after == pytest.approx(GRACE)
    assert f"DELETE {NAME}" not in setup.server.requests


async def test_no_job_begins_with_a_revision_while_it_is_deleted(setup: Setup) -> None:
    setup.store()
    with setup.revisions.deleting(KEY), pytest.raises(ConflictError):
        await setup.revisions.ensure(TrainJob.parse(job()), RUNTIME)
    assert await setup.revisions.ensure(TrainJob.parse(job()), RUNTIME) == NAME


async def test_revision_that_a_job_is_about_to_record_is_kept(setup: Setup) -> None:
    setup.store()
    setup.revisions.begin(TrainJob.parse(job()), NAME)
    assert (await setup.collect_later()).requeue_after is not None
    assert setup.server.requests == []


async def test_object_of_another_client_is_read_once_and_kept(setup: Setup) -> None:
    setup.store(data={"other": True})
    assert await setup.collect_later() == DONE
    assert await setup.collector.reconcile(REQUEST) == DONE
    assert setup.server.requests == ["GET trainjobs", f"GET {NAME}"]


async def test_failed_restoration_is_tried_again_with_growing_pauses(setup: Setup) -> None:
    """The TrainJob is planned from the runtime meanwhile, so the failure must not block it."""
    setup.server.is_full = True
    train = TrainJob.parse(job(recorded=NAME))

    async def restore() -> float | None:
        return await setup.revisions.restore(train, RUNTIME)

    assert [await restore(), await restore()] == [1.0, 1.0]
    await setup.clock.advance(1)
    assert [await restore(), await restore()] == [2.0, 2.0]
    assert setup.server.requests == ["POST controllerrevisions"] * 2
    setup.server.is_full = False
    await setup.clock.advance(2)
    assert await restore() is None
    assert list(setup.server.revisions) == [NAME]


async def test_restoration_stops_when_the_lease_is_lost(setup: Setup) -> None:
    def lose(_: str) -> None:
        raise WriteGuardError

    setup.server.during = lose
    with pytest.raises(WriteGuardError):
        await setup.revisions.restore(TrainJob.parse(job(recorded=NAME)), RUNTIME)
