"""What is reported of an error, and how soon it is tried again."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kftrainer.api.resources import JOB_SETS
from kftrainer.controllers.trainjob.apply import (
    ForeignObjectError,
    PendingDeletionError,
)
from kftrainer.controllers.trainjob.failures import failing_reconcile, failure_of
from kftrainer.controllers.trainjob.jobset.refused_pods import PodsNotCreatedError
from kftrainer.kube.client.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    KindNotFoundError,
    KubeError,
    NamespaceTerminatingError,
    ServerError,
    TooManyRequestsError,
    TransportError,
)
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.machinery.controller.reconcile import ReconcileError
from kftrainer.runtime.errors import (
    InvalidRuntimeError,
    NotInstalledError,
    PlanningError,
    PluginFailedError,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
QUOTA = "is forbidden: exceeded quota: q, requested: count/jobsets=1, used: 1, limited: 1"


def api(kind: Any, status: int, message: str = "no") -> KubeError:
    error: KubeError = kind(status, "", message)
    return error


def kind_not_found() -> KubeError:
    error = KindNotFoundError(404, "", "no")
    error.resource = JOB_SETS
    return error


# The error, whether it is tried again, reported and a failed reconcile, and the upper bound of the
# interval.
ERRORS: dict[str, tuple[PlanningError | KubeError, bool, bool, bool, float]] = {
    "name-taken": (ForeignObjectError("taken"), True, True, False, 30),
    "quota": (api(ForbiddenError, 403, QUOTA), True, True, True, 60),
    "quota-unknown": (
        api(ForbiddenError, 403, "status unknown for quota"),
        True,
        True,
        True,
        60,
    ),
    "rbac": (api(ForbiddenError, 403), True, True, True, 300),
    "invalid": (api(InvalidError, 422), True, True, True, 300),
    "webhook": (api(ServerError, 500), True, True, True, 60),
    "server": (api(ServerError, 503), True, False, True, 60),
    "throttled": (api(TooManyRequestsError, 429), True, False, True, 60),
    "conflict": (api(ConflictError, 409), True, False, False, 60),
    "transport": (TransportError("reset"), True, False, True, 60),
    "plugin": (PluginFailedError("bug"), True, True, True, 300),
    "kind": (kind_not_found(), True, True, True, 60),
    "namespace": (api(NamespaceTerminatingError, 403), True, True, False, 300),
    "lease": (WriteGuardError("not sent"), True, False, False, 60),
    "not-installed": (NotInstalledError(JOB_SETS), False, True, False, 300),
    "pods": (PodsNotCreatedError("refused"), False, True, False, 300),
    "runtime": (InvalidRuntimeError("runtime"), False, True, False, 300),
}


@pytest.mark.parametrize("which", ERRORS)
def test_error_decides_on_retry_and_report(which: str) -> None:
    error, *expected = ERRORS[which]
    found = failure_of(error, NOW)
    assert [found.retryable, found.user_visible, found.is_error, found.max_delay] == expected


@pytest.mark.parametrize(
    ("seconds", "user_visible"), [(0, False), (59, False), (60, True), (900, True)]
)
def test_pending_deletion_is_reported_after_a_minute(seconds: int, user_visible: bool) -> None:
    error = PendingDeletionError("waiting", NOW - timedelta(seconds=seconds))
    found = failure_of(error, NOW)
    assert (found.reason, found.retryable, found.user_visible) == (
        "WaitingForDeletion",
        True,
        user_visible,
    )
    assert found.max_delay == 30


def test_pending_deletion_without_a_time_is_not_reported() -> None:
    assert not failure_of(PendingDeletionError("waiting", None), NOW).user_visible


def test_message_is_as_long_as_in_a_condition() -> None:
    assert len(failure_of(api(InvalidError, 422, "x" * 5000), NOW).message) == 1024


@pytest.mark.parametrize("which", ERRORS)
def test_failed_call_fails_the_reconcile_unless_it_is_an_expected_race(which: str) -> None:
    error, *_, is_error, _ = ERRORS[which]
    is_failed_call = is_error and isinstance(error, KubeError)
    expected = ReconcileError if is_failed_call else type(error)
    with (
        pytest.raises(expected, match=re.escape(str(error))),
        failing_reconcile("read the JobSet", max_delay=7),
    ):
        raise error
