"""Explains why a JobSet failed: the pod that failed first, its exit code and its last line.

Pods are created by tenants, so their status is untrusted: of their texts, one line of printable
characters of limited length is copied to the status of the TrainJob.

Pods that restart in place (`restartPolicy: OnFailure`, the default of JobSet) are deleted before
their Job has failed. They are read when the Job reports that it is about to fail.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from kftrainer.api import names
from kftrainer.api.resources import JOBS, PODS
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.meta import Condition
from kftrainer.kube.objects.resource import Manifest, ObjectKey, controller_of
from kftrainer.machinery.lru import Lru
from kftrainer.runtime.framework.extension_points import Observed

log = structlog.get_logger(__name__)

LABEL_JOB_SET: Final = "jobset.sigs.k8s.io/jobset-name"
LABEL_JOB_SET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"  # missing in old releases of JobSet
LABEL_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
LABEL_JOB: Final = "job-name"
LABEL_ATTEMPT: Final = "jobset.sigs.k8s.io/restart-attempt"
FAILED: Final = "status.phase=Failed"
CAPACITY: Final = 1_000  # failing Jobs, and failures of JobSets, that are remembered
KEPT: Final = ("namespace", "name", "labels", "ownerReferences")
QUEUE: Final = 100  # failing Jobs whose pods are to be read
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
    restarts: int = 0  # of the container

    @property
    def order(self) -> tuple[bool, int, str, bool, str]:
        """Sort key: the failure that most likely caused the others is first.

        Times are whole seconds. In the same second, a process that ended by itself precedes one
        that was killed.
        """
        is_killed = self.exit_code in SIGNALLED and self.reason in PLAIN_REASONS
        return self.is_deleted, -self.restarts, self.time, is_killed, self.pod

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
    time = min((str(each.get("finishedAt") or LAST) for _, each, _ in ended), default=LAST)
    reason = one_line(status.get("reason"), LONGEST_REASON)
    if status.get("phase") == "Failed" and (reason or not ended):
        message = one_line(status.get("message"), LONGEST_TEXT)
        yield replace(of_pod, reason=reason, message=message, time=time)
        return
    for name, state, restarts in ended:
        yield replace(
            of_pod,
            container=name,
            exit_code=int(state.get("exitCode") or 0),
            reason=one_line(state.get("reason"), LONGEST_REASON),
            message=one_line(state.get("message"), LONGEST_TEXT),
            time=str(state.get("finishedAt") or LAST),
            restarts=restarts,
        )


def _failed_containers(
    status: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Yield the names, terminated states and restarts of containers that failed.

    The present state of a container that has been restarted is that of its deletion.
    """
    for field in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(field) or ():
            restarts = int(each.get("restartCount") or 0)
            last = (each.get("lastState") or {}).get("terminated") if restarts else None
            state = last or (each.get("state") or {}).get("terminated")
            if state is not None and state.get("exitCode"):
                yield each["name"], state, restarts


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
    """Runnable for the leader that reads the pods of Jobs that fail and of JobSets that failed."""

    name = "failed pods"

    def __init__(self, client: Client) -> None:
        self._client = client
        # Pods can be large, and tenants choose how many fail: one list is in memory at a time.
        self._reading = asyncio.Lock()
        self._failing: asyncio.Queue[Manifest] = asyncio.Queue(QUEUE)
        self._taken = Lru[str, bool](CAPACITY)  # UIDs of failing Jobs
        self._failures = Lru[str, tuple[str, PodFailure]](CAPACITY)  # by UID of the JobSet

    def job_failing(self, job: Manifest) -> None:
        """Read the pods of the Job soon, because they are about to be deleted."""
        uid = job["metadata"]["uid"]
        if self._taken.get(uid) is None and not self._failing.full():
            self._taken.put(uid, value=True)
            self._failing.put_nowait({field: job["metadata"].get(field) for field in KEPT})

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Read the pods of failing Jobs until `stop` is set."""
        ready()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self._read_failing(), name=f"{self.name}: read")
            await stop.wait()
            task.cancel()

    async def _read_failing(self) -> None:
        while True:
            metadata = await self._failing.get()
            try:
                await self._remember(metadata)
            except Exception:
                # Only the message of a condition depends on it, so it must not end the manager.
                log.exception("failing_job_not_read", job=metadata["name"])

    async def _remember(self, metadata: Manifest) -> None:
        """Keep the first failure of the JobSet's present attempt."""
        owner, labels = controller_of(metadata), metadata.get("labels") or {}
        if owner is None:
            return
        key = ObjectKey(metadata["namespace"], metadata["name"])
        pods = await self._read(key.namespace, f"{LABEL_JOB}={key.name}")
        failure = first_failure(pods, {"metadata": owner})
        log.debug("failing_job_read", object=str(key), failure=str(failure))
        if failure is None:
            return
        uid, attempt = str(owner["uid"]), str(labels.get(LABEL_ATTEMPT, ""))
        known = self._failures.get(uid)
        if known is None or known[0] != attempt or failure.order < known[1].order:
            self._failures.put(uid, (attempt, failure))

    async def explain(self, job_set: Manifest, observed: Observed) -> Observed:
        """Return the observed status with the first failure in the message of `Failed`.

        It is unchanged if the pods cannot be read in time, or if none of them is left.
        """
        if not any(each.type == names.CONDITION_FAILED for each in observed.conditions):
            return observed
        failure = await self._failure_of(job_set)
        if failure is None:
            return observed
        conditions = [
            explained(each, failure) if each.type == names.CONDITION_FAILED else each
            for each in observed.conditions
        ]
        return replace(observed, conditions=conditions)

    async def _failure_of(self, job_set: Manifest) -> PodFailure | None:
        metadata = job_set["metadata"]
        attempt = (job_set.get("status") or {}).get("restarts") or 0
        known = self._failures.get(metadata["uid"])
        if known is not None and known[0] in ("", str(attempt)):
            return known[1]
        selector = f"{LABEL_JOB_SET}={metadata['name']}"
        pods = await self._read(metadata["namespace"], selector, FAILED)
        return first_failure(pods, job_set)

    async def _read(
        self, namespace: str, labels: str, fields: str | None = None
    ) -> Sequence[Manifest]:
        pages = self._client.list_pages(
            PODS, namespace=namespace, label_selector=labels, field_selector=fields, limit=MOST_PODS
        )
        try:
            async with asyncio.timeout(WITHIN), self._reading, aclosing(pages):
                async for page in pages:
                    return page.items
        except (KubeError, TimeoutError) as error:
            log.info("failed_pods_not_read", error=str(error) or "timeout")
        return ()
