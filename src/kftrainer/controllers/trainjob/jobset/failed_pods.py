"""Explains why a JobSet failed: the pod that failed first, its exit code and its last words.

Pods are created by tenants, so their status is untrusted: of their texts, one line of printable
characters of limited length is copied to the status of the TrainJob.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from kftrainer.api import names
from kftrainer.api.resources import JOBS, PODS
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.meta import Condition
from kftrainer.kube.objects.resource import Manifest, controller_of
from kftrainer.runtime.framework.extension_points import Observed

log = structlog.get_logger(__name__)

LABEL_JOB_SET: Final = "jobset.sigs.k8s.io/jobset-name"
LABEL_JOB_SET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"  # missing in old releases of JobSet
LABEL_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
SELECTOR: Final = "status.phase=Failed"
MOST_PODS: Final = 100  # the first page of the list; others are not read
WITHIN: Final = 10.0  # seconds that the status may wait for the list
LONGEST_TEXT: Final = 400  # characters of what a pod reports
LONGEST_REASON: Final = 64
LONGEST_CONDITION: Final = 32_768  # characters of a condition's message that the CRD accepts
READ: Final = 8_192  # characters of a text that are searched for its last line
ENDING: Final = " ..."
# Reasons of containers that add nothing to the exit code.
PLAIN_REASONS: Final = ("", "Error", "Completed")
SIGNALLED: Final = (137, 143)  # exit codes after SIGKILL and SIGTERM, for example by a deletion
LAST: Final = "9999"  # after all times
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


@dataclass(frozen=True, slots=True)
class PodFailure:
    """How a pod, or one of its containers, failed."""

    pod: str
    replicated_job: str
    container: str = ""  # empty if the pod failed as a whole
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    time: str = LAST
    is_deleted: bool = False  # it may have failed because of its deletion

    @property
    def order(self) -> tuple[bool, str, bool, str]:
        """Sort key: the failure that most likely caused the others is first.

        Times are whole seconds. In the same second, a process that ended by itself precedes one
        that was killed.
        """
        is_killed = self.exit_code in SIGNALLED and self.reason in PLAIN_REASONS
        return self.is_deleted, self.time, is_killed, self.pod

    def __str__(self) -> str:
        where = f"pod {self.pod} of replicated job {self.replicated_job}"
        if self.container:
            known = "" if self.reason in PLAIN_REASONS else f" ({self.reason})"
            what = f", container {self.container}: exit code {self.exit_code}{known}"
        else:
            what = f": {self.reason or 'Failed'}"
        return f"{where}{what}{': ' if self.message else ''}{self.message}"


def first_failure(pods: Iterable[Manifest], job_set: Manifest) -> PodFailure | None:
    """Return the failure of the JobSet's pods that happened first."""
    found = (each for pod in pods if _belongs_to(pod, job_set) for each in _failures(pod))
    return min(found, key=lambda each: each.order, default=None)


def _belongs_to(pod: Manifest, job_set: Manifest) -> bool:
    metadata, owner = pod["metadata"], job_set["metadata"]
    uid = (metadata.get("labels") or {}).get(LABEL_JOB_SET_UID, owner["uid"])
    controller = controller_of(metadata)
    return (
        uid == owner["uid"]
        and controller is not None
        and JOBS.is_referred_to_by(controller)
        and str(controller.get("name")).startswith(f"{owner['name']}-")
    )


def _failures(pod: Manifest) -> Iterator[PodFailure]:
    """Yield the failures of a pod: of the pod as a whole, or else of its containers."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    of_pod = PodFailure(
        metadata["name"],
        one_line((metadata.get("labels") or {}).get(LABEL_REPLICATED_JOB, ""), LONGEST_REASON),
        is_deleted="deletionTimestamp" in metadata,
    )
    ended = [*_failed_containers(status)]
    time = min((str(each.get("finishedAt") or LAST) for _, each in ended), default=LAST)
    reason = one_line(status.get("reason"), LONGEST_REASON)
    if reason or not ended:
        message = one_line(status.get("message"), LONGEST_TEXT)
        yield replace(of_pod, reason=reason, message=message, time=time)
        return
    for name, state in ended:
        yield replace(
            of_pod,
            container=name,
            exit_code=int(state.get("exitCode") or 0),
            reason=one_line(state.get("reason"), LONGEST_REASON),
            message=one_line(state.get("message"), LONGEST_TEXT),
            time=str(state.get("finishedAt") or LAST),
        )


def _failed_containers(status: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names and terminated states of containers that failed."""
    for field in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(field) or ():
            state = (each.get("state") or {}).get("terminated")
            if state is not None and state.get("exitCode"):
                yield each["name"], state


def one_line(text: object, longest: int) -> str:
    """Return the last line with letters or digits, without control characters, shortened."""
    if not isinstance(text, str):
        return ""
    lines = _ESCAPES.sub("", text[-READ:]).splitlines()
    last = next((line for line in reversed(lines) if any(map(str.isalnum, line))), "")
    shown = " ".join("".join(char if char.isprintable() else " " for char in last).split())
    return shown if len(shown) <= longest else shown[: longest - len(ENDING)] + ENDING


def explained(condition: Condition, failure: PodFailure) -> Condition:
    """Return the condition with the failure after its message, if it fits."""
    message = f"{condition.message}; first failure: {failure}"
    if len(message) > LONGEST_CONDITION:
        return condition
    return Condition.parse({**condition.dump(), "message": message})


class FailedPods:
    """Reads the failed pods of a JobSet that has just failed."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def explain(self, job_set: Manifest, observed: Observed) -> Observed:
        """Return the observed status with the first failure in the message of `Failed`.

        It is unchanged if the pods cannot be read in time, or if none of them is left.
        """
        if not any(each.type == names.CONDITION_FAILED for each in observed.conditions):
            return observed
        failure = first_failure(await self._read(job_set), job_set)
        if failure is None:
            return observed
        conditions = [
            explained(each, failure) if each.type == names.CONDITION_FAILED else each
            for each in observed.conditions
        ]
        return replace(observed, conditions=conditions)

    async def _read(self, job_set: Manifest) -> Sequence[Manifest]:
        metadata = job_set["metadata"]
        pages = self._client.list_pages(
            PODS,
            namespace=metadata["namespace"],
            label_selector=f"{LABEL_JOB_SET}={metadata['name']}",
            field_selector=SELECTOR,
            limit=MOST_PODS,
        )
        try:
            async with asyncio.timeout(WITHIN), aclosing(pages):
                async for page in pages:
                    return page.items
        except (KubeError, TimeoutError) as error:
            log.info("failed_pods_not_read", error=str(error) or "timeout")
        return ()
