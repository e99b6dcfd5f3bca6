"""Reports pods and Jobs of a JobSet that the API server refuses to create.

Pod Security, quotas, LimitRanges and admission policies act on pods. The Job controller reports a
refusal only as an Event of the Job, and the JobSet controller only as an Event of the JobSet.
Clients can write Events in their own namespaces, so an Event only triggers a check of the Job
itself, and only its text is copied to the status of the TrainJob.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from kftrainer.api import names
from kftrainer.api.resources import JOB_SETS, JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.metrics.job_watch import RECHECK_AFTER
from kftrainer.controllers.trainjob.status import blocked_message
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import KubeError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, is_controlled_by
from kftrainer.kube.permissions import refusal_to_list_any
from kftrainer.kube.redaction import redacted
from kftrainer.machinery.cache.cache import Cache, NotCachedError
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.cache.multi_namespace import AnyInformer, in_namespaces
from kftrainer.machinery.controller.reconcile import Request
from kftrainer.machinery.events.recorder import EVENTS
from kftrainer.machinery.manager.clock import Clock
from kftrainer.runtime.errors import PlanningError

log = structlog.get_logger(__name__)

SELECTORS: Final = (
    "involvedObject.kind=Job,reason=FailedCreate,type=Warning",
    "involvedObject.kind=JobSet,reason=JobCreationFailed,type=Warning",
)
CAPACITY: Final = 10_000  # JobSets
LONGEST_UID: Final = 64  # characters
LONGEST_TEXT: Final = 2_048  # characters of an Event's message that are kept
ENQUEUE_EVERY: Final = 10.0  # seconds between two reconciles of a TrainJob because of Events
CHECK_EVERY: Final = 30.0  # seconds between two checks of a Job whose pods are missing
PREFIXES: Final = ("(combined from similar events): ", "Error creating: ")
# JobSet rejects longer names. The API server does not validate names in Events.
_NAME = re.compile(r"[a-z0-9-]{1,63}")
_JOB_IN_MESSAGE = re.compile(r'\bjob "([a-z0-9-]{1,63})" creation failed')


class PodsNotCreatedError(PlanningError):
    """Pods or Jobs of a JobSet are not created because the API server refuses them."""

    reason = names.REASON_PODS_NOT_CREATED


@dataclass(frozen=True, slots=True)
class Refusal:
    """An Event about pods or a Job that could not be created."""

    kind: str  # of the object that the Event is about: Job or JobSet
    name: str
    uid: str
    text: str
    time: str

    @property
    def job(self) -> str | None:
        """Name of the Job that lacks pods or was not created; None if not known."""
        if self.kind == JOBS.kind:
            return self.name
        found = _JOB_IN_MESSAGE.search(self.text)
        return found[1] if found else None

    @property
    def message(self) -> str:
        """Message for the status, without parts that differ between attempts."""
        text = self.text
        for prefix in PREFIXES:
            text = text.removeprefix(prefix)
        if self.kind == JOBS.kind:
            pod = rf'"{re.escape(self.name)}-(?:\d+-)?(?:[a-z0-9]{{5}})?"'
            text = re.sub(pod, f'"{self.name}-*"', text)
        what = "pods" if self.kind == JOBS.kind else "Jobs"
        return f"{what} of {self.kind} {self.name} are not created: {redacted(text)}"


def refusal_of(event: Manifest) -> Refusal | None:
    """Read an Event; None if a required field is missing or malformed."""
    regarding, text = event.get("involvedObject"), event.get("message")
    if not isinstance(regarding, dict) or not isinstance(text, str):
        return None
    kind, name, uid = (str(regarding.get(field) or "") for field in ("kind", "name", "uid"))
    if _NAME.fullmatch(name) is None or len(uid) > LONGEST_UID:
        return None
    return Refusal(kind, name, uid, text[:LONGEST_TEXT], _time(event))


def _time(event: Manifest) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(each) for each in times if each), "")


def job_set_names(job: str) -> Iterator[str]:
    """Yield possible JobSet names of a Job, which is `<JobSet>-<replicated job>-<index>`."""
    parts = job.split("-")
    for count in range(1, len(parts) - 1):
        yield "-".join(parts[:count])


def lacks_pods(job: Manifest) -> bool:
    """Whether a Job has fewer pods than it should have now."""
    spec, status = job.get("spec") or {}, job.get("status") or {}
    if spec.get("suspend") or status.get("completionTime"):
        return False
    if any(each.get("type") in ("Complete", "Failed") for each in status.get("conditions") or ()):
        return False
    wanted: int = spec.get("parallelism", 1)
    if (completions := spec.get("completions")) is not None:
        wanted = min(wanted, completions - status.get("succeeded", 0))
    return bool(status.get("active", 0) < wanted)


class RefusedPods:
    """Runnable for the leader that reports why pods of a TrainJob are not created.

    Only the last Event of each JobSet is kept. Without the permission to watch Events, nothing is
    reported.
    """

    name = "refused pods"

    def __init__(
        self,
        client: Client,
        cache: Cache,
        *,
        clock: Clock,
        enqueue: Callable[[Iterable[Request]], None],
        namespaces: Sequence[str] = (),
        capacity: int = CAPACITY,
    ) -> None:
        self._client = client
        self._cache = cache
        self._clock = clock
        self._enqueue = enqueue
        self._namespaces = namespaces
        self._capacity = capacity
        self._last: dict[ObjectKey, Refusal] = {}
        self._enqueued: dict[ObjectKey, float] = {}
        self._informers = [self._informer(each) for each in SELECTORS]
        self._is_off = False

    def _informer(self, selector: str) -> AnyInformer[Manifest]:
        def new_informer(namespace: str | None) -> Informer[Manifest]:
            return Informer(
                self._client,
                EVENTS,
                clock=self._clock,
                namespace=namespace,
                field_selector=selector,
                keep=self._take,
            )

        return in_namespaces(EVENTS, self._namespaces, new_informer)

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Watch Events until `stop` is set; nothing waits for their synchronization."""
        ready()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self._watch(), name=f"{self.name}: watch")
            await stop.wait()
            task.cancel()

    async def _watch(self) -> None:
        try:
            await self._permitted()
            async with asyncio.TaskGroup() as tasks:
                for each in self._informers:
                    tasks.create_task(each.run(_nothing, asyncio.Event()), name=each.name)
        except Exception:
            self._is_off = True
            log.exception("refused_pods_watch_failed", consequence="refused pods are not reported")

    async def _permitted(self) -> None:
        write = log.warning
        while (
            refusal := await refusal_to_list_any(self._client, EVENTS, self._namespaces)
        ) is not None:
            self._is_off = True
            write(
                "events_not_readable",
                error=str(refusal),
                consequence="the status of TrainJobs does not report pods that are not created",
            )
            write = log.debug
            await self._clock.sleep(RECHECK_AFTER)
        self._is_off = False

    def _take(self, event: Manifest) -> bool:
        """Process the Event and drop it from the informer, because there can be many."""
        refusal = refusal_of(event)
        if refusal is not None:
            namespace = str(event["metadata"].get("namespace") or "")
            self.observe(namespace, refusal)
        return False

    def observe(self, namespace: str, refusal: Refusal) -> None:
        """Store the refusal and enqueue the TrainJob, at most once per ENQUEUE_EVERY seconds."""
        for key in self._job_sets(namespace, refusal):
            self._remember(key, refusal)

    def _remember(self, key: ObjectKey, refusal: Refusal) -> None:
        known = self._last.pop(key, None)
        if known is not None and known.time > refusal.time:
            refusal = known
        elif known is None and len(self._last) >= self._capacity:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._enqueued.pop(oldest, None)
        self._last[key] = refusal
        now = self._clock.monotonic()
        if now - self._enqueued.get(key, -ENQUEUE_EVERY) >= ENQUEUE_EVERY:
            self._enqueued[key] = now
            self._enqueue([key])

    def _job_sets(self, namespace: str, refusal: Refusal) -> list[ObjectKey]:
        """Return the cached JobSets that the Event can be about, by name."""
        try:
            informer = self._cache.informer(JOB_SETS)
        except NotCachedError:
            return []
        found = [refusal.name] if refusal.kind == JOB_SETS.kind else job_set_names(refusal.name)
        keys = (ObjectKey(namespace, name) for name in found)
        return [each for each in keys if informer.cached_object(each) is not None]

    def forget(self, request: Request) -> None:
        """Drop the refusal of a JobSet that is suspended or deleted."""
        self._last.pop(request, None)
        self._enqueued.pop(request, None)

    async def check(self, job: TrainJob, job_set: Manifest) -> PodsNotCreatedError | None:
        """Return why pods of a running JobSet are missing, if they still are.

        If that is not known, the result is what the status of the TrainJob reports.
        """
        key = ObjectKey(job_set["metadata"]["namespace"], job_set["metadata"]["name"])
        message = blocked_message(job, PodsNotCreatedError.reason)
        present = None if message is None else PodsNotCreatedError(message)
        refusal = self._last.get(key)
        if refusal is None:
            has_synced = self._is_off or all(each.has_synced for each in self._informers)
            return None if has_synced else present
        try:
            is_current = await self._is_current(key.namespace, refusal, job_set["metadata"]["uid"])
        except KubeError as error:
            log.info("job_not_read", error=str(error))
            return present
        if is_current:
            return PodsNotCreatedError(refusal.message)
        if self._last.get(key) is refusal:
            self.forget(key)
        return None

    async def _is_current(self, namespace: str, refusal: Refusal, owner: str) -> bool:
        """Whether the refusal that the Event reports still applies to the Job."""
        if refusal.kind == JOB_SETS.kind and refusal.uid != owner:
            return False
        if refusal.job is None:
            return False
        page = await self._client.list(
            JOBS, namespace=namespace, field_selector=f"metadata.name={refusal.job}"
        )
        own = [each for each in page.items if is_controlled_by(each["metadata"], owner)]
        if refusal.kind == JOB_SETS.kind:
            return not own
        return any(each["metadata"]["uid"] == refusal.uid and lacks_pods(each) for each in own)


def _nothing() -> None:
    """Ignore readiness: nothing waits for these informers."""
