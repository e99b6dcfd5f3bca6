"""Prometheus metrics of TrainJobs: counts by state, and durations."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kftrainer.controllers.metrics.counts import (
    MOST_NAMESPACES,
    MOST_PLACES,
    MOST_RUNTIMES,
    NAMESPACED,
    TrainJobCounts,
)
from kftrainer.controllers.trainjob.state import State
from kftrainer.machinery.metrics.bounded_labels import OTHER, BoundedLabels

MINUTE, HOUR, DAY = 60, 3600, 86400
JOB_SET_BUCKETS = (0.5, 1, 2, 5, 10, 30, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 6 * HOUR, DAY)
POD_BUCKETS = (
    *(1, 2, 5, 10, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR, 12 * HOUR),
    *(DAY, 3 * DAY),
)
DURATION_BUCKETS = (
    *(1, 10, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR),
    *(DAY, 2 * DAY, 7 * DAY, 28 * DAY),
)
ROUNDED = (
    "The API server truncates creation times to seconds, so a value may be one second too long."
)
BY_RUNTIME = (
    "Events without a leader are not included. `runtime` is the name of a ClusterTrainingRuntime, "
    f"and {NAMESPACED} for all TrainingRuntimes; beyond {MOST_RUNTIMES} runtimes it is {OTHER}."
)


class JobHistograms:
    """Histograms of durations by runtime; series are never removed, so that rates are correct."""

    def __init__(self, registry: CollectorRegistry, *, most_runtimes: int = MOST_RUNTIMES) -> None:
        self._runtimes = BoundedLabels(most_runtimes + 1)
        self._runtimes.hold(NAMESPACED)
        self._job_set = Histogram(
            "kftrainer_trainjob_jobset_creation_seconds",
            "Time from the creation of a TrainJob until the manager observed its JobSet, including "
            f"the time while it was blocked. {ROUNDED} {BY_RUNTIME}",
            ("runtime",),
            registry=registry,
            buckets=JOB_SET_BUCKETS,
        )
        self._pod = Histogram(
            "kftrainer_trainjob_first_pod_running_seconds",
            "Time from the creation of a TrainJob until the manager observed that the first of its "
            "pods was ready or had succeeded, including the time while it was suspended or "
            f"blocked. {ROUNDED} {BY_RUNTIME}",
            ("runtime",),
            registry=registry,
            buckets=POD_BUCKETS,
        )
        self._duration = Histogram(
            "kftrainer_trainjob_duration_seconds",
            "Time from the creation of a TrainJob to its end according to its status, including "
            f"the time while it was suspended or waited for pods. {BY_RUNTIME}",
            ("runtime", "result"),
            registry=registry,
            buckets=DURATION_BUCKETS,
        )

    def adopted(self, runtime: str) -> None:
        """Initialize the series of a runtime whose TrainJob another manager started."""
        self._bounded(runtime)

    def job_set_created(self, runtime: str, seconds: float) -> None:
        """Observe the seconds from the creation of a TrainJob to that of its JobSet."""
        self._job_set.labels(self._bounded(runtime)).observe(seconds)

    def first_pod_running(self, runtime: str, seconds: float) -> None:
        """Observe the seconds from the creation of a TrainJob until its first pod ran."""
        self._pod.labels(self._bounded(runtime)).observe(seconds)

    def ended(self, runtime: str, result: State, seconds: float) -> None:
        """Observe the seconds from the creation of a TrainJob until it finished."""
        self._duration.labels(self._bounded(runtime), result).observe(seconds)

    def _bounded(self, runtime: str) -> str:
        label = self._runtimes.label(runtime)
        self._runtimes.hold(label)  # never released, like its series
        # Create the series with 0: a rate ignores the value that a series starts with.
        for result in ("Complete", "Failed"):
            self._duration.labels(label, result)
        return label


class JobCounts(Collector):
    """Collector of the counts of TrainJobs; a series is removed with its last TrainJob."""

    def __init__(self, counts: TrainJobCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Return the current counts."""
        jobs = GaugeMetricFamily(
            "kftrainer_trainjobs",
            "Number of TrainJobs by state. Running: all pods of at least one Job are ready. "
            "Pending: it waits for pods. The other states are those of its conditions; a TrainJob "
            "that is both Suspended and Blocked is Blocked. `runtime` is the name of a runtime of "
            f"either kind. Beyond {MOST_NAMESPACES} namespaces or {MOST_RUNTIMES} runtimes these "
            f"labels are {OTHER}; beyond {MOST_PLACES} pairs of the two, both are.",
            labels=("namespace", "runtime", "state"),
        )
        for group in self._counts.groups():
            jobs.add_metric((group.namespace, group.runtime, group.state), group.jobs)
        yield jobs
        oldest = GaugeMetricFamily(
            "kftrainer_trainjob_oldest_timestamp_seconds",
            "Earliest Unix time at which an unfinished TrainJob in this state entered it. The "
            "status has no time for Pending and Running. If the manager did not observe the "
            "change, for example before a restart, the time of the TrainJob's creation or last "
            "resumption is used; for a TrainJob that had pods and is Pending again, the time of "
            "the restart. `namespace` is as in kftrainer_trainjobs.",
            labels=("namespace", "state"),
        )
        for place, since in self._counts.oldest().items():
            oldest.add_metric(place, since)
        yield oldest
