"""The machinery's metrics, with the names of controller-runtime and client-go.

Each `Metrics` has its own registry. Series are bound once, when a queue, a controller or an
informer is created, so the methods are cheap enough to call for every event.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kftrainer.machinery.metrics.process import ProcessMetrics
from kftrainer.machinery.metrics.text_format import exposition

Outcome = Literal["success", "error", "requeue_after", "requeue"]

RECONCILE_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8),
    *(0.9, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40),
    *(50, 60),
)
REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RESULTS = ("error", "requeue_after", "requeue", "success")
# Series that exist from the start: `rate()` misses the first increment of a new series.
VERDICTS = (200, 403, 429, 500, 504)
ANSWERS = (200, 429, 500)
REASONS_TO_DROP = ("failed", "queue_full", "refused", "spam", "unreachable")
MOST_PRIORITIES = 25
TOO_MANY_PRIORITIES = "exceeded_cardinality_limit"


def _powers_of_ten(start: float, count: int) -> tuple[float, ...]:
    """Return the powers as Go computes them; rounding errors are part of the `le` labels."""
    bounds = []
    for _ in range(count):
        bounds.append(start)
        start *= 10
    return tuple(bounds)


QUEUE_BUCKETS = _powers_of_ten(10e-9, 12)


class _QueueFamilies:
    def __init__(self, registry: CollectorRegistry) -> None:
        names = ("name", "controller")
        self.depth = Gauge(
            "workqueue_depth",
            "Items that wait in the queue, by priority.",
            (*names, "priority"),
            registry=registry,
        )
        self.adds = Counter(
            "workqueue_adds_total", "Items that became ready.", names, registry=registry
        )
        self.waited = Histogram(
            "workqueue_queue_duration_seconds",
            "How long items stayed in the queue before they were handed out.",
            names,
            registry=registry,
            buckets=QUEUE_BUCKETS,
        )
        self.worked = Histogram(
            "workqueue_work_duration_seconds",
            "How long processing an item took.",
            names,
            registry=registry,
            buckets=QUEUE_BUCKETS,
        )
        self.unfinished = Gauge(
            "workqueue_unfinished_work_seconds",
            "For how long the items in progress have been so, all together.",
            names,
            registry=registry,
        )
        self.longest = Gauge(
            "workqueue_longest_running_processor_seconds",
            "For how long the oldest item in progress has been so.",
            names,
            registry=registry,
        )
        self.retries = Counter(
            "workqueue_retries_total",
            "Items that were added to be tried later.",
            names,
            registry=registry,
        )


class QueueMetrics:
    """Metrics of one work queue."""

    def __init__(self, families: _QueueFamilies, name: str) -> None:
        self._name = name
        self._families = families
        self._depths: dict[int, Gauge] = {}
        self._adds = families.adds.labels(name, name)
        self._waited = families.waited.labels(name, name)
        self._worked = families.worked.labels(name, name)
        self._unfinished = families.unfinished.labels(name, name)
        self._longest = families.longest.labels(name, name)
        self._retries = families.retries.labels(name, name)

    def depth(self, priority: int, delta: int) -> None:
        """Change the number of waiting items of this priority by delta."""
        gauge = self._depths.get(priority)
        if gauge is None:
            gauge = self._depth_gauge(priority)
        gauge.inc(delta)

    def _depth_gauge(self, priority: int) -> Gauge:
        if len(self._depths) >= MOST_PRIORITIES:
            return self._families.depth.labels(self._name, self._name, TOO_MANY_PRIORITIES)
        gauge = self._families.depth.labels(self._name, self._name, str(priority))
        self._depths[priority] = gauge
        return gauge

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


class _ControllerFamilies:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, words: str, *more: str) -> Counter:
            return Counter(
                f"controller_runtime_{name}", words, ("controller", *more), registry=registry
            )

        def gauge(name: str, words: str) -> Gauge:
            return Gauge(f"controller_runtime_{name}", words, ("controller",), registry=registry)

        self.total = counter("reconcile_total", "Reconciles by their result.", "result")
        self.errors = counter("reconcile_errors_total", "Reconciles that failed.")
        self.terminal = counter(
            "terminal_reconcile_errors_total", "Reconciles that failed and are not tried again."
        )
        self.panics = counter(
            "reconcile_panics_total", "Reconciles that ended with an unexpected exception."
        )
        self.timeouts = counter("reconcile_timeouts_total", "Reconciles that took too long.")
        self.seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "How long a reconcile took.",
            ("controller",),
            registry=registry,
            buckets=RECONCILE_BUCKETS,
        )
        self.most = gauge("max_concurrent_reconciles", "How many reconciles may run at a time.")
        self.active = gauge("active_workers", "How many reconciles are running.")


class ControllerMetrics:
    """Metrics of one controller."""

    def __init__(self, families: _ControllerFamilies, name: str) -> None:
        self._results = {result: families.total.labels(name, result) for result in RESULTS}
        self._errors = families.errors.labels(name)
        self._terminal = families.terminal.labels(name)
        self._panics = families.panics.labels(name)
        self._timeouts = families.timeouts.labels(name)
        self._seconds = families.seconds.labels(name)
        self._most = families.most.labels(name)
        self._active = families.active.labels(name)

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


class _InformerFamilies:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, words: str) -> Gauge:
            return Gauge(f"machinery_informer_{name}", words, ("kind",), registry=registry)

        def counter(name: str, words: str, *more: str) -> Counter:
            return Counter(f"machinery_informer_{name}", words, ("kind", *more), registry=registry)

        self.objects = gauge("objects", "Objects in the cache.")
        self.bytes_held = gauge("bytes", "Size of the objects in the cache, as they are kept.")
        self.relists = counter("relists_total", "Times that all was listed again.", "reason")
        self.reconnects = counter("watch_reconnects_total", "Times that the watch was resumed.")
        self.events = counter("events_total", "Events of the watch.", "type")


class InformerMetrics:
    """Metrics of one informer; informers of the same kind in several namespaces add up."""

    def __init__(self, families: _InformerFamilies, group_kind: str) -> None:
        self._kind = group_kind
        self._relists = families.relists
        self._events = families.events
        self._event_counters: dict[str, Counter] = {}
        self._objects = families.objects.labels(group_kind)
        self._bytes = families.bytes_held.labels(group_kind)
        self._reconnects = families.reconnects.labels(group_kind)
        self._told_objects = 0
        self._told_bytes = 0

    def relisted(self, reason: str) -> None:
        """Count a relist; `reason` must be one of a few constants."""
        self._relists.labels(self._kind, reason).inc()

    def reconnected(self) -> None:
        """Count a watch that was resumed where it had ended."""
        self._reconnects.inc()

    def objects(self, count: int) -> None:
        """Set the number of objects in the cache."""
        self._objects.inc(count - self._told_objects)
        self._told_objects = count

    def bytes_held(self, count: int) -> None:
        """Set the size of the objects in the cache."""
        self._bytes.inc(count - self._told_bytes)
        self._told_bytes = count

    def event(self, kind: str) -> None:
        """Count a watch event."""
        counter = self._event_counters.get(kind)
        if counter is None:
            counter = self._event_counters[kind] = self._events.labels(self._kind, kind)
        counter.inc()


class _WebhookFamilies:
    def __init__(self, registry: CollectorRegistry) -> None:
        names = ("webhook",)
        self.seconds = Histogram(
            "controller_runtime_webhook_latency_seconds",
            "How long an answer took.",
            names,
            registry=registry,
            buckets=QUEUE_BUCKETS,
        )
        self.requests = Counter(
            "controller_runtime_webhook_requests_total",
            "Requests by the HTTP status of their answer.",
            (*names, "code"),
            registry=registry,
        )
        self.in_flight = Gauge(
            "controller_runtime_webhook_requests_in_flight",
            "Requests that are being answered.",
            names,
            registry=registry,
        )
        self.verdicts = Counter(
            "machinery_webhook_verdicts_total",
            "What was answered to requests, by the code that the person who asked sees.",
            (*names, "code"),
            registry=registry,
        )
        self.panics = Counter(
            "controller_runtime_webhook_panics_total",
            "Requests that ended with an unexpected exception.",
            registry=registry,
        )
        # Always zero, as there are no conversion webhooks; dashboards query it.
        self.conversion_panics = Counter(
            "controller_runtime_conversion_webhook_panics_total",
            "Conversions that ended with an unexpected exception.",
            registry=registry,
        )


class WebhookMetrics:
    """Metrics of one webhook, by its path."""

    def __init__(self, families: _WebhookFamilies, path: str) -> None:
        self._path = path
        self._families = families
        self._seconds = families.seconds.labels(path)
        self._in_flight = families.in_flight.labels(path)
        self._requests = {code: families.requests.labels(path, code) for code in ANSWERS}
        self._verdicts = {code: families.verdicts.labels(path, code) for code in VERDICTS}

    def in_flight(self, delta: int) -> None:
        """Change the number of requests in progress by delta."""
        self._in_flight.inc(delta)

    def answered(self, code: int, seconds: float) -> None:
        """Record a response with this HTTP status."""
        counter = self._requests.get(code)
        if counter is None:
            counter = self._requests[code] = self._families.requests.labels(self._path, code)
        counter.inc()
        self._seconds.observe(seconds)

    def judged(self, code: int) -> None:
        """Count an admitted request, or one denied with this code."""
        counter = self._verdicts.get(code)
        if counter is None:
            counter = self._verdicts[code] = self._families.verdicts.labels(self._path, code)
        counter.inc()

    def panicked(self) -> None:
        """Count an unexpected exception."""
        self._families.panics.inc()


class Metrics:
    """All metrics of one manager."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._queues = _QueueFamilies(self.registry)
        self._controllers = _ControllerFamilies(self.registry)
        self._informers = _InformerFamilies(self.registry)
        self._webhooks = _WebhookFamilies(self.registry)
        self._requests = Counter(
            "rest_client_requests_total",
            "Requests to the API server, each attempt of them.",
            ("code", "method", "host"),
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "rest_client_request_duration_seconds",
            "How long the API server took to answer.",
            ("verb", "host"),
            registry=self.registry,
            buckets=REQUEST_BUCKETS,
        )
        self._leading = Gauge(
            "leader_election_master_status",
            "Whether this process holds the lease.",
            ("name",),
            registry=self.registry,
        )
        self._readiness = Gauge(
            "machinery_readiness_check",
            "Whether a check of readiness passes; a replica is ready if all of them do.",
            ("name",),
            registry=self.registry,
        )
        self._lag = Histogram(
            "machinery_event_loop_lag_seconds",
            "How much later than asked for the event loop came back.",
            registry=self.registry,
            buckets=LAG_BUCKETS,
        )
        self._events_dropped = Counter(
            "machinery_events_dropped_total",
            "Kubernetes Events that were not written.",
            ("reason",),
            registry=self.registry,
        )
        for reason in REASONS_TO_DROP:
            self._events_dropped.labels(reason)
        self._certificate_reads = Counter(
            "certwatcher_read_certificate_total",
            "Times that a certificate was read.",
            registry=self.registry,
        )
        self._certificate_errors = Counter(
            "certwatcher_read_certificate_errors_total",
            "Times that a certificate was read and could not be used.",
            registry=self.registry,
        )
        self._certificate_expiry = Gauge(
            "machinery_certificate_expiry_timestamp_seconds",
            "When the certificate expires that a server shows.",
            ("server",),
            registry=self.registry,
        )
        self.registry.register(ProcessMetrics())

    def for_queue(self, name: str) -> QueueMetrics:
        """Return the metrics of one work queue; the series exist from now on."""
        return QueueMetrics(self._queues, name)

    def for_controller(self, name: str) -> ControllerMetrics:
        """Return the metrics of one controller; the series exist from now on, at zero."""
        return ControllerMetrics(self._controllers, name)

    def for_informer(self, group_kind: str) -> InformerMetrics:
        """Return the metrics of one informer; the series exist from now on."""
        return InformerMetrics(self._informers, group_kind)

    def for_webhook(self, path: str) -> WebhookMetrics:
        """Return the metrics of one webhook; the series exist from now on, at zero."""
        return WebhookMetrics(self._webhooks, path)

    def observe_request(self, code: str, method: str, host: str, seconds: float) -> None:
        """Record a request to the API server; the code is `<error>` if it failed."""
        self._requests.labels(code, method, host).inc()
        self._request_seconds.labels(method, host).observe(seconds)

    def leader(self, name: str, leading: bool) -> None:  # noqa: FBT001  the recorded value
        """Set whether this process holds the lease of this name."""
        self._leading.labels(name).set(int(leading))

    def readiness(self, check: str, *, passed: bool) -> None:
        """Set the result of a readiness check."""
        self._readiness.labels(check).set(int(passed))

    def loop_lag(self, seconds: float) -> None:
        """Record by how many seconds the event loop was late."""
        self._lag.observe(max(0.0, seconds))

    def event_dropped(self, reason: str) -> None:
        """Count a Kubernetes Event that was not written."""
        self._events_dropped.labels(reason).inc()

    def certificate_read(self, *, usable: bool) -> None:
        """Count an attempt to read a certificate from its files or its Secret."""
        self._certificate_reads.inc()
        if not usable:
            self._certificate_errors.inc()

    def certificate_expires(self, server: str, at: float) -> None:
        """Set when the certificate of a server expires."""
        self._certificate_expiry.labels(server).set(at)

    def render(self) -> bytes:
        """Return all series in the Prometheus text format."""
        return exposition(self.registry)
