"""`kftrainer diff-runtime`: shows what has changed in a runtime since a TrainJob began."""

import argparse
import sys

from kftrainer.api.resources import CONTROLLER_REVISIONS, TRAIN_JOBS
from kftrainer.api.runtime_revisions import content_of
from kftrainer.cli.arguments import add_connection, namespace_name
from kftrainer.cli.cluster.connection import CommandError, connected, run_on_cluster
from kftrainer.cli.manifests.output import unified
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import NotFoundError
from kftrainer.kube.objects.model import InvalidDocumentError
from kftrainer.kube.objects.resource import Manifest, ObjectKey
from kftrainer.runtime.revisions import recorded_revision_in
from kftrainer.runtime.runtimes import referenced_runtime_in

NAME = "diff-runtime"
NAMESPACE = "default"
SAME, DIFFERENT, FAILED = 0, 1, 2
DESCRIPTION = """\
Show what has changed in the runtime of a TrainJob since the TrainJob began, as a unified diff.
A TrainJob keeps the runtime as it was when its JobSet was first created: its status.runtimeRevision
is the name of a ControllerRevision with that content. Nothing is changed in the cluster.
"""
EPILOG = """\
exit code:
  0  the runtime is unchanged
  1  the runtime was changed or deleted; standard output has the difference
  2  the command failed, or its arguments are invalid; the last line on standard error contains
     the reason
Required permissions: get the TrainJob, its runtime, and ControllerRevisions in the namespace.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `diff-runtime` command."""
    parser = commands.add_parser(
        NAME,
        help="show what has changed in the runtime of a TrainJob since it began",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="TRAINJOB", help="name of the TrainJob")
    parser.add_argument(
        "-n",
        "--namespace",
        type=namespace_name,
        default=NAMESPACE,
        metavar="NAME",
        help="namespace of the TrainJob (default: %(default)s)",
    )
    add_connection(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the difference and return 1, or return 0 if there is none."""
    return run_on_cluster(NAME, _diff(arguments), failed=FAILED)


async def _diff(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as transport:
        text = await difference(Client(transport), ObjectKey(arguments.namespace, arguments.name))
    sys.stdout.write(text)
    return DIFFERENT if text else SAME


async def difference(client: Client, key: ObjectKey) -> str:
    """Return the changes of the runtime as a unified diff; raise CommandError or KubeError."""
    try:
        job = await client.get(TRAIN_JOBS, key)
    except NotFoundError as error:
        raise CommandError(f"cannot read TrainJob {key}: {error}") from error
    revision, runtime = recorded_revision_in(job), referenced_runtime_in(job)
    if revision is None:
        raise CommandError(
            f"TrainJob {key} records no revision of its runtime: its JobSet does not exist yet, or "
            "was created by a release that did not record revisions"
        )
    if runtime is None:
        raise CommandError(f"TrainJob {key} refers to a runtime of an unsupported kind")
    resource, runtime_key = runtime
    before = await _recorded(client, revision)
    try:
        now = content_of(resource.decode(await client.get(resource, runtime_key)))
        title = f"{resource.kind} {runtime_key} now"
    except NotFoundError:
        now, title = None, f"{resource.kind} {runtime_key} (deleted)"
    except InvalidDocumentError as error:
        problem = f"{resource.kind} {runtime_key} is not valid: {error}"
        raise CommandError(problem) from error
    return unified(before, now, f"ControllerRevision {revision}", title)


async def _recorded(client: Client, key: ObjectKey) -> Manifest:
    """Return the content of the runtime with which the TrainJob began."""
    try:
        found = CONTROLLER_REVISIONS.decode(await client.get(CONTROLLER_REVISIONS, key))
    except NotFoundError as error:
        raise CommandError(
            f"ControllerRevision {key}, with which the TrainJob began, does not exist"
        ) from error
    if found.content is None:
        raise CommandError(
            f"the content of ControllerRevision {key} does not match the digest in its name, so it "
            "is not the content with which the TrainJob began"
        )
    return found.content
