"""Results of reconciles in which the write of a runtime failed."""

import structlog

from kftrainer.kube.client.errors import ConflictError, KubeError, NotFoundError
from kftrainer.kube.client.write_guard import WriteGuardError
from kftrainer.machinery.controller.reconcile import DONE, ReconcileError, Result

log = structlog.get_logger(__name__)

LATER = Result(requeue=True)


def result_of_failed_write(error: KubeError, action: str, *, conflict_event: str) -> Result:
    """Return the result after this error; raise ReconcileError if the reconcile failed.

    After a conflict nothing is left to do: the event of the other change enqueues the object again.
    `conflict_event` is the log event of a conflict, and `action` what could not be done.
    """
    match error:
        case ConflictError() | NotFoundError():
            log.debug(conflict_event, error=str(error))
            return DONE
        case WriteGuardError():
            return LATER
        case _:
            raise ReconcileError(f"cannot {action}: {error}") from error
