"""Feeds events of TrainJobs and JobSets into the counts of TrainJobs, on the leader."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from prometheus_client import CollectorRegistry

from kftrainer.api.resources import JOB_SETS, TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.controllers.metrics.collectors import JobCounts
from kftrainer.controllers.metrics.counts import TrainJobCounts
from kftrainer.controllers.metrics.job_watch import JobWatch, metadata_of_job_set
from kftrainer.controllers.metrics.state import facts_of
from kftrainer.kube.objects.resource import ObjectKey, Resource, is_controlled_by
from kftrainer.machinery.cache.cache import Cache, NotCachedError
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.manager.clock import Clock


class TrainJobObserver:
    """Runnable for the leader that counts TrainJobs; start it before the TrainJob controller.

    It is ready at once and never blocks the start of the manager. After it has stopped, it ignores
    events and exports no counts, because a former leader may run for a while beside the next one.
    """

    name = "training metrics"

    def __init__(
        self,
        counts: TrainJobCounts,
        cache: Cache,
        registry: CollectorRegistry,
        job_watch: JobWatch,
        *,
        clock: Clock,
    ) -> None:
        self._counts = counts
        self._cache = cache
        self._registry = registry
        self._job_watch = job_watch
        self._clock = clock
        self._is_listening = False
        self._watches_job_sets = False

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Count TrainJobs until `stop` is set."""
        self._is_listening = True
        handled = self._cache.informer(TRAIN_JOBS).add_handler(self.train_job_changed)
        self.installed(JOB_SETS)
        ready()
        with ExitStack() as exit_stack:
            exit_stack.callback(self._stop_listening)
            async with asyncio.TaskGroup() as tasks:
                counting = self._count(handled, exit_stack)
                task = tasks.create_task(counting, name=f"{self.name}: count")
                await stop.wait()
                task.cancel()

    async def _count(self, handled: asyncio.Event, exit_stack: ExitStack) -> None:
        await self._cache.informer(TRAIN_JOBS).wait_synced()
        await handled.wait()
        counts = JobCounts(self._counts)
        self._registry.register(counts)  # only after all TrainJobs are counted
        exit_stack.callback(self._registry.unregister, counts)
        await self._job_watch.run()

    def _stop_listening(self) -> None:
        self._is_listening = False

    def installed(self, resource: Resource[Any]) -> None:
        """Handle that a kind is now cached: watch JobSets, if that is the kind."""
        if resource is not JOB_SETS or not self._is_listening or self._watches_job_sets:
            return
        try:
            self._cache.informer(JOB_SETS).add_handler(self.job_set_changed)
        except NotCachedError:
            return  # not installed yet
        self._watches_job_sets = True

    def train_job_changed(self, change: ObjectEvent[TrainJob]) -> None:
        """Handle an event of a TrainJob: add, update or remove it."""
        if not self._is_listening:
            return
        key, manifest = change.key, None if change.new is None else change.new.manifest
        facts = None if manifest is None else facts_of(manifest)
        if facts is None:
            self._counts.remove(key)
            return
        uid = facts.uid
        self._counts.put(key, facts, self._now(), lambda: self._has_job_set(key, uid))

    def job_set_changed(self, change: ObjectEvent[Any]) -> None:
        """Handle an event of a JobSet; one of the initial list has no known creation time."""
        if change.new is None or not self._is_listening:
            return
        now = None if change.initial else self._now()
        job = self._counts.awaiting(change.key, "JobSet")
        if job is not None and is_controlled_by(change.new.metadata, job):
            self._counts.job_set_created(change.key, now)
        self._job_watch.job_set_changed(change.key, now)

    def _has_job_set(self, key: ObjectKey, job: str) -> bool:
        job_set = metadata_of_job_set(self._cache, key)
        return job_set is not None and is_controlled_by(job_set, job)

    def _now(self) -> float:
        return self._clock.now().timestamp()
