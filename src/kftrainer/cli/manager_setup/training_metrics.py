"""Sets up the metrics about the build and about TrainJobs."""

import platform
from collections.abc import Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge

from kftrainer.controllers.metrics.collectors import JobHistograms
from kftrainer.controllers.metrics.counts import TrainJobCounts
from kftrainer.controllers.metrics.first_pods import FirstPods
from kftrainer.controllers.metrics.observer import TrainJobObserver
from kftrainer.kube.client.client import Client
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


def training_watch(
    client: Client,
    cache: Cache,
    metrics: Metrics,
    *,
    clock: Clock,
    namespaces: Sequence[str] = (),
) -> TrainJobObserver:
    """Return the Runnable that measures TrainJobs, for the leader."""
    counts = TrainJobCounts(JobHistograms(metrics.registry))
    first_pods = FirstPods(
        counts, cache, client, clock=clock, metrics=metrics, namespaces=namespaces
    )
    return TrainJobObserver(counts, cache, metrics.registry, first_pods, clock=clock)
