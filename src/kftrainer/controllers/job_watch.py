"""Keeps the book of TrainJobs on the leader: enters them, and what becomes of them."""

import asyncio
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from kftrainer.api.resources import JOB_SETS, TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.first_pods import FirstPods, is_controlled_by, metadata_of_job_set
from kftrainer.controllers.job_book import JobBook
from kftrainer.controllers.job_metrics import JobCounts
from kftrainer.controllers.job_state import facts_of
from kftrainer.kube.resource import Manifest, ObjectKey, Resource
from kftrainer.machinery.cache import Cache, NotCachedError
from kftrainer.machinery.changes import Change
from kftrainer.machinery.clock import Clock


class JobWatch:
    """A service for the leader, to be started before what reconciles TrainJobs.

    It must not be what keeps the manager from working: it is ready at once, and waits for nothing
    that may not come.
    """

    name = "training metrics"

    def __init__(
        self,
        book: JobBook,
        cache: Cache,
        registry: CollectorRegistry,
        first_pods: FirstPods,
        *,
        clock: Clock,
    ) -> None:
        self._book = book
        self._cache = cache
        self._registry = registry
        self._first_pods = first_pods
        self._clock = clock
        self._has_begun = False
        self._watches_job_sets = False

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Keep the book until told to stop."""
        self._has_begun = True
        told = self._cache.informer(TRAIN_JOBS).add_handler(self.train_job_changed)
        self.installed(JOB_SETS)
        ready()
        async with asyncio.TaskGroup() as tasks:
            counting = tasks.create_task(self._count(told, stop), name=f"{self.name}: count")
            await stop.wait()
            counting.cancel()

    async def _count(self, told: asyncio.Event, stop: asyncio.Event) -> None:
        await self._cache.informer(TRAIN_JOBS).wait_synced()
        await told.wait()
        self._registry.register(JobCounts(self._book))  # not before all are in it
        await self._first_pods.run(stop)

    def installed(self, resource: Resource[Any]) -> None:
        """A kind has come into the cache; of JobSets we want to know, as soon as we run."""
        if resource is not JOB_SETS or not self._has_begun or self._watches_job_sets:
            return
        try:
            self._cache.informer(JOB_SETS).add_handler(self.job_set_changed)
        except NotCachedError:
            return  # not installed yet
        self._watches_job_sets = True

    def train_job_changed(self, change: Change[TrainJob]) -> None:
        """Enter a TrainJob as it is, or strike it out."""
        key, manifest = change.key, None if change.new is None else change.new.manifest
        facts = None if manifest is None else facts_of(manifest)
        if manifest is None or facts is None:
            self._book.remove(key)
        else:
            own = manifest["metadata"]
            self._book.put(key, facts, self._now(), lambda: self._has_job_set(key, own))

    def job_set_changed(self, change: Change[Any]) -> None:
        """Note that a TrainJob has got its JobSet."""
        if change.new is None or not self._book.awaits(change.key, "JobSet"):
            return
        job = self._cache.informer(TRAIN_JOBS).seen(change.key)
        if job is not None and is_controlled_by(change.new.metadata, job.metadata):
            self._book.job_set_made(change.key, self._now())

    def _has_job_set(self, key: ObjectKey, job: Manifest) -> bool:
        job_set = metadata_of_job_set(self._cache, key)
        return job_set is not None and is_controlled_by(job_set, job)

    def _now(self) -> float:
        return self._clock.now().timestamp()
