import pytest
from structlog.testing import capture_logs

from kftrainer.controllers.failed_writes import LATER, result_of_failed_write
from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    KindNotFoundError,
    KubeError,
    NotFoundError,
    TransportError,
)
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Result


@pytest.mark.parametrize(
    ("error", "result", "events"),
    [
        (ConflictError(409, "Conflict", "changed"), DONE, ["runtime_conflict"]),
        (NotFoundError(404, "NotFound", "deleted"), DONE, ["runtime_conflict"]),
        (KindNotFoundError(404, "NotFound", "no kind"), DONE, ["runtime_conflict"]),
        (WriteGuardError("no lease"), LATER, []),
    ],
)
def test_conflict_and_lost_lease_are_expected(
    error: KubeError, result: Result, events: list[str]
) -> None:
    with capture_logs() as logs:
        found = result_of_failed_write(error, "write it", conflict_event="runtime_conflict")
    assert found == result
    assert [each["event"] for each in logs] == events
    assert {each["log_level"] for each in logs} <= {"debug"}


@pytest.mark.parametrize(
    "error",
    [
        ForbiddenError(403, "Forbidden", "not permitted"),
        AlreadyExistsError(409, "AlreadyExists", "not permitted"),
        TransportError("not permitted"),
    ],
)
def test_other_error_fails_the_reconcile(error: KubeError) -> None:
    with pytest.raises(ReconcileError, match=r"^cannot write it: not permitted$") as raised:
        result_of_failed_write(error, "write it", conflict_event="runtime_conflict")
    assert raised.value.__cause__ is error
