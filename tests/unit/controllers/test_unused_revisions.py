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
from kftrainer.controllers.trainjob.runtime_revisions import REMEMBERED, RuntimeRevisions
from kftrainer.controllers.unused_revisions import (
    GRACE,
    REVISION_INDEXES,
    RevisionCollector,
)
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ConflictError
from kftrainer.kube.client.transport import Response
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.kube.objects.resource import ObjectKey, Resource
from kftrainer.machinery.cache.cached_object import CachedObject, CachedObjectFactory
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
        self.created = 0
        self.refused: set[str] = set()  # names of revisions that cannot be deleted
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
        if method == "DELETE" and name in self.refused:
            return refusal(403, "Forbidden", name)
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
        self.created += 1
        added = {"uid": f"uid-{self.created - 1}", "resourceVersion": str(self.created + 6)}
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
        self.stale: dict[str, Object] | None = None  # objects that are read instead of the current

    def informer(self, _: Resource[Any]) -> "Cached":
        return self

    def is_readable(self, _: str) -> bool:
        return True

    def version_in(self, _: str) -> str:
        return "9" if self.is_current and self.stale is None else "0"

    def cached_object(self, key: ObjectKey) -> CachedObject[Any] | None:
        held = self._server.revisions if self.stale is None else self.stale
        found = held.get(key.name) if self.is_current else None
        version = "" if found is None else found["metadata"]["resourceVersion"]
        decode = CONTROLLER_REVISIONS.decode
        return None if found is None else CachedObject(key, version, found, decode)

    def index_keys(self, _: object, index: str, value: str) -> list[ObjectKey]:
        factory = CachedObjectFactory(CONTROLLER_REVISIONS, None, {index: REVISION_INDEXES[index]})
        entries = map(factory.create, self._server.revisions.values())
        return [each.key for each in entries if value in each.index_values[0]]

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
    with setup.revisions.deleting(KEY, "uid-0"), pytest.raises(ConflictError):
        await setup.revisions.ensure(TrainJob.parse(job()), RUNTIME)
    assert await setup.revisions.ensure(TrainJob.parse(job()), RUNTIME) == NAME
    assert setup.server.requests == ["POST controllerrevisions", f"GET {NAME}"]


async def test_revision_that_a_job_is_about_to_record_is_kept(setup: Setup) -> None:
    setup.store()
    setup.revisions.begin(TrainJob.parse(job()), NAME)
    assert (await setup.collect_later()).requeue_after is not None
    assert setup.server.requests == []


def store_others(setup: Setup, *, name: str = NAME, **changes: Any) -> None:
    """Store an object of another client with our label."""
    manifest = revision_manifest(content_of(RUNTIME), "team", name, 1)
    metadata = {**manifest["metadata"], **changes.pop("metadata", {})}
    setup.server.put({**manifest, **changes, "metadata": metadata})


def deep(levels: int) -> Object:
    """Return content of that many levels."""
    value: Object = {}
    for _ in range(levels):
        value = {"a": value}
    return {"metadata": {"name": "torch"}, "spec": value}


OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "web"}


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"other": True}},
        {"data": deep(300)},
        {"data": deep(900)},
        {"metadata": {"ownerReferences": [OWNER]}},
        {"name": "web-6c7b9d8f5d"},
        {"metadata": {"uid": 3, "labels": 3}},
    ],
)
async def test_object_of_another_client_costs_no_request(setup: Setup, changes: Object) -> None:
    store_others(setup, **changes)
    for _ in range(3):
        assert await setup.collector.reconcile(REQUEST) == DONE
        await setup.clock.advance(GRACE + 1)
    assert setup.server.requests == []


async def test_object_with_owners_is_not_used(setup: Setup) -> None:
    store_others(setup, metadata={"ownerReferences": [OWNER]})
    assert await setup.revisions.ensure(TrainJob.parse(job()), RUNTIME) == f"{NAME}-1"


async def test_train_jobs_are_listed_at_most_once_in_the_grace_period(setup: Setup) -> None:
    setup.store()
    setup.server.jobs.append(job(recorded=NAME))
    await setup.collector.reconcile(REQUEST)
    await setup.clock.advance(GRACE / 2)
    setup.server.put({**revision_manifest(content_of(RUNTIME), "team", f"{NAME}-1", 1)})
    await setup.collector.reconcile(REQUEST)
    for _ in range(9):
        await setup.clock.advance(GRACE / 6)
        await setup.collector.reconcile(REQUEST)
    assert setup.server.requests.count("GET trainjobs") == 2
    assert [each for each in setup.server.requests if each.startswith("DELETE")] == [
        f"DELETE {NAME}-1"
    ]


async def test_revision_is_kept_between_attempts_to_create_a_rejected_job_set(setup: Setup) -> None:
    setup.store()
    rejected = TrainJob.parse(job())
    setup.revisions.begin(rejected, await setup.revisions.ensure(rejected, RUNTIME))
    setup.revisions.abandon(rejected)
    await setup.collector.reconcile(REQUEST)
    for _ in range(9):
        await setup.clock.advance(GRACE + 1)
        await setup.collector.reconcile(REQUEST)
    assert setup.server.requests == []
    await setup.clock.advance(REMEMBERED - 9 * (GRACE + 1) + 1)
    await setup.collector.reconcile(REQUEST)
    await setup.clock.advance(GRACE + 1)
    await setup.collector.reconcile(REQUEST)
    assert f"DELETE {NAME}" in setup.server.requests


async def test_revision_that_cannot_be_deleted_does_not_stop_others(setup: Setup) -> None:
    names = [NAME, f"{NAME}-1", f"{NAME}-2"]
    for each in names:
        setup.server.put({**revision_manifest(content_of(RUNTIME), "team", each, 1)})
    setup.server.refused.add(NAME)
    assert (await setup.collect_later()).requeue_after == pytest.approx(GRACE)
    assert list(setup.server.revisions) == [NAME]
    setup.server.refused.clear()
    await setup.clock.advance(GRACE + 1)
    assert await setup.collector.reconcile(REQUEST) == DONE
    assert not setup.server.revisions


async def test_revision_that_is_deleted_but_still_cached_is_created_again(setup: Setup) -> None:
    setup.store()
    stale = dict(setup.server.revisions)
    assert await setup.collect_later() == DONE
    setup.cache.stale = stale
    setup.server.requests.clear()
    assert await setup.revisions.ensure(TrainJob.parse(job()), RUNTIME) == NAME
    assert setup.server.requests == ["POST controllerrevisions"]
    assert NAME in setup.server.revisions
    assert await setup.revisions.ensure(TrainJob.parse(job("other")), RUNTIME) == NAME
    assert len(setup.server.requests) == 1


async def test_revision_is_used_again_if_its_deletion_failed(setup: Setup) -> None:
    setup.store()
    setup.server.refused.add(NAME)
    await setup.collect_later()
    setup.server.requests.clear()
    assert await setup.revisions.ensure(TrainJob.parse(job()), RUNTIME) == NAME
    assert setup.server.requests == ["POST controllerrevisions", f"GET {NAME}"]
    assert await setup.revisions.ensure(TrainJob.parse(job("other")), RUNTIME) == NAME
    assert len(setup.server.requests) == 2


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
