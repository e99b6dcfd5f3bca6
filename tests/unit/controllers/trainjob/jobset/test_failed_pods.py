"""Why a JobSet failed: which pod is reported, and what of its untrusted texts."""

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.controllers.trainjob.jobset import failed_pods
from kftrainer.controllers.trainjob.jobset.failed_pods import (
    LONGEST_CONDITION,
    LONGEST_TEXT,
    FailedPods,
    first_failure,
    one_line,
)
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import TransportError
from kftrainer.kube.client.transport import Response
from kftrainer.kube.objects.meta import Condition
from kftrainer.runtime.framework.extension_points import Observed
from tests.support.fake_clock import at_rest
from tests.support.object_server import Object, ObjectServer, refusal

PODS = "/api/v1/namespaces/team/pods"
JOB_SET = {"metadata": {"name": "train", "namespace": "team", "uid": "set-1"}}
MESSAGE = "jobset failed due to one or more job failures"


def terminated(name: str = "node", code: int = 1, at: int = 0, **state: Any) -> Object:
    """The status of a container that ended at this second."""
    time = f"2026-01-01T00:00:{at:02}Z"
    found = {"exitCode": code, "reason": "Error", "finishedAt": time, **state}
    return {"name": name, "state": {"terminated": found}}


def pod(
    name: str = "train-node-0-0-x",
    *containers: Object,
    job: str = "node",
    uid: str | None = "set-1",
    owner: str = "train-node-0",
    **more: Any,
) -> Object:
    """A failed pod of a replicated job."""
    labels = {failed_pods.LABEL_REPLICATED_JOB: job}
    if uid is not None:
        labels[failed_pods.LABEL_JOB_SET_UID] = uid
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "controller": True}
    metadata = {"name": name, "labels": labels, "ownerReferences": [reference]}
    if more.pop("is_deleted", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {"phase": "Failed", "containerStatuses": [*containers], **more}
    return {"metadata": metadata, "status": status}


def reported(*pods: Object) -> str:
    return str(first_failure(pods, JOB_SET))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod("p", terminated()), "pod p of replicated job node, container node: exit code 1"),
        (
            pod("p", terminated(code=137, reason="OOMKilled")),
            "pod p of replicated job node, container node: exit code 137 (OOMKilled)",
        ),
        (
            pod("p", terminated(message="Traceback:\n  File x\nValueError: no\n\n")),
            "pod p of replicated job node, container node: exit code 1: ValueError: no",
        ),
        (
            pod("p", reason="Evicted", message="The node was low on resource: memory. "),
            "pod p of replicated job node: Evicted: The node was low on resource: memory.",
        ),
        (
            pod("p", terminated(code=137), reason="DeadlineExceeded"),
            "pod p of replicated job node: DeadlineExceeded",
        ),
        (pod("p"), "pod p of replicated job node: Failed"),
        (
            pod("p", initContainerStatuses=[terminated("download", 2)]),
            "pod p of replicated job node, container download: exit code 2",
        ),
    ],
)
def test_failure_has_the_pod_the_exit_code_the_reason_and_the_last_line(
    found: Object, expected: str
) -> None:
    assert reported(found) == expected


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (pod("z", terminated(at=1)), pod("a", terminated(at=2))),
        (pod("z", terminated(at=1)), pod("a", terminated(at=1, code=143))),
        (pod("z", terminated(at=1)), pod("a", terminated(at=1, code=137))),
        (pod("z", terminated(at=9)), pod("a", terminated(at=1), is_deleted=True)),
        (pod("z", terminated(at=9)), pod("a")),
        (pod("a", terminated(at=1)), pod("z", terminated(at=1))),
        (
            pod("z", terminated(at=1, code=137, reason="OOMKilled")),
            pod("a", terminated(at=1, code=143)),
        ),
        (pod("z", terminated(at=1)), pod("a", terminated(code=0), terminated("proxy", 1, 2))),
    ],
    ids=["time", "SIGTERM", "SIGKILL", "deleted", "no time", "name", "OOM", "succeeded"],
)
def test_the_first_failure_is_reported(first: Object, other: Object) -> None:
    for pods in ((first, other), (other, first)):
        found = first_failure(pods, JOB_SET)
        assert found is not None
        assert found.pod == first["metadata"]["name"]


@pytest.mark.parametrize(
    ("foreign", "is_reported"),
    [
        (pod("p", terminated()), True),
        (pod("p", terminated(), uid=None), True),
        (pod("p", terminated(), uid="set-0"), False),
        (pod("p", terminated(), owner="other-node-0"), False),
        (pod("p", terminated(), owner="train"), False),
        ({**pod("p", terminated()), "metadata": {"name": "p"}}, False),
    ],
)
def test_only_pods_of_the_jobset_are_reported(foreign: Object, is_reported: bool) -> None:
    assert (first_failure([foreign], JOB_SET) is not None) == is_reported


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\ntwo\n", "two"),
        ("error: x\n}\n---\n", "error: x"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07text", "red text"),
        ("a\x00b\u202ec\td", "a b c d"),
        ("a\rb", "b"),
        ("\x1b[2J\n", ""),
        (None, ""),
        (7, ""),
        ("x" * 1000, "x" * (LONGEST_TEXT - 4) + " ..."),
    ],
)
def test_text_is_one_line_of_printable_characters(text: object, shown: str) -> None:
    assert one_line(text, LONGEST_TEXT) == shown


@given(st.text(), st.integers(5, 50))
def test_any_text_is_bounded_and_printable(text: str, longest: int) -> None:
    shown = one_line(text, longest)
    assert len(shown) <= longest
    assert shown.isprintable()


def test_long_text_is_read_from_its_end_only() -> None:
    assert one_line("first line\n" + "-" * 10_000_000 + "\nlast", LONGEST_TEXT) == "last"


class PodServer(ObjectServer):
    """Answers lists of pods with one page, and records their queries."""

    def __init__(self, *pods: Object) -> None:
        super().__init__({})
        self.queries: list[Any] = []
        self.error: Exception | Response | None = None
        self.is_stalled = False
        self._pods = pods

    async def request(self, method: str, path: str, *, query: Any = None, **more: Any) -> Response:
        """Return the page."""
        assert (method, path) == ("GET", PODS)
        self.queries.append(query)
        if self.is_stalled:
            await asyncio.Event().wait()
        if isinstance(self.error, Exception):
            raise self.error
        metadata = {"resourceVersion": "1", "continue": "more"}
        page = orjson.dumps({"metadata": metadata, "items": self._pods})
        return self.error or Response(200, {}, page)


def condition(kind: str = "Failed", message: str = MESSAGE) -> Condition:
    return Condition.parse(
        {
            "type": kind,
            "status": "True",
            "reason": "FailedJobs",
            "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    )


async def explanation(server: PodServer, *conditions: Condition) -> list[Condition]:
    found = await FailedPods(Client(server)).explain(JOB_SET, Observed(conditions))
    return [*found.conditions]


async def test_message_of_the_jobset_is_followed_by_the_first_failure() -> None:
    server = PodServer(pod("p", terminated(message="boom")))
    found = await explanation(server, condition())
    what = "pod p of replicated job node, container node: exit code 1: boom"
    assert found == [condition(message=f"{MESSAGE}; first failure: {what}")]
    assert server.queries == [
        {
            "labelSelector": "jobset.sigs.k8s.io/jobset-name=train",
            "fieldSelector": "status.phase=Failed",
            "limit": "100",
        }
    ]


async def test_pods_are_listed_only_for_a_failure() -> None:
    server = PodServer()
    assert await explanation(server) == []
    assert await explanation(server, condition("Complete")) == [condition("Complete")]
    assert server.queries == []


@pytest.mark.parametrize(
    "error",
    [
        None,
        TransportError("connection refused"),
        refusal(403, "Forbidden", "pods is forbidden"),
        refusal(500, "InternalError"),
    ],
    ids=["no pods", "unreachable", "forbidden", "failed"],
)
async def test_condition_is_unchanged_if_no_pods_are_read(
    error: Exception | Response | None,
) -> None:
    server = PodServer()
    server.error = error
    assert await explanation(server, condition()) == [condition()]
    assert len(server.queries) == 1


async def test_one_list_of_pods_is_in_memory_at_a_time() -> None:
    server = PodServer(pod("p", terminated()))
    server.is_stalled = True
    found = FailedPods(Client(server))
    async with asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(found.explain(JOB_SET, Observed([condition()]))) for _ in range(5)
        ]
        await at_rest()
        assert len(server.queries) == 1
        for task in waiting:
            task.cancel()


async def test_list_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_pods, "WITHIN", 0.01)
    server = PodServer(pod("p", terminated()))
    server.is_stalled = True
    assert await explanation(server, condition()) == [condition()]


def crashing(name: str, restarts: int, code: int = 1, **more: Any) -> Object:
    """A running pod whose container has crashed and was restarted."""
    container = terminated(code=code, message=f"crash of {name}")
    last = {"lastState": container["state"], "restartCount": restarts}
    return pod(name, {**container, **last, "state": {"running": {}}}, phase="Running", **more)


def failing_job(attempt: int = 0, uid: str = "job-1") -> Object:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train"}
    return {
        "metadata": {
            "name": "train-node-0",
            "namespace": "team",
            "uid": uid,
            "labels": {failed_pods.LABEL_ATTEMPT: str(attempt)},
            "ownerReferences": [{**owner, "uid": "set-1", "controller": True}],
        }
    }


async def remembered(server: PodServer, *jobs: Object) -> FailedPods:
    """Return the failed pods after the Jobs were handled."""
    found, stop = FailedPods(Client(server)), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(found.run(lambda: None, stop))
        for each in jobs:
            found.job_failing(each)
        await at_rest()
        stop.set()
    return found


async def message(found: FailedPods, restarts: int = 0) -> str:
    job_set = {**JOB_SET, "status": {"restarts": restarts}}
    [failed] = (await found.explain(job_set, Observed([condition()]))).conditions
    return failed.message


async def test_pods_that_restart_in_place_are_read_before_they_are_deleted() -> None:
    pods = (crashing("a", 1), crashing("b", 6), crashing("c", 0))
    server = PodServer(*pods)
    found = await remembered(server, failing_job(), failing_job())
    assert [each["labelSelector"] for each in server.queries] == ["job-name=train-node-0"]
    server.error = TransportError("the pods are gone")
    what = "pod b of replicated job node, container node: exit code 1: crash of b"
    assert await message(found) == f"{MESSAGE}; first failure: {what}"


async def test_failure_of_an_earlier_attempt_is_not_reported() -> None:
    server = PodServer(crashing("a", 1))
    found = await remembered(server, failing_job(attempt=0))
    server.error = TransportError("the pods are gone")
    assert await message(found, restarts=1) == MESSAGE


async def test_later_failing_jobs_do_not_replace_the_first_of_an_attempt() -> None:
    server = PodServer(crashing("a", 1))
    server.error = refusal(500, "InternalError")
    found = await remembered(server, failing_job())
    assert await message(found) == MESSAGE
    server.error = None
    found = await remembered(server, *(failing_job(uid=str(each)) for each in range(500)))
    assert len(server.queries) == 2 + failed_pods.QUEUE
    assert "pod a of" in await message(found)


async def test_message_that_would_be_too_long_is_unchanged() -> None:
    longest = condition(message="x" * (LONGEST_CONDITION - 20))
    assert await explanation(PodServer(pod("p", terminated())), longest) == [longest]
