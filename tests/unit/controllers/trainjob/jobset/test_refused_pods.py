from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import pytest

from kftrainer.api.resources import JOB_SETS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.trainjob.jobset.refused_pods import (
    ENQUEUE_EVERY,
    LONGEST_TEXT,
    Refusal,
    RefusedPods,
    job_set_names,
    lacks_pods,
    refusal_of,
)
from kftrainer.kube.client.client import Client, Page
from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.objects.resource import ObjectKey
from tests.support.fake_clock import FakeClock
from tests.support.objects import Object, train_job

if TYPE_CHECKING:
    from kftrainer.machinery.cache.cache import Cache

KEY = ObjectKey("team", "train")
POD_SECURITY = (
    'Error creating: pods "train-node-0-1-x7k2p" is forbidden: violates PodSecurity '
    '"restricted:latest": runAsNonRoot != true'
)
REPORTED = (
    'pods of Job train-node-0 are not created: pods "train-node-0-*" is forbidden: violates '
    'PodSecurity "restricted:latest": runAsNonRoot != true'
)


def event(message: str = POD_SECURITY, kind: str = "Job", **more: Any) -> Object:
    name, uid = ("train-node-0", "job-1") if kind == "Job" else ("train", "set-1")
    regarding = {"kind": kind, "namespace": "team", "name": name, "uid": uid}
    metadata = {"name": "e", "namespace": "team"}
    return {"metadata": metadata, "involvedObject": regarding, "message": message, **more}


def refusal(message: str = POD_SECURITY, kind: str = "Job", **more: Any) -> Refusal:
    found = refusal_of(event(message, kind, **more))
    assert found is not None
    return found


def job(active: int = 0, owner: str = "set-1", uid: str = "job-1", **spec: Any) -> Object:
    reference = {"uid": owner, "controller": True}
    metadata = {"name": "train-node-0", "uid": uid, "ownerReferences": [reference]}
    return {
        "metadata": metadata,
        "spec": {"parallelism": 2, "completions": 2, **spec},
        "status": {"active": active},
    }


def trained(*conditions: Object) -> TrainJob:
    return TrainJob.parse({**train_job("train"), "status": {"conditions": list(conditions)}})


JOB_SET: Object = {"metadata": {"namespace": "team", "name": "train", "uid": "set-1"}}


class JobSets:
    """A cache that holds the JobSets of some names."""

    def __init__(self, *found: str) -> None:
        self._found = found

    def informer(self, resource: object) -> "JobSets":
        assert resource is JOB_SETS
        return self

    def cached_object(self, key: ObjectKey) -> object:
        return key if key.name in self._found else None


class Jobs:
    """A client that lists these Jobs, or fails."""

    def __init__(self, *items: Object, error: Exception | None = None) -> None:
        self.items = items
        self.error = error
        self.selectors: list[str] = []

    async def list(self, _resource: object, *, namespace: str, field_selector: str) -> Page:
        assert namespace == "team"
        self.selectors.append(field_selector)
        if self.error is not None:
            raise self.error
        return Page(list(self.items), "1")


class Harness:
    """The objects and results of a test."""

    def __init__(self, *jobs: Object, error: Exception | None = None, capacity: int = 10) -> None:
        self.clock = FakeClock()
        self.jobs = Jobs(*jobs, error=error)
        self.enqueued: list[ObjectKey] = []
        self.refused = RefusedPods(
            cast("Client", self.jobs),
            cast("Cache", JobSets("train", "other", "train-node")),
            clock=self.clock,
            enqueue=self.enqueue,
            capacity=capacity,
        )

    def enqueue(self, requests: Iterable[ObjectKey]) -> None:
        self.enqueued += requests

    async def message(self, *conditions: Object) -> str | None:
        error = await self.refused.check(trained(*conditions), JOB_SET)
        assert error is None or error.reason == "PodsNotCreated"
        return None if error is None else str(error)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (POD_SECURITY, REPORTED),
        (f"(combined from similar events): {POD_SECURITY}", REPORTED),
        (
            'Error creating: pods "train-node-0-" is forbidden: error looking up service account',
            'pods of Job train-node-0 are not created: pods "train-node-0-*" is forbidden: error '
            "looking up service account",
        ),
        (
            'Pod "train-node-0-0-abcde" is invalid: spec: Invalid value: {"env": "secret"}: no',
            'pods of Job train-node-0 are not created: Pod "train-node-0-*" is invalid: spec: '
            "Invalid value: (omitted): no",
        ),
    ],
)
def test_message_has_no_volatile_parts_and_no_values(message: str, expected: str) -> None:
    assert refusal(message).message == expected


def test_text_of_an_event_is_cut() -> None:
    assert len(refusal("x" * 100_000).text) == LONGEST_TEXT


@pytest.mark.parametrize(
    "incomplete_event",
    [{}, {"message": "x"}, {"involvedObject": {}}, {"involvedObject": [], "message": 1}],
)
def test_event_without_object_or_message_is_ignored(incomplete_event: Object) -> None:
    assert refusal_of(incomplete_event) is None


@pytest.mark.parametrize(
    "regarding",
    [{"name": "-".join("a" * 100)}, {"name": "train,x"}, {"name": "train-node-0", "uid": "u" * 65}],
    ids=["long name", "not a name", "long uid"],
)
def test_event_with_a_name_that_no_job_can_have_is_ignored(regarding: Object) -> None:
    assert refusal_of({**event(), "involvedObject": {"kind": "Job", **regarding}}) is None


def test_jobset_of_a_job_can_have_dashes_in_its_name() -> None:
    assert [*job_set_names("a-b-node-0")] == ["a", "a-b"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (job(active=0), True),
        (job(active=1), True),
        (job(active=2), False),
        (job(active=0, suspend=True), False),
        (job(active=1, completions=1), False),
        ({"spec": {}, "status": {}}, True),
        ({**job(), "status": {"active": 1, "succeeded": 1}}, False),
        ({**job(), "status": {"conditions": [{"type": "Failed", "status": "True"}]}}, False),
    ],
)
def test_job_lacks_pods_that_it_should_have_now(found: Object, expected: bool) -> None:
    assert lacks_pods(found) is expected


async def test_refusal_is_reported_while_the_job_lacks_pods() -> None:
    harness = Harness(job(active=1))
    harness.refused.observe("team", refusal())
    assert await harness.message() == REPORTED
    harness.jobs.items = (job(active=2),)
    assert await harness.message() is None
    harness.jobs.items = (job(active=1),)
    assert await harness.message() is None  # only a new Event reports it again
    assert harness.jobs.selectors == ["metadata.name=train-node-0"] * 2


@pytest.mark.parametrize(
    "found", [(), (job(owner="set-0"),), (job(uid="job-0"),)], ids=["none", "owner", "uid"]
)
async def test_event_about_another_job_of_the_name_is_not_reported(found: Any) -> None:
    harness = Harness(*found)
    harness.refused.observe("team", refusal())
    assert await harness.message() is None


async def test_refused_job_is_reported_until_it_exists() -> None:
    harness = Harness()
    text = 'job "train-node-0" creation failed with error: exceeded quota: q'
    harness.refused.observe("team", refusal(text, "JobSet"))
    expected = f"Jobs of JobSet train are not created: {text}"
    assert await harness.message() == expected
    harness.jobs.items = (job(),)
    assert await harness.message() is None


async def test_job_that_cannot_be_read_leaves_the_status_unchanged() -> None:
    harness = Harness(error=TransportError("reset"))
    harness.refused.observe("team", refusal())
    assert await harness.message() is None
    blocked = {
        "type": "Blocked",
        "status": "True",
        "reason": "PodsNotCreated",
        "message": "as before",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    assert await harness.message(blocked) == "as before"


async def test_report_of_an_earlier_manager_stays_until_events_are_read() -> None:
    harness = Harness()
    blocked = {
        "type": "Blocked",
        "status": "True",
        "reason": "PodsNotCreated",
        "message": "as before",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    assert await harness.message(blocked) == "as before"
    assert await harness.message({**blocked, "reason": "RuntimeNotFound"}) is None
    assert harness.jobs.selectors == []


async def test_many_events_enqueue_the_trainjob_once_in_a_while() -> None:
    harness = Harness()
    for number in range(1000):
        harness.refused.observe("team", refusal(f"number {number}"))
    assert harness.enqueued == [KEY]
    await harness.clock.advance(ENQUEUE_EVERY)
    harness.refused.observe("team", refusal())
    assert harness.enqueued == [KEY, KEY]


async def test_newest_event_is_reported() -> None:
    harness = Harness(job())
    for text, time in (("a", "2026-01-02T00:00:02Z"), ("b", "2026-01-02T00:00:01Z")):
        harness.refused.observe("team", refusal(text, lastTimestamp=time))
    found = await harness.message()
    assert found is not None
    assert found.endswith(": a")


async def test_events_of_other_objects_are_not_kept_and_the_oldest_is_dropped() -> None:
    harness = Harness(job(), capacity=1)
    harness.refused.observe("team", refusal())
    unknown = Refusal("Job", "unknown-node-0", "u", "x", "")
    harness.refused.observe("team", unknown)
    assert await harness.message() == REPORTED
    harness.refused.observe("team", Refusal("Job", "other-node-0", "u", "x", ""))
    assert await harness.message() is None
    assert harness.enqueued == [KEY, ObjectKey("team", "other")]


def test_event_is_about_each_jobset_whose_name_begins_the_jobs_name() -> None:
    harness = Harness()
    harness.refused.observe("team", Refusal("Job", "train-node-worker-0", "u", "x", ""))
    assert harness.enqueued == [KEY, ObjectKey("team", "train-node")]
