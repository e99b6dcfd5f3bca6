"""`kftrainer check`: verifies that the operator in a cluster works; used by `helm test`."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kftrainer.api import names
from kftrainer.api.configuration import DEFAULT
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.cli.arguments import (
    Commands,
    add_command,
    add_connection,
    add_timeout,
    namespace_name,
)
from kftrainer.cli.cluster.connection import (
    CommandError,
    Waiter,
    connected,
    print_line,
    run_on_cluster,
)
from kftrainer.cli.cluster.manager_pods import (
    DEPLOYMENTS,
    PODS,
    ready_replicas,
    selector_of,
    why_not_ready,
)
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.controllers.bundled_runtime_steps import is_bundled
from kftrainer.kube.client.client import Client, get_or_none
from kftrainer.kube.client.discovery import RestMapper
from kftrainer.kube.client.errors import (
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
    ServerError,
)
from kftrainer.kube.client.transport import Transport
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.nested import nested_field
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.machinery.manager.clock import Clock, SystemClock
from kftrainer.webhooks.registration import defaulter_name, webhook_name

SECONDS = 60.0
NAMESPACE = "default"
KINDS = (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
WEBHOOK = webhook_name(TRAIN_JOBS)
DEFAULTER = defaulter_name(TRAIN_JOBS)
# Appended when a runtime is missing, as most often the cause is an unreachable webhook.
WHO_APPLIES = "if the manager applies it, search its log for: cannot apply the runtime"
MANAGER = ObjectKey(DEFAULT_NAMESPACE, DEFAULT.cert_management.webhook_service_name)
NO_RUNTIME = "kftrainer-check-has-no-such-runtime"
EMPTY = "labels"  # an empty map, which is not in canonical form
DESCRIPTION = """\
Check an installation: the API server serves TrainJobs, the manager's Deployment has a ready
replica, the expected runtimes exist, and the webhooks reject an invalid TrainJob and change a
valid one to canonical form. The command waits for objects that do not exist yet. Nothing is changed
in the cluster: the TrainJobs are created as dry runs. The command does not check that a leader is
elected, without which no TrainJob starts: the metric leader_election_master_status shows that.
"""
EPILOG = """\
exit code:
  0  all checks passed; standard output has one line per check
  1  a check failed; the last line on standard error contains the reason
  2  invalid arguments
Required permissions: list ClusterTrainingRuntimes and, to check the webhook, create TrainJobs in
the namespace. To check the manager, also get its Deployment and list the pods in that
namespace; without these permissions, or without such a Deployment, a line reports that the manager
was not checked.
"""


def add_parser(commands: Commands) -> None:
    """Add the `check` command."""
    parser = add_command(
        commands,
        "check",
        run,
        summary="check that the operator in a cluster works",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add_connection(parser)
    parser.add_argument(
        "--namespace",
        type=namespace_name,
        default=NAMESPACE,
        metavar="NAME",
        help="namespace for the dry runs of TrainJobs (default: %(default)s)",
    )
    parser.add_argument(
        "--runtime",
        dest="runtimes",
        action="append",
        default=[],
        metavar="NAME",
        help="a ClusterTrainingRuntime that must exist; may be repeated",
    )
    parser.add_argument(
        "--manager",
        type=_manager_key,
        default=MANAGER,
        metavar="NAMESPACE/NAME",
        help="the manager's Deployment (default: %(default)s)",
    )
    parser.add_argument(
        "--no-webhook",
        dest="webhook",
        action="store_false",
        help="do not check the webhook; for installations without it",
    )
    add_timeout(parser, SECONDS)


def _manager_key(text: str) -> ObjectKey:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form NAMESPACE/NAME")
    return ObjectKey(namespace_name(namespace), name)


def run(arguments: argparse.Namespace) -> int:
    """Run all checks in order, up to the first that fails."""
    return run_on_cluster("check", _check(arguments))


async def _check(arguments: argparse.Namespace) -> int:
    clock = SystemClock()
    async with connected(arguments) as transport:
        inspection = Inspection(
            transport,
            arguments.namespace,
            arguments.timeout,
            clock=clock,
            manager=arguments.manager,
        )
        await inspection.run(
            list(dict.fromkeys(arguments.runtimes)), with_webhook=arguments.webhook
        )
    return 0


class Inspection:
    """Checks a cluster; raises CommandError or KubeError at the first problem."""

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        seconds: float,
        *,
        clock: Clock,
        manager: ObjectKey = MANAGER,
        report: Callable[[str], None] = print_line,
    ) -> None:
        self._client = Client(transport)
        self._mapper = RestMapper(transport)
        self._namespace = namespace
        self._manager = manager
        self._deployment: Manifest | None = None
        self._waiter = Waiter(clock, seconds)
        self._report = report
        self._runtimes: list[ObjectMeta] = []  # existing runtimes

    async def run(self, expected: Sequence[str], *, with_webhook: bool) -> None:
        """Run all checks."""
        await self._waiter.until_passed(self._unserved)
        self._report(f"ok: the API server serves {', '.join(kind.kind for kind in KINDS)}")
        await self._check_manager()
        await self._waiter.until_passed(lambda: self._missing(expected))
        self._report(f"ok: found {_counted(len(self._runtimes))}")
        if expected:
            self._report(f"ok: all expected runtimes exist: {', '.join(expected)}")
        if not with_webhook:
            return
        await self._waiter.until_passed(self._invalid_is_admitted)
        self._report(f"ok: the webhook {WEBHOOK} rejects an invalid TrainJob")
        ours = [each.name for each in self._runtimes if is_bundled(each)]
        await self._check_valid(expected or ours[:1])

    async def _unserved(self) -> str | None:
        """Return which kinds the API server does not serve."""
        unknown = [kind for kind in KINDS if not await self._mapper.is_served(kind)]
        named = ", ".join(kind.group_kind for kind in unknown)
        return f"the API server does not serve {named}" if unknown else None

    async def _check_manager(self) -> None:
        """Wait until a replica of the manager is ready, if its Deployment can be read."""
        try:
            await self._waiter.until_passed(self._not_ready)
        except ForbiddenError as error:
            self._report(f"not checked: the manager: {error}")
            return
        if self._deployment is None:
            self._report(
                f"not checked: the manager: Deployment {self._manager} not found; "
                "pass --manager NAMESPACE/NAME"
            )
            return
        ready, wanted = ready_replicas(self._deployment)
        self._report(f"ok: the manager is running: {ready} of {wanted} replicas ready")

    async def _not_ready(self) -> str | None:
        """Return why no replica of the manager is ready."""
        self._deployment = await get_or_none(
            self._client, DEPLOYMENTS, self._manager, kind_may_be_missing=True
        )
        if self._deployment is None:
            return None
        pods = await self._client.list(
            PODS,
            namespace=self._manager.namespace,
            label_selector=selector_of(self._deployment),
        )
        return why_not_ready(self._deployment, pods.items)

    async def _missing(self, expected: Sequence[str]) -> str | None:
        """Return which expected runtimes are missing."""
        kind = CLUSTER_TRAINING_RUNTIMES
        try:
            found = await self._client.list(kind.only_metadata())
        except NotFoundError:
            return f"the API server does not serve {kind.group_kind}"
        found_metadata = (ObjectMeta.parse(item["metadata"]) for item in found.items)
        self._runtimes = [each for each in found_metadata if each.deletion_timestamp is None]
        known = {each.name for each in self._runtimes}
        missing = [name for name in expected if name not in known]
        return f"{kind.kind} not found: {', '.join(missing)}; {WHO_APPLIES}" if missing else None

    async def _invalid_is_admitted(self) -> str | None:
        """Return why the webhook has not denied a TrainJob whose runtime does not exist."""
        try:
            await self._dry_run(NO_RUNTIME)
        except ForbiddenError as error:
            if _is_denial(error):
                return None
            if _is_denial(error, ""):
                return f"an invalid TrainJob was rejected, but not by {WEBHOOK}: {error}"
            raise
        except (NotFoundError, ServerError) as error:
            return _cannot_create(error)
        return (
            f"an invalid TrainJob was admitted: the API server does not call {WEBHOOK} for "
            f"TrainJobs in namespace {self._namespace}, or the manager does not watch this "
            "namespace"
        )

    async def _check_valid(self, runtimes: Sequence[str]) -> None:
        if not runtimes:
            self._report(
                "not checked: admission of a valid TrainJob, because no ClusterTrainingRuntime was "
                "installed with the operator; pass --runtime NAME to use another one"
            )
            return
        for runtime in runtimes:
            try:
                await self._waiter.until_passed(partial(self._valid_is_not_decided, runtime))
            except (ForbiddenError, InvalidError) as error:
                raise CommandError(
                    f"a valid TrainJob with runtime {runtime} was rejected: {error}"
                ) from error
        self._report(f"ok: the webhook {DEFAULTER} changes TrainJobs to canonical form")
        self._report(f"ok: a valid TrainJob is admitted with runtime {', '.join(runtimes)}")

    async def _valid_is_not_decided(self, runtime: str) -> str | None:
        """Return why the TrainJob was neither denied nor admitted in canonical form."""
        try:
            created = await self._dry_run(runtime)
        except (NotFoundError, ServerError) as error:
            return _cannot_create(error)
        if nested_field(created, "spec", EMPTY) is None:
            return None
        return (
            f"a TrainJob was not changed to canonical form: the API server does not call "
            f"{DEFAULTER} for TrainJobs in namespace {self._namespace}, or cannot call it"
        )

    async def _dry_run(self, runtime: str) -> Manifest:
        return await self._client.create(
            TRAIN_JOBS, _train_job(runtime, self._namespace), dry_run=True
        )


def _train_job(runtime: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.TRAIN_JOB,
        "metadata": {"generateName": "kftrainer-check-", "namespace": namespace},
        "spec": {"runtimeRef": {"name": runtime}, "suspend": True, EMPTY: {}},
    }


def _cannot_create(error: NotFoundError | ServerError) -> str:
    """Describe an error that prevented admission; both kinds may be temporary."""
    if isinstance(error, NotFoundError):  # the kind is not served yet, or there is no namespace
        return f"the API server cannot create a TrainJob: {error}"
    return f"the API server cannot call the webhook: {error}"


def _is_denial(error: KubeError, webhook: str = WEBHOOK) -> bool:
    """Return whether this webhook denied the request; any webhook if the name is empty."""
    return "denied the request" in str(error) and webhook in str(error)


def _counted(count: int) -> str:
    kind = CLUSTER_TRAINING_RUNTIMES.kind
    return f"1 {kind}" if count == 1 else f"{count} {kind}s"
