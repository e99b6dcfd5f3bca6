"""Detects when the first pod of a TrainJob runs, by watching Jobs without caching them.

The status of a JobSet cannot replace this watch: its `ready` counts the Jobs whose pods are all
ready, which for a training on many nodes may be hours after the first pod, and its `active` also
counts Jobs whose pods are pending.
"""

import asyncio
from collections.abc import Iterable, Sequence
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
RECHECK_AFTER = 300.0  # seconds until a missing permission is checked again
INDEX_JOB_SET = "job-set"
KEPT_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences")
METRIC = "kftrainer_trainjob_first_pod_running_seconds"


class FirstPods:
    """Watch the Jobs of JobSets for the first pods of TrainJobs.

    A Job is cached only from the time at which it has such a pod until its next change. Its event
    may arrive before that of its JobSet, because each kind has its own watch; the Job is then
    evaluated when the JobSet arrives.
    """

    def __init__(
        self,
        counts: TrainJobCounts,
        cache: Cache,
        client: Client,
        *,
        clock: Clock,
        metrics: Metrics,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._counts = counts
        self._cache = cache
        self._client = client
        self._clock = clock
        self._namespaces = namespaces

        def make(namespace: str | None) -> Informer[Manifest]:
            return Informer(
                client,
                JOBS,
                clock=clock,
                namespace=namespace,
                label_selector=LABEL_JOB_SET,
                keep=self.is_awaited,
                transform=_slim,
                indexes={INDEX_JOB_SET: _index_job_set},
                metrics=metrics.for_informer(JOBS.group_kind),
            )

        self._informer = in_namespaces(JOBS, namespaces, make)

    async def run(self) -> None:
        """Watch until cancelled, once that is permitted; a failure only disables the metric."""
        try:
            await self._permitted()
            self._informer.add_handler(self.changed)
            await self._informer.run(_nothing, asyncio.Event())
        except Exception:
            log.exception("first_pods_watch_failed", consequence=f"nothing is added to {METRIC}")

    async def _permitted(self) -> None:
        is_known = False
        while (
            refusal := await refusal_to_list_any(self._client, JOBS, self._namespaces)
        ) is not None:
            write = log.debug if is_known else log.warning
            write(
                "jobs_not_readable",
                error=str(refusal),
                consequence=f"{METRIC} stays empty",
            )
            is_known = True
            await self._clock.sleep(RECHECK_AFTER)

    def is_awaited(self, manifest: Manifest) -> bool:
        """Whether the Job has had pods and its TrainJob, by name, still waits for the first."""
        if not _has_had_pods(manifest.get("status") or {}):
            return False
        return self._counts.awaiting(_job_set_of(manifest["metadata"]), "pod") is not None

    def changed(self, change: ObjectEvent[Any]) -> None:
        """Handle an event of a Job with pods; those of the initial list have no known time."""
        if change.new is None:
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


def _has_had_pods(status: Manifest) -> bool:
    return bool(status.get("ready") or status.get("succeeded"))


def _job_set_of(metadata: Manifest) -> ObjectKey:
    name = (metadata.get("labels") or {}).get(LABEL_JOB_SET, "")
    return ObjectKey(metadata["namespace"], name)


def _index_job_set(job: ObservedObject[Manifest]) -> Iterable[str]:
    return (str(_job_set_of(job.metadata)),)


def _slim(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    return {"metadata": {field: metadata[field] for field in KEPT_METADATA if field in metadata}}


def _nothing() -> None:
    """Ignore readiness: nothing waits for this informer."""
