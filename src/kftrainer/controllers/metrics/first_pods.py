"""When the first pod of a TrainJob runs: Jobs tell, which nobody else reads and which are not kept.

A TrainJob's status, like a JobSet's, says only that all pods of a Job are ready.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from kftrainer.api.resources import JOB_SETS, JOBS
from kftrainer.controllers.metrics.counts import JobBook
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ForbiddenError, KubeError
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.kube.permissions import refusals_to_list
from kftrainer.machinery.cache.cache import Cache, NotCachedError
from kftrainer.machinery.cache.informer import Informer
from kftrainer.machinery.cache.multi_namespace import in_namespaces
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.metrics.registry import Metrics

log = structlog.get_logger(__name__)

LABEL_JOB_SET = "jobset.sigs.k8s.io/jobset-name"  # on the Jobs of a JobSet
ASK_AGAIN = 300.0  # seconds, for a right that we lack
INDEX_JOB_SET = "job-set"
KEPT_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences")
METRIC = "kftrainer_trainjob_first_pod_running_seconds"


class FirstPods:
    """Watches the Jobs of JobSets for pods that the book waits for.

    A Job is kept only from the moment at which it has such a pod to its next change. It may come
    before we know its JobSet, as each kind is watched by itself; then it is waited for that.
    """

    def __init__(
        self,
        book: JobBook,
        cache: Cache,
        client: Client,
        *,
        clock: Clock,
        metrics: Metrics,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._book = book
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
        """Watch until cancelled, as soon as we may; if that fails, all else goes on without it."""
        try:
            await self._permitted()
            self._informer.add_handler(self.changed)
            await self._informer.run(_nothing, asyncio.Event())
        except Exception:
            log.exception("training_metrics.gave_up", consequence=f"nothing is added to {METRIC}")

    async def _permitted(self) -> None:
        is_known = False
        while (refusal := await self._refusal()) is not None:
            say = log.debug if is_known else log.warning
            say(
                "training_metrics.no_jobs",
                error=str(refusal),
                consequence=f"{METRIC} stays empty",
            )
            is_known = True
            await self._clock.sleep(ASK_AGAIN)

    async def _refusal(self) -> ForbiddenError | None:
        """Return why Jobs must not be read anywhere; in a part of the namespaces is enough."""
        try:
            refusals = await refusals_to_list(self._client, JOBS, self._namespaces)
        except KubeError:
            return None  # it may pass, and the informer is patient
        if len(refusals) < max(1, len(self._namespaces)):
            return None
        return next(iter(refusals.values()))

    def is_awaited(self, manifest: Manifest) -> bool:
        """Whether it has the pod that the book waits for, or one of an earlier Job of its name."""
        if not _has_had_pods(manifest.get("status") or {}):
            return False
        return self._book.awaiting(_job_set_of(manifest["metadata"]), "pod") is not None

    def changed(self, change: ObjectEvent[Any]) -> None:
        """Tell the book of a Job that has come to be kept; what ran before we came is no news."""
        if change.new is None:
            return
        metadata = change.new.metadata
        key = _job_set_of(metadata)
        if change.initial:
            self._book.pod_runs(key, None)
        else:
            self._tell(key, [metadata], self._clock.now().timestamp())

    def job_set_changed(self, key: ObjectKey, now: float | None) -> None:
        """A JobSet is here that its Jobs may have come before; some time ago if no time is given.

        To be told of each change, for a JobSet may be made anew.
        """
        if self._book.awaiting(key, "pod") is not None:
            jobs = self._informer.by_index(INDEX_JOB_SET, str(key))
            self._tell(key, (each["metadata"] for each in jobs), now)

    def _tell(self, key: ObjectKey, jobs: Iterable[Manifest], now: float | None) -> None:
        """Tell the book of Jobs, if one is of the TrainJob and not of one of the same name."""
        uid = self._book.awaiting(key, "pod")
        if uid is None:
            return
        job_set = metadata_of_job_set(self._cache, key)
        if job_set is None or not is_controlled_by(job_set, uid):
            return
        if any(is_controlled_by(each, job_set["uid"]) for each in jobs):
            self._book.pod_runs(key, now)


def metadata_of_job_set(cache: Cache, key: ObjectKey) -> Manifest | None:
    """The metadata of a JobSet; None if there is none, or if we do not know JobSets yet."""
    try:
        seen = cache.informer(JOB_SETS).seen(key)
    except NotCachedError:
        return None
    return None if seen is None else seen.metadata


def is_controlled_by(metadata: Manifest, owner: str) -> bool:
    """Whether the object belongs to the owner of this uid, not to one that had its name before."""
    return any(
        reference.get("controller") and reference["uid"] == owner
        for reference in metadata.get("ownerReferences") or ()
    )


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
    """Nobody waits for it."""
