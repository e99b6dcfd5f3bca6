"""`kftrainer check`: verifies that the operator in a cluster works; used by `helm test`."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kftrainer.api import names
from kftrainer.api.configuration import DEFAULT
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.cli.arguments import add_connection, add_timeout, namespace_name
from kftrainer.cli.commands.cluster import CommandError, Patience, connected, run_on_cluster, say
from kftrainer.cli.commands.manager_pods import (
    DEPLOYMENTS,
    PODS,
    ready_replicas,
    selector_of,
    why_not_ready,
)
from kftrainer.cli.manager_setup.assembly import DEFAULT_NAMESPACE
from kftrainer.controllers.bundled_runtime_steps import is_shipped
from kftrainer.kube.client.client import Client
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
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.machinery.manager.clock import Clock, SystemClock
from kftrainer.webhooks.registration import webhook_name

SECONDS = 60.0
NAMESPACE = "default"
KINDS = (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
WEBHOOK = webhook_name(TRAIN_JOBS)
# Appended when a runtime is missing, as most often the cause is an unreachable webhook.
WHO_APPLIES = "if the manager applies it, search its log for: cannot apply the runtime"
MANAGER = ObjectKey(DEFAULT_NAMESPACE, DEFAULT.cert_management.webhook_service_name)
NO_RUNTIME = "kftrainer-check-has-no-such-runtime"
DESCRIPTION = """\
Check an installation: the API server serves TrainJobs, the manager's Deployment has a ready
replica, the expected runtimes exist, and the webhook rejects an invalid TrainJob and accepts a
valid one. It waits for what does not exist yet. Nothing is changed: the TrainJobs are dry runs. It
does not verify that a leader is elected (without one no TrainJob starts); check
leader_election_master_status for that.
"""
EPILOG = """\
exit code:
  0  all is well; a line on standard output for each thing that was looked at
  1  something is not; the last line on standard error says what
  2  bad usage
It needs the right to list ClusterTrainingRuntimes and, for the webhook, to create TrainJobs in the
namespace. To diagnose a manager that does not run, it reads its Deployment and lists the pods
there; without these rights, or without such a Deployment, a line says that it was not checked.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `check` command."""
    parser = commands.add_parser(
        "check",
        help="say whether the operator in a cluster does its work",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_connection(parser)
    parser.add_argument(
        "--namespace",
        type=namespace_name,
        default=NAMESPACE,
        metavar="NAME",
        help="where the TrainJobs are tried (default: %(default)s)",
    )
    parser.add_argument(
        "--runtime",
        dest="runtimes",
        action="append",
        default=[],
        metavar="NAME",
        help="a ClusterTrainingRuntime that must be there; may be said several times",
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
        help="the operator runs without its webhook: try no TrainJobs",
    )
    add_timeout(parser, SECONDS)
    parser.set_defaults(run=run)


def _manager_key(text: str) -> ObjectKey:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAMESPACE/NAME")
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
        await inspection.look(
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
        tell: Callable[[str], None] = say,
    ) -> None:
        self._client = Client(transport)
        self._mapper = RestMapper(transport)
        self._namespace = namespace
        self._manager = manager
        self._deployment: Manifest | None = None
        self._patience = Patience(clock, seconds)
        self._report = tell
        self._there: list[ObjectMeta] = []  # existing runtimes

    async def look(self, expected: Sequence[str], *, with_webhook: bool) -> None:
        """Run all checks."""
        await self._patience.until_fine(self._unknown)
        self._report(f"ok: the API server knows {', '.join(kind.kind for kind in KINDS)}")
        await self._check_manager()
        await self._patience.until_fine(lambda: self._missing(expected))
        self._report(f"ok: {_counted(len(self._there))} there")
        if expected:
            self._report(f"ok: among them {', '.join(expected)}")
        if not with_webhook:
            return
        await self._patience.until_fine(self._wrong_is_not_refused)
        self._report(f"ok: the webhook {WEBHOOK} refuses a wrong TrainJob")
        ours = [each.name for each in self._there if is_shipped(each)]
        await self._try_good(expected or ours[:1])

    async def _unknown(self) -> str | None:
        """Return which kinds the API server does not serve."""
        unknown = [kind for kind in KINDS if not await self._mapper.is_served(kind)]
        named = ", ".join(kind.group_kind for kind in unknown)
        return f"the API server does not know {named}" if unknown else None

    async def _check_manager(self) -> None:
        """Wait until a replica of the manager is ready, if its Deployment can be read."""
        try:
            await self._patience.until_fine(self._not_ready)
        except ForbiddenError as error:
            self._report(f"not checked: whether the manager runs: {error}")
            return
        if self._deployment is None:
            self._report(
                f"not checked: whether the manager runs: there is no Deployment {self._manager}; "
                "name it with --manager NAMESPACE/NAME"
            )
            return
        ready, wanted = ready_replicas(self._deployment)
        self._report(f"ok: the manager runs: {ready} of {wanted} replicas ready")

    async def _not_ready(self) -> str | None:
        """Return why no replica of the manager is ready."""
        try:
            self._deployment = await self._client.get(DEPLOYMENTS, self._manager)
        except NotFoundError:
            self._deployment = None
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
            return f"the API server does not know {kind.group_kind}"
        there = (ObjectMeta.parse(item["metadata"]) for item in found.items)
        self._there = [each for each in there if each.deletion_timestamp is None]
        known = {each.name for each in self._there}
        missing = [name for name in expected if name not in known]
        return f"not there: {kind.kind} {', '.join(missing)}; {WHO_APPLIES}" if missing else None

    async def _wrong_is_not_refused(self) -> str | None:
        """Return why the webhook has not denied a TrainJob whose runtime does not exist."""
        try:
            await self._dry_run(NO_RUNTIME)
        except ForbiddenError as error:
            if _is_denial(error):
                return None
            if _is_denial(error, ""):
                return f"a wrong TrainJob was refused, but not by {WEBHOOK}: {error}"
            raise
        except (NotFoundError, ServerError) as error:
            return _not_tried(error)
        return (
            f"a wrong TrainJob was accepted: the API server does not ask {WEBHOOK} about "
            f"TrainJobs in the namespace {self._namespace}, or the manager does not look after it"
        )

    async def _try_good(self, runtimes: Sequence[str]) -> None:
        if not runtimes:
            self._report(
                "not tried: a good TrainJob, as no ClusterTrainingRuntime comes with the operator; "
                "say --runtime NAME for one of yours"
            )
            return
        for runtime in runtimes:
            try:
                await self._patience.until_fine(partial(self._good_is_not_answered, runtime))
            except (ForbiddenError, InvalidError) as error:
                raise CommandError(f"a good TrainJob on {runtime} was refused: {error}") from error
        self._report(f"ok: a good TrainJob is accepted on {', '.join(runtimes)}")

    async def _good_is_not_answered(self, runtime: str) -> str | None:
        """Return why the TrainJob was neither admitted nor denied."""
        try:
            await self._dry_run(runtime)
        except (NotFoundError, ServerError) as error:
            return _not_tried(error)
        return None

    async def _dry_run(self, runtime: str) -> Manifest:
        return await self._client.create(
            TRAIN_JOBS, _train_job(runtime, self._namespace), dry_run=True
        )


def _train_job(runtime: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.TRAIN_JOB,
        "metadata": {"generateName": "kftrainer-check-", "namespace": namespace},
        "spec": {"runtimeRef": {"name": runtime}, "suspend": True},
    }


def _not_tried(error: NotFoundError | ServerError) -> str:
    """Describe an error that prevented admission; both kinds may be temporary."""
    if isinstance(error, NotFoundError):  # the kind is not served yet, or there is no namespace
        return f"the API server does not take a TrainJob: {error}"
    return f"the API server cannot ask the webhook: {error}"


def _is_denial(error: KubeError, webhook: str = WEBHOOK) -> bool:
    """Return whether this webhook denied the request; any webhook if the name is empty."""
    return "denied the request" in str(error) and webhook in str(error)


def _counted(count: int) -> str:
    kind = CLUSTER_TRAINING_RUNTIMES.kind
    return f"1 {kind} is" if count == 1 else f"{count} {kind}s are"
