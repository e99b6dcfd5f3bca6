"""All parts of the manager, put together."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

import structlog

from kftrainer.api.configuration import Configuration
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.cli.preflight import Preflight
from kftrainer.cli.training_metrics import tell_build, training_watch
from kftrainer.cli.webhooks import WebhookMaking, Webhooks
from kftrainer.controllers.job_watch import JobWatch
from kftrainer.controllers.runtime_use import (
    INDEX_RUNTIME,
    RuntimeUseReconciler,
    enqueue_runtime,
    runtimes_of_job,
)
from kftrainer.controllers.shipped_runtimes import shipped_runtimes_controller
from kftrainer.controllers.trainjob import TrainJobReconciler
from kftrainer.controllers.view import View
from kftrainer.controllers.watching import (
    RUNTIME_KINDS,
    enqueue_unfinished,
    partial_kinds,
    unfinished,
    watched_kinds,
)
from kftrainer.kube.client import Client
from kftrainer.kube.credentials import SERVICE_ACCOUNT, load_connection
from kftrainer.kube.discovery import RestMapper
from kftrainer.kube.ratelimit import RateLimiter
from kftrainer.kube.resource import Manifest, Resource
from kftrainer.kube.transport import HttpTransport, Transport
from kftrainer.machinery.authorization import Authorization
from kftrainer.machinery.cache import Cache
from kftrainer.machinery.clock import Clock, SystemClock
from kftrainer.machinery.controller import Controller
from kftrainer.machinery.election import LeaderElection
from kftrainer.machinery.eventloop import LoopLag
from kftrainer.machinery.handlers import enqueue_self
from kftrainer.machinery.health import Probe, ReadinessMetrics, ping, probes
from kftrainer.machinery.informer import NO_INDEXES, Informer
from kftrainer.machinery.informer_group import AnyInformer, in_namespaces
from kftrainer.machinery.late_kinds import LateKinds
from kftrainer.machinery.manager import Manager, Parts, run_until_signalled
from kftrainer.machinery.metrics import Metrics
from kftrainer.machinery.metrics_server import metrics_server
from kftrainer.machinery.predicates import generation_changed
from kftrainer.machinery.reconcile import Reconciler
from kftrainer.machinery.recorder import EventRecorder
from kftrainer.machinery.service import Service
from kftrainer.machinery.serving_tls import CertificateFiles, self_signed
from kftrainer.machinery.webserver import WebServer
from kftrainer.runtime.framework import Framework
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.webhooks.validators import validators_by_path

if TYPE_CHECKING:
    from kftrainer.machinery.entry import IndexFunction

log = structlog.get_logger(__name__)

T = TypeVar("T")

OUR_KINDS = (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
RECONCILE_WITHIN = 120.0
SECOND_LOOKS = 50.0, 100  # objects a second, and at once, that are read before refusing something
# Names of controllers and of the component in Events, as dashboards and people know them.
TRAIN_JOB_CONTROLLER = "trainjob_controller"
COMPONENT = "trainer-trainjob-controller"
DEFAULT_NAMESPACE = "kubeflow-system"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a manager runs, as its flags say."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespaces: Sequence[str] = ()  # all, if there are none
    metrics_certificates: Path | None = None
    webhook_certificates: Path | None = None
    runtimes: Sequence[Manifest] | None = None  # to be kept in the cluster


async def run_manager(
    configuration: Configuration, framework: Framework, surroundings: Surroundings
) -> None:
    """Run until SIGTERM or SIGINT; raises what else ends it."""
    metrics = Metrics()
    tell_build(metrics.registry)
    connection = await load_connection(surroundings.kubeconfig, surroundings.context)
    user_agent = f"kftrainer/{version('kftrainer')}"
    async with HttpTransport(
        connection, user_agent=user_agent, on_response=metrics.observe_request
    ) as transport:
        assembly = Assembly(configuration, framework, surroundings, transport, metrics)
        await run_until_signalled(assembly.manager())


class Assembly:
    """One manager in the making."""

    def __init__(
        self,
        configuration: Configuration,
        framework: Framework,
        surroundings: Surroundings,
        transport: Transport,
        metrics: Metrics,
    ) -> None:
        self._configuration = configuration
        self._framework = framework
        self._surroundings = surroundings
        self._transport = transport
        self._metrics = metrics
        self._clock: Clock = SystemClock()
        self._hostname = socket.gethostname()
        self._election = self._elect()
        self._client = self._make_client()
        self._mapper = RestMapper(transport)
        self._cache = Cache()
        watches = framework.watches()
        watched: tuple[Resource[Any], ...] = (*OUR_KINDS, *(each.resource for each in watches))
        self._view = View(self._cache, watched, partial_kinds(watches))
        self._watched = {
            each.resource: each for each in watched_kinds(framework.watches(), self._view)
        }

    def manager(self) -> Manager:
        """The manager, ready to run."""
        for resource in OUR_KINDS:
            self._cache.add(self._informer(resource))
        recorder = EventRecorder(
            self._client,
            clock=self._clock,
            component=COMPONENT,
            hostname=self._hostname,
            metrics=self._metrics,
        )
        jobs = self._train_job_controller(recorder)
        training = training_watch(
            self._client,
            self._cache,
            self._metrics,
            clock=self._clock,
            namespaces=self._surroundings.namespaces,
        )
        webhooks = self._webhooks() if self._configuration.webhook.port else None
        manager = Manager(
            Parts(
                servers=[*self._servers(lambda: manager.stopping, webhooks), recorder],
                checks=[self._preflight()],
                caches=[self._cache, self._late_kinds(jobs, training)],
                webhooks=webhooks.services() if webhooks else (),
                controllers=[training, jobs, *self._runtime_controllers()],
            ),
            clock=self._clock,
            election=self._election,
        )
        return manager

    def _preflight(self) -> Preflight:
        return Preflight(
            self._client,
            self._mapper,
            clock=self._clock,
            ours=OUR_KINDS,
            watched=list(self._watched),
            namespaces=self._surroundings.namespaces,
        )

    def _elect(self) -> LeaderElection | None:
        settings = self._configuration.leader_election
        if not settings.leader_elect:
            return None
        return LeaderElection(
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
            fence=None if election is None else lambda: election.is_leading,
        )

    def _informer(
        self, resource: Resource[T], keep: Callable[[Manifest], bool] | None = None
    ) -> AnyInformer[T]:
        indexes = {INDEX_RUNTIME: runtimes_of_job} if resource is TRAIN_JOBS else NO_INDEXES

        def make(namespace: str | None) -> Informer[T]:
            return Informer(
                self._client,
                resource,
                clock=self._clock,
                namespace=namespace,
                keep=keep,
                indexes=cast("Mapping[str, IndexFunction[T]]", indexes),
                metrics=self._metrics.for_informer(resource.group_kind),
            )

        return in_namespaces(resource, self._surroundings.namespaces, make)

    def _controller(self, name: str, reconciler: Reconciler, kind: str) -> Controller:
        return Controller(
            name,
            reconciler,
            clock=self._clock,
            workers=self._configuration.controller.concurrency(kind),
            timeout=RECONCILE_WITHIN,
            metrics=self._metrics,
        )

    def _train_job_controller(self, recorder: EventRecorder) -> Controller:
        reconciler = TrainJobReconciler(
            self._client,
            self._view,
            Runtimes(self._framework),
            recorder,
            clock=self._clock,
        )
        controller = self._controller(TRAIN_JOB_CONTROLLER, reconciler, TRAIN_JOBS.kind)
        controller.watch(self._cache.informer(TRAIN_JOBS), enqueue_self)
        for resource in RUNTIME_KINDS:
            handler = enqueue_unfinished(self._cache, resource)
            controller.watch(self._cache.informer(resource), handler, generation_changed)
        return controller

    def _runtime_controllers(self) -> Iterator[Controller]:
        # Who sees some namespaces only cannot say that nobody uses what is for all of them.
        kinds = (TRAINING_RUNTIMES,) if self._surroundings.namespaces else RUNTIME_KINDS
        for resource in kinds:
            reconciler = RuntimeUseReconciler(self._client, self._cache, resource)
            name = f"{resource.kind.lower()}_controller"
            controller = self._controller(name, reconciler, resource.kind)
            controller.watch(self._cache.informer(resource), enqueue_self)
            # Which runtime a TrainJob refers to is in its spec: its status does not matter.
            jobs = self._cache.informer(TRAIN_JOBS)
            controller.watch(jobs, enqueue_runtime(resource), generation_changed)
            yield controller
        if (shipped := self._surroundings.runtimes) is not None:
            yield shipped_runtimes_controller(
                shipped,
                self._client,
                self._cache,
                clock=self._clock,
                metrics=self._metrics,
                sees_all=not self._surroundings.namespaces,
            )

    def _webhooks(self) -> Webhooks:
        # Every replica answers, leader or not. Whoever can reach the port can make us read.
        reading = Client(self._transport, limiter=RateLimiter(*SECOND_LOOKS, self._clock))
        validators = validators_by_path(
            Runtimes(self._framework), self._view, reading, namespaces=self._surroundings.namespaces
        )
        making = WebhookMaking(
            self._configuration, self._transport, clock=self._clock, metrics=self._metrics
        )
        return making.webhooks(validators, own_namespace(), self._surroundings.webhook_certificates)

    def _late_kinds(self, jobs: Controller, training: JobWatch) -> LateKinds:
        """All kinds that plugins watch: those of Kubernetes itself are there at once."""

        def on_installed(resource: Resource[Any]) -> None:
            for handler in self._watched[resource].handlers:
                jobs.watch(self._cache.informer(resource), handler)
            training.installed(resource)
            for request in unfinished(self._cache):  # which may have waited for it
                jobs.enqueue(request)

        return LateKinds(
            [self._informer(each.resource, each.keep) for each in self._watched.values()],
            cache=self._cache,
            mapper=self._mapper,
            clock=self._clock,
            on_installed=on_installed,
        )

    def _servers(
        self, is_stopping: Callable[[], bool], webhooks: Webhooks | None
    ) -> Iterator[Service]:
        yield LoopLag(self._metrics, clock=self._clock)
        health = self._configuration.health

        async def stopping() -> str | None:
            return "the manager is stopping" if is_stopping() else None

        async def caches() -> str | None:
            missing = [each.kind for each in OUR_KINDS if not self._view.knows(each)]
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

    def _metrics_services(self) -> Iterator[Service]:
        settings, folder = self._configuration.metrics, self._surroundings.metrics_certificates
        tls, authorization = None, None
        if settings.secure_serving:
            # It asks on behalf of who asks it, leader or not.
            authorization = Authorization(Client(self._transport), clock=self._clock)
            if folder is None:
                tls = self_signed(self._clock.now())
            else:
                files = CertificateFiles(folder, clock=self._clock, metrics=self._metrics)
                tls = files.context
                yield files
        yield metrics_server(self._metrics, settings.address, tls=tls, authorization=authorization)


def own_namespace() -> str:
    """The namespace of the pod that this runs in, or where such pods mostly run."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return DEFAULT_NAMESPACE
