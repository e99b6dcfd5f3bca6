from datetime import UTC, datetime
from typing import Any

import pytest

from kftrainer.api.trainjob import JobStatus, TrainJob
from kftrainer.controllers.trainjob.failures import Failure
from kftrainer.controllers.trainjob.status import (
    is_reported,
    next_status,
    present_status,
    removal_of_empty_conditions,
)
from kftrainer.kube.objects.meta import Condition
from kftrainer.runtime.framework.extension_points import Observed
from kftrainer.runtime.info import is_finished
from tests.support.objects import Object, train_job

EARLIER, NOW = "2026-01-01T00:00:00Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LAST_TRANSITION = "2026-01-02T03:04:05Z"
ROW = {"name": "node", "ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
MISSING = Failure("RuntimeNotFound", "ClusterTrainingRuntime x is not found", retryable=False)


def condition(kind: str, status: str = "True", at: str = EARLIER, **fields: Any) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": fields.get("reason", kind),
        "message": fields.get("message", "said"),
        "lastTransitionTime": at,
    }


def job(*conditions: Object, rows: list[Object] | None = None, suspend: bool = False) -> TrainJob:
    document = train_job(suspend=suspend)
    if conditions or rows is not None:
        document["status"] = {"conditions": list(conditions), "jobsStatus": rows or []}
    return TrainJob.parse(document)


def seen(*conditions: Object, rows: tuple[Object, ...] = ()) -> Observed:
    return Observed([*map(Condition.parse, conditions)], [*map(JobStatus.parse, rows)])


def conditions(
    job: TrainJob, observed: Observed | None = None, failure: Failure | None = None
) -> list[Object]:
    return [each.dump() for each in next_status(job, observed, failure, NOW).conditions]


def test_running_trainjob_has_no_conditions() -> None:
    assert next_status(job(), seen(), None, NOW) == present_status(job())


def test_suspended_trainjob_has_the_condition_with_its_time() -> None:
    first = condition(
        "Suspended", at=LAST_TRANSITION, reason="Suspended", message="TrainJob is suspended"
    )
    assert conditions(job(suspend=True)) == [first]
    later = job({**first, "lastTransitionTime": EARLIER}, suspend=True)
    assert next_status(later, None, None, NOW) == present_status(later)


def test_resumed_trainjob_has_suspended_false() -> None:
    resumed = condition(
        "Suspended", "False", LAST_TRANSITION, reason="Resumed", message="TrainJob is resumed"
    )
    assert conditions(job(condition("Suspended"))) == [resumed]
    assert conditions(job({**resumed, "lastTransitionTime": EARLIER})) == [
        {**resumed, "lastTransitionTime": EARLIER}
    ]


@pytest.mark.parametrize(
    ("wanted", "live", "before", "expected"),
    [
        (True, None, None, "True/Suspended"),
        (True, True, None, "True/Suspended"),
        (True, False, None, None),
        (True, False, "Resumed", "False/Resumed"),
        (True, False, "Suspended", "False/Suspending"),
        (True, True, "Suspending", "True/Suspended"),
        (False, True, None, "True/JobSetSuspended"),
        (False, True, "Suspended", "True/JobSetSuspended"),
        (False, False, "JobSetSuspended", "False/Resumed"),
        (False, False, None, None),
    ],
)
def test_suspended_reports_the_live_jobset(
    wanted: bool, live: bool | None, before: str | None, expected: str | None
) -> None:
    status = "False" if before in ("Resumed", "Suspending") else "True"
    present = [condition("Suspended", status, reason=before)] if before else []
    found = conditions(job(*present, suspend=wanted), Observed(suspended=live))
    actual = [f"{each['status']}/{each['reason']}" for each in found]
    assert actual == ([expected] if expected else [])


@pytest.mark.parametrize("suspend", [True, False])
@pytest.mark.parametrize("before", [None, "True", "False"])
def test_suspended_is_not_changed_while_the_jobset_cannot_be_read(
    before: str | None, suspend: bool
) -> None:
    stored = job(*([condition("Suspended", before)] if before else []), suspend=suspend)
    found = next_status(stored, None, None, NOW, is_observable=False)
    assert found == present_status(stored)


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_final_condition_has_time_and_message_of_the_jobset(end: str) -> None:
    ended = condition(end, reason="AllDone", message="it is over")
    assert conditions(job(), seen(ended)) == [ended]


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_final_conditions_never_change(end: str) -> None:
    """Defects D2 and D3."""
    ended = job(condition(end), rows=[ROW])
    assert is_finished(ended)
    assert next_status(ended, None, None, NOW) == present_status(ended)
    assert conditions(ended, seen(), MISSING) == [condition(end)]


def test_finished_trainjob_is_not_suspended_again() -> None:
    ended = job(condition("Complete"), suspend=True)
    assert conditions(ended) == [condition("Complete")]


def test_failure_is_reported_as_blocked_while_it_lasts() -> None:
    """Defect D6."""
    blocked = condition(
        "Blocked", at=LAST_TRANSITION, reason=MISSING.reason, message=MISSING.message
    )
    assert conditions(job(), None, MISSING) == [blocked]
    was_blocked = job({**blocked, "lastTransitionTime": EARLIER})
    assert conditions(was_blocked, None, MISSING) == [{**blocked, "lastTransitionTime": EARLIER}]
    assert conditions(was_blocked, None, None) == []


def test_another_failure_keeps_the_transition_time() -> None:
    was_blocked = job(condition("Blocked", reason="Other", message="other"))
    assert conditions(was_blocked, None, MISSING) == [
        condition("Blocked", reason=MISSING.reason, message=MISSING.message)
    ]


def test_long_messages_are_cut() -> None:
    (blocked,) = conditions(job(), None, Failure("A", "x" * 5000, retryable=False))
    assert len(blocked["message"]) == 1024
    assert blocked["message"].endswith(" ...")


def test_unsupported_runtime_is_failed_but_not_finished() -> None:
    """Defect D1."""
    reason, message = "TrainingRuntimeNotSupported", "unsupported runtime: A.b"
    failed = condition("Failed", at=LAST_TRANSITION, reason=reason, message=message)
    assert conditions(job(), None, Failure(reason, message, retryable=False)) == [failed]
    assert not is_finished(job(failed))
    assert conditions(job(failed), None, None) == []


def test_conditions_have_no_observed_generation() -> None:
    """Defect D12."""
    ended = seen(condition("Complete"))
    assert all("observedGeneration" not in each for each in conditions(job(), ended))


def test_conditions_of_other_controllers_are_excluded() -> None:
    assert conditions(job(condition("Preempted"), suspend=True))[0]["type"] == "Suspended"
    assert len(conditions(job(condition("Preempted"), suspend=True))) == 1


def test_rows_of_jobs_are_those_observed_last() -> None:
    assert next_status(job(), seen(rows=(ROW,)), None, NOW).dump()["jobsStatus"] == [ROW]
    assert next_status(job(rows=[ROW]), None, None, NOW).dump()["jobsStatus"] == [ROW]
    assert next_status(job(rows=[ROW]), seen(), None, NOW).dump() == {}


def test_status_is_applied_without_empty_lists() -> None:
    suspended = next_status(job(suspend=True), None, None, NOW).dump()
    assert (set(suspended), next_status(job(), None, None, NOW).dump()) == ({"conditions"}, {})


def test_empty_conditions_are_removed_unless_there_are_none() -> None:
    assert removal_of_empty_conditions(job()) is None
    assert removal_of_empty_conditions(job(condition("Suspended"))) is None
    removal = removal_of_empty_conditions(job(rows=[ROW]))
    assert removal == {"metadata": {"resourceVersion": None}, "status": {"conditions": None}}
    removal = removal_of_empty_conditions(job(rows=[]))
    assert removal == {"metadata": {"resourceVersion": None}, "status": None}


@pytest.mark.parametrize("kind", ["TrainingRuntimeNotSupported", "ResourcesCreationFailed"])
def test_message_that_differs_in_volatile_parts_is_not_written(kind: str) -> None:
    first, second = (
        Failure(kind, f"read tcp 10.0.0.1:{port}->10.0.0.2:443: {'x' * 2000}", retryable=False)
        for port in (43210, 51112)
    )
    written = next_status(job(), None, first, NOW)
    before = job(*(each.dump() for each in written.conditions))
    assert next_status(before, None, second, NOW) == present_status(before)
    other = Failure(kind, "another message", retryable=False)
    assert next_status(before, None, other, NOW).conditions[0].message == "another message"


def test_conditions_keep_their_positions() -> None:
    before = job(condition("Blocked"), condition("Suspended"), suspend=True)
    kinds = [each["type"] for each in conditions(before, seen(condition("Complete")), MISSING)]
    assert kinds == ["Blocked", "Suspended", "Complete"]


@pytest.mark.parametrize(
    "reported", [(), (condition("Blocked", reason="RuntimeNotFound", message="as before"),)]
)
def test_failure_that_users_do_not_see_leaves_blocked_unchanged(reported: Any) -> None:
    failure = Failure("A", "soon over", retryable=True, user_visible=False)
    assert conditions(job(*reported), None, failure) == [*reported]


def test_is_reported_compares_reason_and_meaning_of_the_message() -> None:
    blocked = job(condition("Blocked", reason="A", message="read tcp 10.0.0.1:1: reset"))
    found = [
        is_reported(blocked, Failure(reason, message, retryable=True))
        for reason, message in (
            ("A", "read tcp 10.0.0.1:2: reset"),
            ("A", "another message"),
            ("B", "read tcp 10.0.0.1:1: reset"),
        )
    ]
    assert found == [True, False, False]
