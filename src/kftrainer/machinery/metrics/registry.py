"""The machinery's metrics, with the names of controller-runtime and client-go.

Each `Metrics` has its own registry. Each metric is declared where its series are created: once,
when a queue, a controller or an informer is created, so the methods are cheap enough to call for
every event.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kftrainer.machinery.metrics.process import ProcessMetrics
from kftrainer.machinery.metrics.text_format import exposition

Value = TypeVar("Value")
Series = TypeVar("Series")
Family = TypeVar("Family", Counter, Gauge, Histogram)
Outcome = Literal["success", "error", "requeue_after", "requeue"]

RECONCILE_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8),
    *(0.9, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40),
    *(50, 60),
)
REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RESULTS: tuple[Outcome, ...] = ("error", "requeue_after", "requeue", "success")
# Series that exist from the start: `rate()` misses the first increment of a new series.
VERDICT_CODES = (200, 403, 429, 500, 504)
HTTP_CODES = (200, 429, 500)
DROP_REASONS = ("failed", "queue_full", "refused", "spam", "unreachable")
MOST_PRIORITIES = 25
OTHER_PRIORITIES = "exceeded_cardinality_limit"


def _powers_of_ten(start: float, count: int) -> tuple[float, ...]:
    """Return the powers as Go computes them; rounding errors are part of the `le` labels."""
    bounds = []
    for _ in range(count):
        bounds.append(start)
        start *= 10
    return tuple(bounds)


QUEUE_BUCKETS = _powers_of_ten(10e-9, 12)


class _Families:
    """Metric families of one registry; a family is registered with its first series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, name: str, text: str, /, **labels: object) -> Counter:
        """Return the series with these labels, and create it if it does not exist."""
        return _series(
            self._counters, partial(Counter, registry=self._registry), name, text, labels
        )

    def gauge(self, name: str, text: str, /, **labels: object) -> Gauge:
        """Return the series with these labels, and create it if it does not exist."""
        return _series(self._gauges, partial(Gauge, registry=self._registry), name, text, labels)

    def histogram(
        self, name: str, text: str, buckets: Sequence[float], /, **labels: object
    ) -> Histogram:
        """Return the series with these labels, and create it if it does not exist."""
        create = partial(Histogram, registry=self._registry, buckets=buckets)
        return _series(self._histograms, create, name, text, labels)


def _series(
    families: dict[str, Family],
    create: Callable[[str, str, Sequence[str]], Family],
    name: str,
    text: str,
    labels: Mapping[str, object],
) -> Family:
    """Return the series with these labels; create it, and its family, if it does not exist."""
    family = families.get(name)
    if family is None:
        family = families[name] = create(name, text, tuple(labels))
    return family.labels(*labels.values()) if labels else family


class _Labelled:
    """Series of several families with the same labels; their names begin with `prefix`."""

    def __init__(self, families: _Families, prefix: str, **labels: str) -> None:
        self._families = families
        self._prefix = prefix
        self._labels = labels

    def counter(self, name: str, text: str, /, **more: str) -> Counter:
        """Return the counter of the family `prefix_name`, with more labels."""
        return self._families.counter(f"{self._prefix}_{name}", text, **self._labels, **more)

    def gauge(self, name: str, text: str, /) -> Gauge:
        """Return the gauge of the family `prefix_name`."""
        return self._families.gauge(f"{self._prefix}_{name}", text, **self._labels)


class _ByValue(dict[Value, Series]):
    """Series by the value of one label; those of the known values exist from the start."""

    def __init__(self, create: Callable[[Value], Series], known: Iterable[Value] = ()) -> None:
        super().__init__((value, create(value)) for value in known)
        self._create = create

    def __missing__(self, value: Value) -> Series:
        series = self[value] = self._create(value)
        return series


class QueueMetrics:
    """Metrics of one work queue."""

    def __init__(self, families: _Families, name: str) -> None:
        labels = {"name": name, "controller": name}

        def depths(priority: int | str) -> Gauge:
            text = "Items that wait in the queue, by priority."
            return families.gauge("workqueue_depth", text, **labels, priority=priority)

        self._depths = _ByValue(depths)
        self._adds = families.counter(
            "workqueue_adds_total", "Items that became ready to be processed.", **labels
        )
        self._waited = families.histogram(
            "workqueue_queue_duration_seconds",
            "Time that items waited in the queue before they were processed.",
            QUEUE_BUCKETS,
            **labels,
        )
        self._worked = families.histogram(
            "workqueue_work_duration_seconds",
            "Time that processing an item took.",
            QUEUE_BUCKETS,
            **labels,
        )
        self._unfinished = families.gauge(
            "workqueue_unfinished_work_seconds",
            "Sum of the times for which the current items have been in progress.",
            **labels,
        )
        self._longest = families.gauge(
            "workqueue_longest_running_processor_seconds",
            "Time for which the oldest of the current items has been in progress.",
            **labels,
        )
        self._retries = families.counter(
            "workqueue_retries_total", "Items that were added for a later retry.", **labels
        )

    def depth(self, priority: int, delta: int) -> None:
        """Change the number of waiting items of this priority by delta."""
        is_known = priority in self._depths or len(self._depths) < MOST_PRIORITIES
        self._depths[priority if is_known else OTHER_PRIORITIES].inc(delta)

    def added(self) -> None:
        """Count an item that became ready."""
        self._adds.inc()

    def handed_out(self, waited: float) -> None:
        """Record that an item was taken this many seconds after it became ready."""
        self._waited.observe(waited)

    def done(self, worked: float) -> None:
        """Record that an item was done this many seconds after it was taken."""
        self._worked.observe(worked)

    def retried(self) -> None:
        """Count an item that was added for a later retry."""
        self._retries.inc()

    def watch_unfinished(self, ages: Callable[[], Sequence[float]]) -> None:
        """Register a function that returns the ages of the items in progress at each scrape."""
        self._unfinished.set_function(lambda: sum(ages()))
        self._longest.set_function(lambda: max(ages(), default=0.0))


class ControllerMetrics:
    """Metrics of one controller."""

    def __init__(self, families: _Families, name: str) -> None:
        own = _Labelled(families, "controller_runtime", controller=name)

        def by_result(result: Outcome) -> Counter:
            return own.counter("reconcile_total", "Reconciles by their result.", result=result)

        self._results = _ByValue(by_result, RESULTS)
        self._errors = own.counter("reconcile_errors_total", "Reconciles that failed.")
        self._terminal = own.counter(
            "terminal_reconcile_errors_total", "Reconciles that failed and are not retried."
        )
        self._panics = own.counter(
            "reconcile_panics_total", "Reconciles that ended with an unexpected exception."
        )
        self._timeouts = own.counter("reconcile_timeouts_total", "Reconciles that timed out.")
        self._seconds = families.histogram(
            "controller_runtime_reconcile_time_seconds",
            "Time that a reconcile took.",
            RECONCILE_BUCKETS,
            controller=name,
        )
        self._most = own.gauge(
            "max_concurrent_reconciles", "Maximum number of concurrent reconciles."
        )
        self._active = own.gauge("active_workers", "Number of running reconciles.")

    def max_workers(self, count: int) -> None:
        """Set the maximum number of concurrent reconciles."""
        self._most.set(count)

    def active(self, delta: int) -> None:
        """Change the number of running reconciles by delta."""
        self._active.inc(delta)

    def reconciled(self, result: Outcome, seconds: float) -> None:
        """Record a finished reconcile; errors are also counted in the error counter."""
        self._results[result].inc()
        self._seconds.observe(seconds)
        if result == "error":
            self._errors.inc()

    def terminal(self) -> None:
        """Count an error that is not retried."""
        self._terminal.inc()

    def panicked(self) -> None:
        """Count an unexpected exception."""
        self._panics.inc()

    def timed_out(self) -> None:
        """Count a timeout."""
        self._timeouts.inc()


class InformerMetrics:
    """Metrics of one informer; informers of the same kind in several namespaces add up."""

    def __init__(self, families: _Families, group_kind: str) -> None:
        own = _Labelled(families, "machinery_informer", kind=group_kind)

        def relists(reason: str) -> Counter:
            return own.counter("relists_total", "Full lists, by reason.", reason=reason)

        def events(kind: str) -> Counter:
            return own.counter("events_total", "Events of the watch.", type=kind)

        self._objects = own.gauge("objects", "Objects in the cache.")
        self._bytes = own.gauge("bytes", "Size of the objects in the cache, as stored.")
        self._relists = _ByValue(relists)
        self._reconnects = own.counter(
            "watch_reconnects_total", "Watches that were resumed without a new list."
        )
        self._events = _ByValue(events)
        self._own_objects = 0
        self._own_bytes = 0

    def relisted(self, reason: str) -> None:
        """Count a relist; `reason` must be one of a few constants."""
        self._relists[reason].inc()

    def reconnected(self) -> None:
        """Count a watch that was resumed where it had ended."""
        self._reconnects.inc()

    def objects(self, count: int) -> None:
        """Set the number of objects in the cache."""
        self._objects.inc(count - self._own_objects)
        self._own_objects = count

    def bytes_held(self, count: int) -> None:
        """Set the size of the objects in the cache."""
        self._bytes.inc(count - self._own_bytes)
        self._own_bytes = count

    def event(self, kind: str) -> None:
        """Count a watch event."""
        self._events[kind].inc()


class WebhookMetrics:
    """Metrics of one webhook, by its path."""

    def __init__(self, families: _Families, path: str, panics: Counter) -> None:
        def requests(code: int) -> Counter:
            text = "Requests by the HTTP status of the response."
            return families.counter(
                "controller_runtime_webhook_requests_total", text, webhook=path, code=code
            )

        def responses(code: int) -> Counter:
            text = "Admission responses by the code that the client of the API server receives."
            return families.counter(
                "machinery_webhook_verdicts_total", text, webhook=path, code=code
            )

        self._panics = panics
        self._seconds = families.histogram(
            "controller_runtime_webhook_latency_seconds",
            "Time that handling a request took.",
            QUEUE_BUCKETS,
            webhook=path,
        )
        self._in_flight = families.gauge(
            "controller_runtime_webhook_requests_in_flight",
            "Requests that are being handled.",
            webhook=path,
        )
        self._requests = _ByValue(requests, HTTP_CODES)
        self._responses = _ByValue(responses, VERDICT_CODES)

    def in_flight(self, delta: int) -> None:
        """Change the number of requests in progress by delta."""
        self._in_flight.inc(delta)

    def responded(self, code: int, seconds: float) -> None:
        """Record a response with this HTTP status."""
        self._requests[code].inc()
        self._seconds.observe(seconds)

    def reviewed(self, code: int) -> None:
        """Count an admitted request, or one denied with this code."""
        self._responses[code].inc()

    def panicked(self) -> None:
        """Count an unexpected exception."""
        self._panics.inc()


class Metrics:
    """All metrics of one manager."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._families = families = _Families(self.registry)

        def events_dropped(reason: str) -> Counter:
            text = "Kubernetes Events that were not written."
            return families.counter("machinery_events_dropped_total", text, reason=reason)

        self._events_dropped = _ByValue(events_dropped, DROP_REASONS)
        self._lag = families.histogram(
            "machinery_event_loop_lag_seconds", "Delay of timers in the event loop.", LAG_BUCKETS
        )
        self._webhook_panics = families.counter(
            "controller_runtime_webhook_panics_total",
            "Requests that ended with an unexpected exception.",
        )
        # Always zero, as there are no conversion webhooks; dashboards query it.
        families.counter(
            "controller_runtime_conversion_webhook_panics_total",
            "Conversions that ended with an unexpected exception.",
        )
        self._certificate_reads = families.counter(
            "certwatcher_read_certificate_total", "Attempts to read a certificate."
        )
        self._certificate_errors = families.counter(
            "certwatcher_read_certificate_errors_total",
            "Failed attempts to read a certificate.",
        )
        self.registry.register(ProcessMetrics())

    def for_queue(self, name: str) -> QueueMetrics:
        """Return the metrics of one work queue; the series exist from now on."""
        return QueueMetrics(self._families, name)

    def for_controller(self, name: str) -> ControllerMetrics:
        """Return the metrics of one controller; the series exist from now on, at zero."""
        return ControllerMetrics(self._families, name)

    def for_informer(self, group_kind: str) -> InformerMetrics:
        """Return the metrics of one informer; the series exist from now on."""
        return InformerMetrics(self._families, group_kind)

    def for_webhook(self, path: str) -> WebhookMetrics:
        """Return the metrics of one webhook; the series exist from now on, at zero."""
        return WebhookMetrics(self._families, path, self._webhook_panics)

    def observe_request(self, code: str, method: str, host: str, seconds: float) -> None:
        """Record a request to the API server; the code is `<error>` if it failed."""
        self._families.counter(
            "rest_client_requests_total",
            "Requests to the API server, counting each attempt.",
            code=code,
            method=method,
            host=host,
        ).inc()
        self._families.histogram(
            "rest_client_request_duration_seconds",
            "Time until the API server responded.",
            REQUEST_BUCKETS,
            verb=method,
            host=host,
        ).observe(seconds)

    def leader(self, name: str, leading: bool) -> None:  # noqa: FBT001  the recorded value
        """Set whether this process holds the lease of this name."""
        text = "Whether this process holds the lease."
        self._families.gauge("leader_election_master_status", text, name=name).set(int(leading))

    def readiness(self, check: str, *, passed: bool) -> None:
        """Set the result of a readiness check."""
        text = "Whether a readiness check passes; a replica is ready if all of them pass."
        self._families.gauge("machinery_readiness_check", text, name=check).set(int(passed))

    def loop_lag(self, seconds: float) -> None:
        """Record by how many seconds the event loop was late."""
        self._lag.observe(max(0.0, seconds))

    def event_dropped(self, reason: str) -> None:
        """Count a Kubernetes Event that was not written."""
        self._events_dropped[reason].inc()

    def certificate_read(self, *, usable: bool) -> None:
        """Count an attempt to read a certificate from its files or its Secret."""
        self._certificate_reads.inc()
        if not usable:
            self._certificate_errors.inc()

    def certificate_expires(self, server: str, at: float) -> None:
        """Set when the certificate of a server expires."""
        name = "machinery_certificate_expiry_timestamp_seconds"
        text = "Expiry of the certificate that a server presents, as a Unix time."
        self._families.gauge(name, text, server=server).set(at)

    def render(self) -> bytes:
        """Return all series in the Prometheus text format."""
        return exposition(self.registry)
