"""Watches the Jobs of TrainJobs: for the first pod, the number of ready pods, and failures.

The status of a JobSet cannot replace this watch: its `ready` counts the Jobs whose pods are all
ready, which for a training on many nodes may be hours after the first pod, and its `active` also
counts Jobs whose pods are pending. A Job is cached only while the JobSet's status is not enough.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from kftrainer.api.resources import JOB_SETS, JOBS
from kftrainer.controllers.metrics.counts import TrainJobCounts
from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.resource import Manifest, ObjectKey, is_controlled_by
from kftrainer.kube.permissions import refusal_to_list_any
from kftrainer.machinery.cache.cache import Cache, NotCachedError
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.cache.multi_namespace import in_namespaces
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.metrics.registry import Metrics

log = structlog.get_logger(__name__)

LABEL_JOB_SET = "jobset.sigs.k8s.io/jobset-name"  # on the Jobs of a JobSet
LABEL_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
RECHECK_AFTER = 300.0  # seconds until a missing permission is checked again
INDEX_JOB_SET = "job-set"
KEPT_STATUS = ("ready", "succeeded")
KEPT_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences")
METRIC = "kftrainer_trainjob_first_pod_running_seconds"
NODES_INCOMPLETE = "status.nodes counts only the nodes of Jobs whose pods are all ready"


def _ignore(_: object) -> None:
    """Ignore the change of a JobSet's ready pods, or a Job that is failing."""


class JobWatch:
    """Watch the Jobs of JobSets.

    A Job is cached while some, but not all, of its pods are ready, and from the time at which it
    has the first pod that its TrainJob waits for until its next change. Its event may arrive before
    that of its JobSet, because each kind has its own watch; the Job is then evaluated when the
    JobSet arrives.
    """

    def __init__(  # noqa: PLR0913  its dependencies
        self,
        counts: TrainJobCounts,
        cache: Cache,
        client: Client,
        *,
        clock: Clock,
        metrics: Metrics,
        namespaces: Sequence[str] = (),
        on_ready_pods: Callable[[ObjectKey], None] = _ignore,
        on_failing: Callable[[Manifest], None] = _ignore,
    ) -> None:
        self._counts = counts
        self._cache = cache
        self._client = client
        self._clock = clock
        self._namespaces = namespaces
        self._on_ready_pods = on_ready_pods
        self._on_failing = on_failing  # called with Jobs whose pods are about to be deleted
        self._is_refused = False  # also if the watch has failed
        self._unknown: set[ObjectKey] = set()  # JobSets whose ready pods were not known yet
        self._informers: dict[str | None, Informer[Manifest]] = {}

        def new_informer(namespace: str | None) -> Informer[Manifest]:
            informer = self._informers[namespace] = Informer(
                client,
                JOBS,
                clock=clock,
                namespace=namespace,
                label_selector=LABEL_JOB_SET,
                keep=self._is_kept,
                transform=_slim,
                indexes={INDEX_JOB_SET: _index_job_set},
                metrics=metrics.for_informer(JOBS.group_kind),
                on_access=lambda *_: self._report_unknown(),
            )
            return informer

        self._informer = in_namespaces(JOBS, namespaces, new_informer)

    async def run(self) -> None:
        """Watch until cancelled, once that is permitted; a failure only disables the metric."""
        try:
            await self._permitted()
            self._informer.add_handler(self.changed)
            await self._informer.run(self._report_unknown, asyncio.Event())
        except Exception:
            self._set_refused(is_refused=True)
            log.exception(
                "jobs_watch_failed",
                consequence=f"{METRIC} is not updated any more. {NODES_INCOMPLETE}",
            )

    async def _permitted(self) -> None:
        is_known = False
        while (
            refusal := await refusal_to_list_any(self._client, JOBS, self._namespaces)
        ) is not None:
            write = log.debug if is_known else log.warning
            write(
                "jobs_not_readable",
                error=str(refusal),
                consequence=f"{METRIC} stays empty. {NODES_INCOMPLETE}",
            )
            is_known = True
            self._set_refused(is_refused=True)
            await self._clock.sleep(RECHECK_AFTER)
        self._set_refused(is_refused=False)

    def _set_refused(self, *, is_refused: bool) -> None:
        self._is_refused = is_refused
        self._report_unknown()

    def _report_unknown(self) -> None:
        """Report the JobSets whose ready pods were not known before."""
        known = {key for key in self._unknown if not self._is_starting(key.namespace)}
        self._unknown -= known
        for key in known:
            self._on_ready_pods(key)

    def _is_starting(self, namespace: str) -> bool:
        """Whether the Jobs are about to be read for the first time."""
        informer = self._informers.get(namespace) or self._informers.get(None)
        if self._is_refused or informer is None:
            return False
        return not informer.has_synced and informer.refusal is None

    def _is_kept(self, manifest: Manifest) -> bool:
        if loses_its_pods(manifest):
            metadata = manifest["metadata"]
            job_set = metadata_of_job_set(self._cache, _job_set_of(metadata))
            if job_set is not None and is_controlled_by(metadata, job_set["uid"]):
                self._on_failing(manifest)
        return has_some_ready_pods(manifest) or self.is_awaited(manifest)

    def ready_pods(self, job_set: Manifest) -> Mapping[str, int] | None:
        """Return the ready pods of the JobSet's Jobs that have other pods, by replicated job.

        None if there may be such pods but the Jobs have not been read yet. The JobSet is reported
        when they have.
        """
        metadata, found = job_set["metadata"], dict[str, int]()
        key = ObjectKey(metadata["namespace"], metadata["name"])
        if self._is_starting(key.namespace):
            if not _has_unready_jobs(job_set):
                return found
            self._unknown.add(key)
            return None
        for job in self._informer.by_index(INDEX_JOB_SET, str(key)):
            if has_some_ready_pods(job) and is_controlled_by(job["metadata"], metadata["uid"]):
                name = job["metadata"]["labels"].get(LABEL_REPLICATED_JOB, "")
                found[name] = found.get(name, 0) + _ready_pods(job)
        return found

    def is_awaited(self, manifest: Manifest) -> bool:
        """Whether the Job has had pods and its TrainJob, by name, still waits for the first."""
        if not _has_had_pods(manifest.get("status") or {}):
            return False
        return self._counts.awaiting(_job_set_of(manifest["metadata"]), "pod") is not None

    def changed(self, change: ObjectEvent[Any]) -> None:
        """Handle an event of a Job with pods; those of the initial list have no known time."""
        seen = change.old if change.new is None else change.new
        if seen is not None and _ready_pods_of(change.old) != _ready_pods_of(change.new):
            self._on_ready_pods(_job_set_of(seen.metadata))
        if change.new is None or not self.is_awaited(change.new.manifest):
            return
        metadata = change.new.metadata
        key = _job_set_of(metadata)
        if change.initial:
            self._counts.first_pod_running(key, None)
        else:
            self._report(key, [metadata], self._clock.now().timestamp())

    def job_set_changed(self, key: ObjectKey, now: float | None) -> None:
        """Handle an event of a JobSet whose Jobs may have arrived before it.

        `now` is None if the time is not known. Call this for every event, because a JobSet may be
        re-created.
        """
        if self._counts.awaiting(key, "pod") is not None:
            jobs = self._informer.by_index(INDEX_JOB_SET, str(key))
            self._report(key, (each["metadata"] for each in jobs), now)

    def _report(self, key: ObjectKey, jobs: Iterable[Manifest], now: float | None) -> None:
        """Record the first pod if a Job belongs to the TrainJob, compared by UID."""
        uid = self._counts.awaiting(key, "pod")
        if uid is None:
            return
        job_set = metadata_of_job_set(self._cache, key)
        if job_set is None or not is_controlled_by(job_set, uid):
            return
        if any(is_controlled_by(each, job_set["uid"]) for each in jobs):
            self._counts.first_pod_running(key, now)


def metadata_of_job_set(cache: Cache, key: ObjectKey) -> Manifest | None:
    """Return the metadata of a JobSet; None if it does not exist or JobSets are not cached."""
    try:
        seen = cache.informer(JOB_SETS).cached_object(key)
    except NotCachedError:
        return None
    return None if seen is None else seen.metadata


def loses_its_pods(job: Manifest) -> bool:
    """Whether a Job is failing whose pods are then deleted, because they restart in place."""
    template = ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
    if template.get("restartPolicy") != "OnFailure":
        return False
    conditions = (job.get("status") or {}).get("conditions") or ()
    true = {each.get("type") for each in conditions if each.get("status") == "True"}
    return "FailureTarget" in true and "Failed" not in true


def _has_unready_jobs(job_set: Manifest) -> bool:
    """Whether a Job of the JobSet has pods, but not all of them are ready."""
    rows = (job_set.get("status") or {}).get("replicatedJobsStatus") or ()
    return any((row.get("active") or 0) > (row.get("ready") or 0) for row in rows)


def _has_had_pods(status: Manifest) -> bool:
    return bool(status.get("ready") or status.get("succeeded"))


def _job_set_of(metadata: Manifest) -> ObjectKey:
    name = (metadata.get("labels") or {}).get(LABEL_JOB_SET, "")
    return ObjectKey(metadata["namespace"], name)


def _index_job_set(job: ObservedObject[Manifest]) -> Iterable[str]:
    return (str(_job_set_of(job.metadata)),)


def has_some_ready_pods(job: Manifest) -> bool:
    """Whether some of the Job's pods are ready or have succeeded, and others are not."""
    parallelism: int = (job.get("spec") or {}).get("parallelism", 1)
    return 0 < _ready_pods(job) < parallelism


def _ready_pods(job: Manifest) -> int:
    status = job.get("status") or {}
    ready, succeeded = status.get("ready") or 0, status.get("succeeded") or 0
    return int(ready) + int(succeeded)


def _ready_pods_of(job: ObservedObject[Manifest] | None) -> int:
    return 0 if job is None else _ready_pods(job.manifest)


def _slim(manifest: Manifest) -> Manifest:
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    return {
        "metadata": {field: metadata[field] for field in KEPT_METADATA if field in metadata},
        "spec": {"parallelism": (manifest.get("spec") or {}).get("parallelism", 1)},
        "status": {field: status[field] for field in KEPT_STATUS if field in status},
    }
