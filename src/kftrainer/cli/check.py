"""`kftrainer check`: whether the operator in a cluster does its work; for `helm test`."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kftrainer.api import names
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS
from kftrainer.cli.arguments import add_connection, add_timeout
from kftrainer.cli.cluster import CommandError, Patience, connected, run_on_cluster, say
from kftrainer.kube.client import Client
from kftrainer.kube.errors import ApiError, ForbiddenError, KubeError, NotFoundError, ServerError
from kftrainer.kube.resource import Manifest
from kftrainer.machinery.clock import Clock, SystemClock
from kftrainer.webhooks.registration import webhook_name

SECONDS = 60.0
NAMESPACE = "default"
WEBHOOK = webhook_name(TRAIN_JOBS)
NO_RUNTIME = "kftrainer-check-has-no-such-runtime"
DESCRIPTION = """\
Look whether the operator in a cluster does its work: the API server knows TrainJobs, the runtimes
that are expected are there, and the webhook refuses a wrong TrainJob and accepts a good one. It
waits for what is not there yet. Nothing is changed: the TrainJobs are tried in dry runs.
"""
EPILOG = """\
exit code:
  0  all is well; a line on standard output for each thing that was looked at
  1  something is not; the last line on standard error says what
  2  bad usage
It needs the right to list ClusterTrainingRuntimes and, for the webhook, to create TrainJobs in the
namespace.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `check`."""
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
        "--no-webhook",
        dest="webhook",
        action="store_false",
        help="the operator runs without its webhook: try no TrainJobs",
    )
    add_timeout(parser, SECONDS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look at one thing after the other, up to the first that is not well."""
    return run_on_cluster("check", _check(arguments))


async def _check(arguments: argparse.Namespace) -> int:
    clock = SystemClock()
    async with connected(arguments) as client:
        inspection = Inspection(client, arguments.namespace, arguments.timeout, clock=clock)
        await inspection.look(
            list(dict.fromkeys(arguments.runtimes)), with_webhook=arguments.webhook
        )
    return 0


class Inspection:
    """Looks at a cluster, and raises CommandError or KubeError at the first thing that is wrong."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        seconds: float,
        *,
        clock: Clock,
        tell: Callable[[str], None] = say,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._patience = Patience(clock, seconds)
        self._tell = tell
        self._there: list[str] = []  # names of runtimes

    async def look(self, expected: Sequence[str], *, with_webhook: bool) -> None:
        """Look at everything."""
        await self._patience.until_fine(lambda: self._missing(expected))
        self._tell(f"ok: {_counted(len(self._there))} there")
        if expected:
            self._tell(f"ok: among them {', '.join(expected)}")
        if not with_webhook:
            return
        await self._patience.until_fine(self._wrong_is_not_refused)
        self._tell(f"ok: the webhook {WEBHOOK} refuses a wrong TrainJob")
        await self._try_good(expected or self._there[:1])

    async def _missing(self, expected: Sequence[str]) -> str | None:
        """Which runtimes are not there."""
        kind = CLUSTER_TRAINING_RUNTIMES
        try:
            found = await self._client.list(kind.only_metadata())
        except NotFoundError:
            return f"the API server does not know {kind.group_kind}"
        self._there = [
            item["metadata"]["name"]
            for item in found.items
            if "deletionTimestamp" not in item["metadata"]
        ]
        missing = [name for name in expected if name not in self._there]
        return f"not there: {kind.kind} {', '.join(missing)}" if missing else None

    async def _wrong_is_not_refused(self) -> str | None:
        """Why the webhook has not refused a TrainJob whose runtime does not exist."""
        try:
            await self._dry_run(NO_RUNTIME)
        except ForbiddenError as error:
            if _is_denial(error):
                return None
            if _is_denial(error, ""):
                return f"a wrong TrainJob was refused, but not by {WEBHOOK}: {error}"
            raise
        except ServerError as error:
            return f"the API server cannot ask the webhook: {error}"
        return (
            f"a wrong TrainJob was accepted: the API server does not ask {WEBHOOK} about "
            f"TrainJobs in the namespace {self._namespace}"
        )

    async def _try_good(self, runtimes: Sequence[str]) -> None:
        if not runtimes:
            self._tell("not tried: a good TrainJob, as there is no ClusterTrainingRuntime")
            return
        for runtime in runtimes:
            try:
                await self._patience.until_fine(partial(self._good_is_not_answered, runtime))
            except ApiError as error:
                raise CommandError(f"a good TrainJob on {runtime} was refused: {error}") from error
        self._tell(f"ok: a good TrainJob is accepted on {', '.join(runtimes)}")

    async def _good_is_not_answered(self, runtime: str) -> str | None:
        """Why nobody has said whether this TrainJob is good."""
        try:
            await self._dry_run(runtime)
        except ServerError as error:
            return f"the API server cannot ask the webhook: {error}"
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


def _is_denial(error: KubeError, webhook: str = WEBHOOK) -> bool:
    """Whether a webhook said no, or this one."""
    return "denied the request" in str(error) and webhook in str(error)


def _counted(count: int) -> str:
    kind = CLUSTER_TRAINING_RUNTIMES.kind
    return f"1 {kind} is" if count == 1 else f"{count} {kind}s are"
