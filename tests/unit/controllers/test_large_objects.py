"""Large objects are read while they are worked on, one at a time, and with pauses."""

import asyncio
import math
from typing import Any

import pytest

from kftrainer.api.resources import (
    CONTROLLER_REVISIONS,
    JOB_SETS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from kftrainer.controllers.large_objects import (
    ABSENT_AFTER,
    BUSY,
    REDUCTIONS,
    LargeObjectReconciler,
    Schedule,
)
from kftrainer.controllers.overlay_cache import OverlayCache
from kftrainer.kube.client.client import Page
from kftrainer.kube.client.errors import KubeError, NotFoundError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.cache.cached_object import CachedObject, CachedObjectFactory
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Request, Result
from tests.support.fake_clock import FakeClock

KEY = ObjectKey("team", "train")
RUNTIME = ObjectKey("team", "torch")
REVISION = ObjectKey("team", "torch-1")
LARGE = "x" * 50_000


def manifest(resource: Resource[Any], key: ObjectKey, **spec: Any) -> Manifest:
    metadata = {"name": key.name, "namespace": key.namespace, "resourceVersion": "5"}
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**head, "metadata": metadata, "spec": spec}


SMALL_JOB = manifest(
    TRAIN_JOBS, KEY, runtimeRef={"name": "torch", "kind": "TrainingRuntime"}, suspend=True
)
LARGE_JOB = {**SMALL_JOB, "spec": {**SMALL_JOB["spec"], "trainer": {"args": [LARGE]}}}
LARGE_JOB_SET = manifest(JOB_SETS, KEY, suspend=True, a=LARGE)
LARGE_REVISION = manifest(CONTROLLER_REVISIONS, REVISION, a=LARGE)
LARGE_RUNTIME = manifest(TRAINING_RUNTIMES, RUNTIME, a=LARGE)


class HeldObjects:
    """A cache that has read everything, and the server that it has read it from."""

    def __init__(self, *objects: Manifest) -> None:
        self.stored = {(each["kind"], each["metadata"]["name"]): each for each in objects}
        self._entries = dict(self.stored)
        self._kind = ""
        self.read: list[str] = []
        self.failing = False

    def informer(self, resource: Resource[Any]) -> "HeldObjects":
        self._kind = resource.kind
        self._factory: CachedObjectFactory[Any] = CachedObjectFactory(
            resource, None, {}, reduction=REDUCTIONS.get(resource)
        )
        return self

    def version_in(self, _: str) -> str:
        return "5"

    def cached_object(self, key: ObjectKey) -> CachedObject[Any] | None:
        found = self._entries.get((self._kind, key.name))
        return None if found is None else self._factory.create(found)

    async def get(self, resource: Resource[Any], key: ObjectKey) -> Manifest:
        self.read.append(resource.kind)
        if self.failing:
            raise KubeError("the server cannot be reached")
        try:
            return self.stored[resource.kind, key.name]
        except KeyError:
            raise NotFoundError(404, "NotFound", "not found") from None

    async def list(self, resource: Resource[Any], *, namespace: str, field_selector: str) -> Page:
        name = field_selector.removeprefix("metadata.name=")
        try:
            return Page([await self.get(resource, ObjectKey(namespace, name))], "5")
        except NotFoundError:
            return Page([], "5")


class Reads:
    """A reconciler that reads what planning reads."""

    def __init__(self, view: OverlayCache, clock: FakeClock) -> None:
        self._view = view
        self._clock = clock
        self.found: list[list[Manifest | None]] = []
        self.duration = 0.0

    async def reconcile(self, request: Request) -> Result:
        await self._clock.sleep(self.duration)
        requested: tuple[tuple[Resource[Any], ObjectKey], ...] = (
            (TRAIN_JOBS, request),
            (JOB_SETS, request),
            (TRAINING_RUNTIMES, RUNTIME),
        )
        self.found.append([self._view.manifest(*what) for what in requested])
        return DONE


class Setup:
    """A reconciler of large objects, and all that it works with."""

    def __init__(self, *objects: Manifest) -> None:
        self.clock = FakeClock()
        self.held = HeldObjects(*objects)
        self.begun: ObjectKey | None = None
        kinds = (TRAIN_JOBS, JOB_SETS, TRAINING_RUNTIMES, CONTROLLER_REVISIONS)
        self.view = OverlayCache(self.held, kinds, {}, REDUCTIONS, complete_kinds=REDUCTIONS)  # type: ignore[arg-type]
        self.reads = Reads(self.view, self.clock)
        self.reconciler = LargeObjectReconciler(
            self.reads,
            self.held,  # type: ignore[arg-type]
            self.view,
            clock=self.clock,
            begun_revision=lambda _: self.begun,
        )


@pytest.mark.parametrize(
    ("objects", "read"),
    [
        ((SMALL_JOB,), []),
        ((LARGE_JOB,), ["TrainJob"]),
        ((SMALL_JOB, LARGE_JOB_SET), ["JobSet"]),
        ((SMALL_JOB, LARGE_RUNTIME), ["TrainingRuntime"]),
        ((LARGE_JOB, LARGE_JOB_SET, LARGE_RUNTIME), ["TrainJob", "JobSet", "TrainingRuntime"]),
    ],
)
async def test_large_objects_are_read_once_for_a_reconcile_that_finds_them_whole(
    objects: tuple[Manifest, ...], read: list[str]
) -> None:
    setup = Setup(*objects)
    assert await setup.reconciler.reconcile(KEY) == DONE
    [found] = setup.reads.found
    assert [each for each in found if each is not None] == list(objects)
    assert setup.held.read == read


async def test_large_revision_that_the_status_does_not_record_yet_is_read() -> None:
    setup = Setup(SMALL_JOB, LARGE_REVISION)
    assert await setup.reconciler.reconcile(KEY) == DONE
    assert setup.held.read == []
    setup.begun = REVISION
    assert await setup.reconciler.reconcile(KEY) == DONE
    assert setup.held.read == ["ControllerRevision"]


async def test_large_trainjob_that_was_deleted_is_not_reconciled() -> None:
    setup = Setup(LARGE_JOB)
    setup.held.stored.clear()
    assert await setup.reconciler.reconcile(KEY) == DONE
    assert setup.reads.found == []


async def test_large_jobset_that_was_deleted_is_not_found_by_the_reconcile() -> None:
    setup = Setup(SMALL_JOB, LARGE_JOB_SET)
    del setup.held.stored["JobSet", KEY.name]
    assert await setup.reconciler.reconcile(KEY) == DONE
    assert setup.reads.found == [[SMALL_JOB, None, None]]


async def test_large_object_that_cannot_be_read_fails_the_reconcile() -> None:
    setup = Setup(LARGE_JOB)
    setup.held.failing = True
    with pytest.raises(ReconcileError, match="cannot read a large object: ") as raised:
        await setup.reconciler.reconcile(KEY)
    assert raised.value.max_delay == math.inf
    assert setup.reads.found == []


async def test_large_object_does_not_keep_a_worker_waiting_for_another() -> None:
    other = {**LARGE_JOB, "metadata": {**LARGE_JOB["metadata"], "name": "b", "namespace": "else"}}
    setup = Setup(LARGE_JOB, other)
    setup.reads.duration = 1.0
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(setup.reconciler.reconcile(KEY))
        await setup.clock.advance(0.5)
        second = await setup.reconciler.reconcile(ObjectKey("else", "b"))
        assert second == Result(requeue_after=BUSY)
        await setup.clock.advance(1)
    assert first.result() == DONE


async def test_large_objects_of_a_namespace_take_turns_with_pauses_longer_than_the_work() -> None:
    clock = FakeClock()
    schedule = Schedule(clock)
    first, second, third = (ObjectKey("team", name) for name in "abc")
    assert schedule.delay(first) == 0
    await clock.advance(0.1)  # of work
    schedule.worked(first, 0.1)
    assert schedule.delay(second) == pytest.approx(0.9)
    assert schedule.delay(third) == pytest.approx(1.8)
    assert schedule.delay(ObjectKey("other", "a")) == 0, "other namespaces do not wait"
    await clock.advance(0.1)
    assert schedule.delay(second) == pytest.approx(0.8), "an event does not cost the turn"
    await clock.advance(0.81)
    assert schedule.delay(second) == 0
    assert schedule.delay(third) > 0


async def test_large_object_of_another_namespace_is_next_for_any_number_of_due_objects() -> None:
    """The work takes longer than the longest pause, so that all objects of the tenant are due."""
    clock = FakeClock()
    schedule = Schedule(clock)
    hostile = [ObjectKey("hostile", f"job-{number}") for number in range(30)]
    victim = ObjectKey("team", "train")
    for each in hostile:
        schedule.delay(each)
    served = list[ObjectKey]()
    for _ in range(4):
        for _ in range(3):  # every object tries again while one is processed
            await clock.advance(BUSY * 2)
            for each in (*hostile, victim):
                assert each in served or schedule.delay(each, is_busy=True) > 0
        started = next(each for each in (*hostile, victim) if schedule.delay(each) == 0)
        served.append(started)
        await clock.advance(2.5)
        schedule.worked(started, 2.5)
        if victim in served:
            break
    assert victim in served[:2]


async def test_slot_is_kept_while_another_object_is_processed() -> None:
    clock = FakeClock()
    schedule = Schedule(clock)
    first, second = (ObjectKey("team", name) for name in "ab")
    assert schedule.delay(first) == 0
    schedule.worked(first, 0.1)
    assert schedule.delay(second) == pytest.approx(0.9)
    await clock.advance(0.91)
    assert schedule.delay(second, is_busy=True) == BUSY
    await clock.advance(BUSY)
    assert schedule.delay(second) == 0


async def test_namespace_that_stopped_trying_does_not_keep_its_turn() -> None:
    clock = FakeClock()
    schedule = Schedule(clock)
    is_deleted, other = ObjectKey("gone", "a"), ObjectKey("other", "a")
    assert schedule.delay(other) == 0
    schedule.worked(other, 0.001)
    await clock.advance(0.5)
    assert schedule.delay(is_deleted, is_busy=True) > 0
    assert schedule.delay(other, is_busy=True) > 0
    assert schedule.delay(other) > 0, "the other namespace was never served"
    await clock.advance(ABSENT_AFTER + 0.1)
    assert schedule.delay(other) == 0


async def test_object_without_a_slot_does_not_use_the_turn_of_its_namespace() -> None:
    """Small TrainJobs of a namespace are reconciled all the time."""
    clock = FakeClock()
    schedule = Schedule(clock)
    hostile, victim = ObjectKey("hostile", "a"), ObjectKey("team", "a")
    assert schedule.delay(hostile) == 0
    assert schedule.delay(victim, is_busy=True) > 0
    schedule.forget(ObjectKey("team", "small"))
    await clock.advance(0.1)
    assert schedule.delay(ObjectKey("hostile", "b")) > 0
    assert schedule.delay(victim) == 0
