"""Assembles all parts of the manager."""

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

import structlog

from kftrainer.api import names
from kftrainer.api.configuration import Configuration
from kftrainer.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CONTROLLER_REVISIONS,
    JOB_SETS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from kftrainer.cli.manager_setup.preflight import Preflight
from kftrainer.cli.manager_setup.training_metrics import export_build_info, training_watch
from kftrainer.cli.manager_setup.webhooks import WebhookFactory, Webhooks
from kftrainer.controllers.bundled_runtimes import bundled_runtimes_controller
from kftrainer.controllers.cache_barrier import CacheBarrier
from kftrainer.controllers.large_objects import (
    REDUCTIONS,
    LargeObjectReconciler,
    reduced_objects,
    reduction_of,
)
from kftrainer.controllers.leftover_finalizers import LeftoverFinalizers
from kftrainer.controllers.metrics.observer import TrainJobObserver
from kftrainer.controllers.overlay_cache import CachedParts, OverlayCache
from kftrainer.controllers.resync import PERIOD as RESYNC_PERIOD
from kftrainer.controllers.resync import Resync
from kftrainer.controllers.runtime_finalizer import RuntimeFinalizerReconciler, enqueue_runtime
from kftrainer.controllers.trainjob.jobset.failed_pods import FailedPods
from kftrainer.controllers.trainjob.jobset.refused_pods import RefusedPods
from kftrainer.controllers.trainjob.reconciler import ReadyPods, TrainJobReconciler
from kftrainer.controllers.trainjob.runtime_revisions import RuntimeRevisions
from kftrainer.controllers.trainjob.status_writer import OwnStatusWrites
from kftrainer.controllers.trainjob_index import TRAIN_JOB_INDEXES
from kftrainer.controllers.unused_revisions import (
    REVISION_INDEXES,
    RevisionCollector,
    enqueue_namespace,
    is_deletion,
)
from kftrainer.controllers.watches import (
    RUNTIME_KINDS,
    enqueue_begun,
    enqueue_unfinished,
    partial_kinds,
    unfinished,
    watched_kinds,
)
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.credentials import SERVICE_ACCOUNT, load_connection
from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.errors import ForbiddenError, KindNotFoundError
from kftrainer.kube.client.ratelimit import RateLimiter
from kftrainer.kube.client.transport import HttpTransport, Transport
from kftrainer.kube.objects.resource import Manifest, Resource
from kftrainer.machinery.access_report import AccessReport
from kftrainer.machinery.cache.cache import Cache
from kftrainer.machinery.cache.informer import NO_INDEXES, Informer
from kftrainer.machinery.cache.multi_namespace import AnyInformer, in_namespaces
from kftrainer.machinery.cache.optional_kinds import OptionalKinds
from kftrainer.machinery.certs.serving import CertificateFiles, self_signed
from kftrainer.machinery.controller.controller import Controller
from kftrainer.machinery.controller.handlers import enqueue_self
from kftrainer.machinery.controller.predicates import content_changed, generation_changed
from kftrainer.machinery.controller.reconcile import Reconciler, Request
from kftrainer.machinery.events.recorder import EventRecorder
from kftrainer.machinery.health import Probe, ReadinessMetrics, ping, probes
from kftrainer.machinery.manager.clock import Clock, SystemClock
from kftrainer.machinery.manager.leader_election import LeaderElector
from kftrainer.machinery.manager.manager import Manager, Parts, run_until_signalled
from kftrainer.machinery.manager.runnable import Runnable
from kftrainer.machinery.metrics.authorization import Authorization
from kftrainer.machinery.metrics.event_loop import LoopLag
from kftrainer.machinery.metrics.registry import Metrics
from kftrainer.machinery.metrics.server import metrics_server
from kftrainer.machinery.queue.backoff import Exponential, spread
from kftrainer.machinery.webhook.per_client_rate_limiter import PerClientRateLimiter
from kftrainer.machinery.webhook.server import WebServer
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.webhooks.validators import validators_by_path

if TYPE_CHECKING:
    from kftrainer.machinery.cache.cached_object import IndexFunction

log = structlog.get_logger(__name__)

T = TypeVar("T")

OUR_KINDS = (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES, CONTROLLER_REVISIONS)
INDEXES: Mapping[Resource[Any], Mapping[str, Any]] = {
    TRAIN_JOBS: TRAIN_JOB_INDEXES,
    CONTROLLER_REVISIONS: REVISION_INDEXES,
}
# Which objects of a kind are read, if not all.
LABEL_SELECTORS: Mapping[Resource[Any], str] = {CONTROLLER_REVISIONS: names.LABEL_RUNTIME_KIND}
RECONCILE_WITHIN = 120.0
LONGEST_BACKOFF = 300.0  # seconds, like the kubelet's maximum delay before it restarts a container
READY_PODS_AFTER = 3.0  # seconds until a changed number of ready pods is written to the status
# Rate and burst of live reads before requests of a webhook client are denied.
LIVE_READ_LIMIT = 50.0, 100
# Names in metrics and Events that dashboards and users rely on.
TRAIN_JOB_CONTROLLER = "trainjob_controller"
REVISION_CONTROLLER = "runtimerevision_controller"
COMPONENT = "trainer-trainjob-controller"
DEFAULT_NAMESPACE = "kubeflow-system"


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Where a manager runs and what it serves, as set by flags."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespaces: Sequence[str] = ()  # all namespaces if empty
    metrics_certificates: Path | None = None
    webhook_certificates: Path | None = None
    runtimes: Sequence[Manifest] | None = None  # to keep applied in the cluster


async def run_manager(
    configuration: Configuration, framework: Framework, options: ManagerOptions
) -> None:
    """Run until SIGTERM or SIGINT; raise any other error that ends the manager."""
    metrics = Metrics()
    export_build_info(metrics.registry)
    connection = await load_connection(options.kubeconfig, options.context)
    user_agent = f"kftrainer/{version('kftrainer')}"
    async with HttpTransport(
        connection, user_agent=user_agent, on_response=metrics.observe_request
    ) as transport:
        assembly = Assembly(configuration, framework, options, transport, metrics)
        await run_until_signalled(assembly.manager())


class Assembly:
    """Builds one manager from its configuration."""

    def __init__(
        self,
        configuration: Configuration,
        framework: Framework,
        options: ManagerOptions,
        transport: Transport,
        metrics: Metrics,
        *,
        resync_period: float = RESYNC_PERIOD,
    ) -> None:
        self._resync_period = resync_period
        self._configuration = configuration
        self._framework = framework
        self._options = options
        self._transport = transport
        self._metrics = metrics
        self._clock: Clock = SystemClock()
        self._hostname = socket.gethostname()
        self._election = self._elect()
        self._client = self._make_client()
        self._mapper = RestMapper(transport)
        self._cache = Cache()
        self._access = AccessReport(metrics.registry, options.namespaces)
        self._jobs: Controller | None = None
        watches = framework.watches()
        watched: tuple[Resource[Any], ...] = (*OUR_KINDS, *(each.resource for each in watches))
        unowned = {*OUR_KINDS, *(each.resource for each in watches if each.map_func is not None)}
        self._view = OverlayCache(
            self._cache,
            watched,
            partial_kinds(watches),
            {
                each: found
                for each in watched
                if (found := reduction_of(each, is_owned=each not in unowned)) is not None
            },
            complete_kinds=REDUCTIONS,
        )
        self._revisions = RuntimeRevisions(self._client, self._view, clock=self._clock)
        self._watched = {
            each.resource: each for each in watched_kinds(watches, CachedParts(self._view))
        }

    def manager(self) -> Manager:
        """Return the manager, ready to run."""
        for resource in OUR_KINDS:
            self._cache.add(self._informer(resource))
        recorder = EventRecorder(
            self._client,
            clock=self._clock,
            component=COMPONENT,
            hostname=self._hostname,
            metrics=self._metrics,
        )
        barrier = CacheBarrier(
            self._client,
            self._view,
            TRAIN_JOBS,
            clock=self._clock,
            namespaces=self._options.namespaces,
        )
        own_status = OwnStatusWrites()
        refused_pods = self._refused_pods()
        failed_pods = FailedPods(self._client)
        training, job_watch = training_watch(
            self._client,
            self._cache,
            self._metrics,
            clock=self._clock,
            namespaces=self._options.namespaces,
            on_ready_pods=self._ready_pods_changed,
            on_failing=failed_pods.job_failing,
        )
        reconciler = self._train_job_reconciler(
            recorder, barrier, own_status, (refused_pods, failed_pods), job_watch.ready_pods
        )
        jobs = self._jobs = self._train_job_controller(reconciler, own_status)
        webhooks = self._webhooks() if self._configuration.webhook.port else None
        manager = Manager(
            Parts(
                servers=[*self._servers(lambda: manager.stopping, webhooks), recorder],
                checks=[self._preflight()],
                caches=[self._cache, self._optional_kinds(jobs, reconciler, training)],
                webhooks=webhooks.services() if webhooks else (),
                controllers=[
                    training,
                    barrier,
                    jobs,
                    refused_pods,
                    failed_pods,
                    self._resync(jobs),
                    *self._runtime_controllers(),
                    self._revision_collector(),
                ],
            ),
            clock=self._clock,
            election=self._election,
        )
        return manager

    def _ready_pods_changed(self, request: Request) -> None:
        """Update the number of ready nodes, which is written at most once in a few seconds."""
        if self._jobs is not None:
            self._jobs.enqueue_after(request, READY_PODS_AFTER)

    def _preflight(self) -> Preflight:
        return Preflight(
            self._client,
            self._mapper,
            clock=self._clock,
            ours=OUR_KINDS,
            watched=list(self._watched),
            namespaces=self._options.namespaces,
        )

    def _elect(self) -> LeaderElector | None:
        settings = self._configuration.leader_election
        if not settings.leader_elect:
            return None
        return LeaderElector(
            Client(self._transport, lane="lease"),
            clock=self._clock,
            lease_name=settings.resource_name,
            lease_namespace=settings.resource_namespace or own_namespace(),
            identity=f"{self._hostname}_{uuid4()}",
            lease_duration=settings.lease_duration.seconds,
            renew_deadline=settings.renew_deadline.seconds,
            retry_period=settings.retry_period.seconds,
            metrics=self._metrics,
        )

    def _make_client(self) -> Client:
        settings, election = self._configuration.client_connection, self._election
        return Client(
            self._transport,
            limiter=RateLimiter(settings.qps, settings.burst, self._clock)
            if settings.qps
            else None,
            write_guard=None if election is None else lambda: election.is_leading,
        )

    def _informer(
        self, resource: Resource[T], keep: Callable[[Manifest], bool] | None = None
    ) -> AnyInformer[T]:
        indexes = INDEXES.get(resource, NO_INDEXES)

        def new_informer(namespace: str | None) -> Informer[T]:
            return Informer(
                self._client,
                resource,
                clock=self._clock,
                namespace=namespace,
                label_selector=LABEL_SELECTORS.get(resource),
                keep=keep,
                indexes=cast("Mapping[str, IndexFunction[T]]", indexes),
                reduction=reduction_of(resource, is_owned=keep is not None),
                metrics=self._metrics.for_informer(resource.group_kind),
                on_access=self._access_changed,
            )

        return in_namespaces(resource, self._options.namespaces, new_informer)

    def _access_changed(
        self,
        resource: Resource[Any],
        namespace: str | None,
        refusal: ForbiddenError | KindNotFoundError | None,
    ) -> None:
        """Report the access change; enqueue TrainJobs that may wait for a kind readable again."""
        self._access(resource, namespace, refusal)
        if refusal is None:
            self._enqueue_unfinished(namespace)

    def _enqueue_unfinished(self, namespace: str | None = None) -> None:
        """Enqueue TrainJobs that may wait for a kind; before the start they are enqueued anyway."""
        jobs = self._jobs
        if jobs is not None and jobs.is_started and self._view.is_complete(TRAIN_JOBS):
            jobs.enqueue_all(unfinished(self._cache, namespace))

    def _controller(self, name: str, reconciler: Reconciler, kind: str | None) -> Controller:
        """Return a controller with the configured number of workers; without a kind, one."""
        concurrency = self._configuration.controller.concurrency
        return Controller(
            name,
            reconciler,
            clock=self._clock,
            workers=1 if kind is None else concurrency(kind),
            timeout=RECONCILE_WITHIN,
            backoff=Exponential(cap=LONGEST_BACKOFF, jitter=spread(SystemRandom())),
            metrics=self._metrics,
        )

    def _refused_pods(self) -> RefusedPods:
        def enqueue(requests: Iterable[Request]) -> None:
            if self._jobs is not None:
                self._jobs.enqueue_all(requests)

        return RefusedPods(
            self._client,
            self._cache,
            clock=self._clock,
            enqueue=enqueue,
            namespaces=self._options.namespaces,
        )

    def _train_job_reconciler(
        self,
        recorder: EventRecorder,
        barrier: CacheBarrier,
        own_status: OwnStatusWrites,
        pods: tuple[RefusedPods, FailedPods],
        ready_pods: ReadyPods,
    ) -> TrainJobReconciler:
        refused_pods, failed_pods = pods
        return TrainJobReconciler(
            self._client,
            self._view,
            Runtimes(self._framework),
            recorder,
            barrier,
            clock=self._clock,
            own_status=own_status,
            refused_pods=refused_pods,
            failed_pods=failed_pods,
            ready_pods=ready_pods,
            revisions=self._revisions,
        )

    def _train_job_controller(
        self, reconciler: TrainJobReconciler, own_status: OwnStatusWrites
    ) -> Controller:
        large = LargeObjectReconciler(
            reconciler,
            self._client,
            self._view,
            clock=self._clock,
            begun_revision=self._revisions.begun_with,
        )
        controller = self._controller(TRAIN_JOB_CONTROLLER, large, TRAIN_JOBS.kind)
        informer = self._cache.informer(TRAIN_JOBS)
        controller.watch(informer, enqueue_self, own_status.is_from_others)
        for resource in RUNTIME_KINDS:
            handler = enqueue_unfinished(self._cache, resource)
            controller.watch(self._cache.informer(resource), handler, content_changed)
        revisions = self._cache.informer(CONTROLLER_REVISIONS)
        controller.watch(revisions, enqueue_begun(self._cache))
        return controller

    def _revision_collector(self) -> Controller:
        reconciler = RevisionCollector(
            self._client,
            self._cache,
            self._revisions,
            clock=self._clock,
        )
        controller = self._controller(REVISION_CONTROLLER, reconciler, None)
        controller.watch(self._cache.informer(CONTROLLER_REVISIONS), enqueue_namespace)
        controller.watch(self._cache.informer(TRAIN_JOBS), enqueue_namespace, is_deletion)
        return controller

    def _resync(self, jobs: Controller) -> Resync:
        return Resync(jobs, self._cache, clock=self._clock, period=self._resync_period)

    def _runtime_controllers(self) -> Iterator[Runnable]:
        watches_all = not self._options.namespaces
        for resource in RUNTIME_KINDS:
            reconciler = RuntimeFinalizerReconciler(
                self._client, self._cache, resource, clock=self._clock, watches_all=watches_all
            )
            name = f"{resource.kind.lower()}_controller"
            controller = self._controller(name, reconciler, resource.kind)
            controller.watch(self._cache.informer(resource), enqueue_self)
            # The reference to a runtime is in the TrainJob's spec, so changes of the status are
            # ignored.
            jobs = self._cache.informer(TRAIN_JOBS)
            controller.watch(jobs, enqueue_runtime(resource), generation_changed)
            yield controller
        if (documents := self._options.runtimes) is not None:
            yield bundled_runtimes_controller(
                documents,
                self._client,
                self._cache,
                clock=self._clock,
                metrics=self._metrics,
                watches_all=watches_all,
            )
        if not watches_all:
            yield LeftoverFinalizers(self._client, self._options.namespaces, clock=self._clock)

    def _webhooks(self) -> Webhooks:
        # Every replica serves admission, leader or not, so this client has no write guard. Clients
        # of the port can cause reads, hence the rate limit.
        limiter = PerClientRateLimiter(*LIVE_READ_LIMIT, self._clock)
        reading = Client(self._transport, limiter=limiter)
        validators = validators_by_path(
            Runtimes(self._framework),
            self._view,
            reading,
            clock=self._clock,
            namespaces=self._options.namespaces,
            reduced=partial(reduced_objects, self._view),
        )
        factory = WebhookFactory(
            self._configuration, self._transport, clock=self._clock, metrics=self._metrics
        )
        return factory.webhooks(validators, own_namespace(), self._options.webhook_certificates)

    def _optional_kinds(
        self, jobs: Controller, reconciler: TrainJobReconciler, training: TrainJobObserver
    ) -> OptionalKinds:
        """Return the kinds that plugins watch; built-in kinds are available at once."""

        def on_installed(resource: Resource[Any]) -> None:
            if resource is JOB_SETS:
                self._cache.informer(JOB_SETS).add_handler(reconciler.job_set_changed)
            for handler in self._watched[resource].handlers:
                jobs.watch(self._cache.informer(resource), handler)
            training.installed(resource)
            self._enqueue_unfinished()

        return OptionalKinds(
            [self._informer(each.resource, each.keep) for each in self._watched.values()],
            cache=self._cache,
            mapper=self._mapper,
            clock=self._clock,
            on_installed=on_installed,
        )

    def _servers(
        self, is_stopping: Callable[[], bool], webhooks: Webhooks | None
    ) -> Iterator[Runnable]:
        yield LoopLag(self._metrics, clock=self._clock)
        health = self._configuration.health

        async def stopping() -> str | None:
            return "the manager is stopping" if is_stopping() else None

        async def caches() -> str | None:
            ours: Sequence[Resource[Any]] = OUR_KINDS
            missing = [each.kind for each in ours if not self._cache.informer(each).has_synced]
            return f"not read yet: {', '.join(missing)}" if missing else None

        checks = {"stopping": stopping, "caches": caches}
        if webhooks is not None:
            checks["webhooks"] = webhooks.probe
        readiness = Probe(checks)
        endpoints = {
            health.liveness_endpoint_name: Probe({"ping": ping}),
            health.readiness_endpoint_name: readiness,
        }
        yield WebServer("probes", health.address, probes(endpoints))
        yield ReadinessMetrics(readiness, self._metrics, clock=self._clock)
        yield from self._metrics_services()

    def _metrics_services(self) -> Iterator[Runnable]:
        settings, folder = self._configuration.metrics, self._options.metrics_certificates
        tls, authorization = None, None
        if settings.secure_serving:
            # Works on every replica, leader or not, so this client has no write guard.
            authorization = Authorization(Client(self._transport), clock=self._clock)
            if folder is None:
                tls = self_signed(self._clock.now())
            else:
                files = CertificateFiles(folder, clock=self._clock, metrics=self._metrics)
                tls = files.context
                yield files
        yield metrics_server(self._metrics, settings.address, tls=tls, authorization=authorization)


def own_namespace() -> str:
    """Return the namespace of the pod this runs in, or the default namespace."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return DEFAULT_NAMESPACE
