"""Sets up the metrics about the build and about TrainJobs."""

import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge

from kftrainer.controllers.metrics.collectors import JobHistograms
from kftrainer.controllers.metrics.counts import TrainJobCounts
from kftrainer.controllers.metrics.job_watch import JobWatch
from kftrainer.controllers.metrics.observer import TrainJobObserver
from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.manager.clock import Clock
from kftrainer.machinery.metrics.registry import Metrics


def export_build_info(registry: CollectorRegistry) -> None:
    """Export the version and the Python version as a metric."""
    family = Gauge(
        "kftrainer_build_info",
        "Always 1; the labels contain the versions of kftrainer and Python.",
        ("version", "python"),
        registry=registry,
    )
    family.labels(version("kftrainer"), platform.python_version()).set(1)


def training_watch(  # noqa: PLR0913  the dependencies of both
    client: Client,
    cache: Cache,
    metrics: Metrics,
    *,
    clock: Clock,
    namespaces: Sequence[str] = (),
    on_ready_pods: Callable[[ObjectKey], None],
    on_failing: Callable[[Manifest], None],
) -> tuple[TrainJobObserver, JobWatch]:
    """Return the Runnable that measures TrainJobs, for the leader, and its watch on Jobs."""
    counts = TrainJobCounts(JobHistograms(metrics.registry))
    job_watch = JobWatch(
        counts,
        cache,
        client,
        clock=clock,
        metrics=metrics,
        namespaces=namespaces,
        on_ready_pods=on_ready_pods,
        on_failing=on_failing,
    )
    return TrainJobObserver(counts, cache, metrics.registry, job_watch, clock=clock), job_watch
