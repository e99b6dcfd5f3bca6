"""`kftrainer purge`: deletes all TrainJobs and runtimes before the operator is uninstalled."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kftrainer.api import names
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, CONTROLLER_REVISIONS, TRAIN_JOBS
from kftrainer.cli.arguments import (
    Commands,
    add_command,
    add_connection,
    add_timeout,
    namespace_name,
)
from kftrainer.cli.cluster.connection import (
    DeadlineExceededError,
    Waiter,
    connected,
    print_line,
    run_on_cluster,
)
from kftrainer.cli.cluster.release_runtimes import Release, find_objects
from kftrainer.cli.cluster.remaining_objects import (
    IN_USE,
    KINDS,
    Found,
    Identity,
    advice,
    is_recreated,
    listed,
    next_step,
)
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ConflictError, ForbiddenError, KubeError, NotFoundError
from kftrainer.kube.objects.resource import Manifest, Resource, key_of
from kftrainer.machinery.manager.clock import Clock, SystemClock

FAILED, USAGE_ERROR = 1, 2
SECONDS = 300.0
REPORT_EVERY = 10.0  # seconds, if nothing has changed
CONCURRENCY = 20  # concurrent deletions
NOT_SERVED = "the CustomResourceDefinitions are not installed: nothing to delete"
DESCRIPTION = """\
Delete all TrainJobs with their objects and wait until they are gone. Then delete the
TrainingRuntimes and ClusterTrainingRuntimes, and wait for these. Finally, delete the
ControllerRevisions with the contents of runtimes. A manager must be running, because it
removes the finalizers of runtimes that were in use. The command does not wait for runtimes that a
manager with --runtimes re-creates; they are deleted with the CRDs. With --namespace,
ClusterTrainingRuntimes are not deleted unless --cluster-runtimes is given.

With --release-runtimes, nothing is deleted. The finalizer is removed from runtimes that no TrainJob
refers to, so that these runtimes and their namespaces can be deleted although no manager watches
them.
"""
EPILOG = """\
exit code:
  0  nothing is left, or the CustomResourceDefinitions are not installed
  1  the command failed; the last line on standard error lists what is left and why
  2  invalid arguments; or a dry run without --yes, which prints what would be deleted
Required permissions: list and delete the three kinds and ControllerRevisions; with --namespace,
only TrainJobs, TrainingRuntimes and ControllerRevisions in these namespaces, and
ClusterTrainingRuntimes with --cluster-runtimes. For --release-runtimes: list the three kinds and
patch the runtimes.
"""


def add_parser(commands: Commands) -> None:
    """Add the `purge` command."""
    parser = add_command(
        commands,
        "purge",
        run,
        summary="delete all TrainJobs and runtimes of a cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add_connection(parser)
    parser.add_argument(
        "--namespace",
        dest="namespaces",
        type=namespace_name,
        action="append",
        default=[],
        metavar="NAME",
        help="delete TrainJobs and TrainingRuntimes of this namespace only; may be repeated. "
        "ClusterTrainingRuntimes are not deleted, because they belong to all namespaces",
    )
    parser.add_argument(
        "--cluster-runtimes",
        action="store_true",
        help="with --namespace: also delete all ClusterTrainingRuntimes",
    )
    parser.add_argument(
        "--release-runtimes",
        action="store_true",
        help="delete nothing; remove the finalizer trainer.kubeflow.org/resource-in-use from the "
        "runtimes that no TrainJob refers to, for namespaces that no manager watches any more",
    )
    parser.add_argument(
        "--yes", action="store_true", help="delete; without it, print what would be deleted"
    )
    add_timeout(parser, SECONDS)


def run(arguments: argparse.Namespace) -> int:
    """Delete everything, or print what would be deleted."""
    return run_on_cluster("purge", _purge(arguments))


async def _purge(arguments: argparse.Namespace) -> int:
    if arguments.release_runtimes:
        return await _release(arguments)
    async with connected(arguments) as transport:
        purge = Purge(
            Client(transport),
            list(dict.fromkeys(arguments.namespaces)),
            arguments.timeout,
            clock=SystemClock(),
            cluster_runtimes=arguments.cluster_runtimes,
        )
        if arguments.yes:
            await purge.run()
            return 0
        found = await purge.find()
        if not found:
            print_line("there is nothing to delete" if purge.any_kind_served else NOT_SERVED)
            return 0
    for line in listed(found):
        print_line(f"would delete {line}")
    if not purge.all_kinds:
        print_line(
            "would not delete ClusterTrainingRuntimes: pass --cluster-runtimes to delete them"
        )
    print("kftrainer purge: dry run, nothing was deleted; pass --yes to delete", file=sys.stderr)
    return USAGE_ERROR


async def _release(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as transport:
        release = Release(
            Client(transport),
            list(dict.fromkeys(arguments.namespaces)),
            cluster_runtimes=arguments.cluster_runtimes,
            report=print_line,
        )
        runtimes = await (release.run() if arguments.yes else release.find())
    for line in listed(runtimes.used):
        print_line(f"not released, because TrainJobs use them: {line}")
    if not runtimes.unused:
        print_line("no unused runtime has the finalizer")
        return 0
    if arguments.yes:
        print(
            "kftrainer purge: runtimes changed in the meantime; run the command again",
            file=sys.stderr,
        )
        return FAILED
    for line in listed(runtimes.unused):
        print_line(f"would remove {IN_USE} from {line}")
    print(
        "kftrainer purge: dry run, nothing was changed; pass --yes to remove the finalizers",
        file=sys.stderr,
    )
    return USAGE_ERROR


class Purge:
    """Deletes all objects, including those created in the meantime, until none is left."""

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str],
        seconds: float,
        *,
        clock: Clock,
        cluster_runtimes: bool = False,
        report: Callable[[str], None] = print_line,
    ) -> None:
        self.all_kinds = cluster_runtimes or not namespaces
        self.any_kind_served = False  # whether the API server serves any of them
        self._client = client
        self._namespaces = namespaces
        self._clock = clock
        self._waiter = Waiter(clock, seconds)
        self._report = report
        self._reported = ("", 0.0)  # text and time of the last message
        self._found: list[Found] = []  # by the last list
        self._deleted: dict[Identity, str | None] = {}

    async def find(self) -> list[Found]:
        """List all objects; kinds that the API server does not serve are skipped."""
        kinds = (
            KINDS if self.all_kinds else (k for k in KINDS if k is not CLUSTER_TRAINING_RUNTIMES)
        )
        return [each for kind in kinds for each in await self._list(kind)]

    async def run(self) -> None:
        """Delete everything; raise DeadlineExceededError with what is left, or KubeError."""
        try:
            await self._waiter.until_passed(self._step, self._report_progress)
        except DeadlineExceededError as error:
            hint = advice(self._remaining(), of_all=not self._namespaces)
            raise DeadlineExceededError(f"{error}; {hint}" if hint else str(error)) from None
        if self.any_kind_served:
            try:
                await self._delete_revisions()
            except ForbiddenError as error:
                self._report(f"ControllerRevisions of runtimes were not deleted: {error}")
            except NotFoundError:
                pass  # the namespace or the kind does not exist
        self._report(self._end() if self.any_kind_served else NOT_SERVED)

    async def _delete_revisions(self) -> None:
        """Delete the revisions of runtimes; a manager would delete them a minute later."""
        deleted = 0
        for place in self._namespaces or (None,):
            pages = self._client.list_pages(
                CONTROLLER_REVISIONS, namespace=place, label_selector=names.LABEL_RUNTIME_KIND
            )
            async for page in pages:
                for each in page.items:
                    deleted += await self._delete_revision(each)
        if deleted:
            self._report(f"deleted {deleted} ControllerRevisions of runtimes")

    async def _delete_revision(self, manifest: Manifest) -> bool:
        """Delete the revision unless another client created it; return whether it was deleted."""
        found = CONTROLLER_REVISIONS.decode(manifest)
        if not found.is_usable:
            return False
        try:
            await self._client.delete(
                CONTROLLER_REVISIONS, key_of(manifest), uid=found.metadata.uid
            )
        except (ConflictError, NotFoundError):  # it was replaced or deleted
            return False
        return True

    def _end(self) -> str:
        end = "no TrainJobs and no runtimes are left"
        if self._namespaces:
            end = f"no TrainJobs and no TrainingRuntimes are left in {', '.join(self._namespaces)}"
            end += (
                ", and no ClusterTrainingRuntimes"
                if self.all_kinds
                else "; ClusterTrainingRuntimes were not deleted"
            )
        if back := [each for each in self._found if is_recreated(each, self._deleted)]:
            end += (
                f", except those that a manager has re-created: {'; '.join(listed(back))}; they "
                "are deleted with the CustomResourceDefinitions"
            )
        return end

    async def _step(self) -> str | None:
        """Delete what can be deleted now; return what is left, or None."""
        await self._refresh()
        due, _ = next_step(self._found, self._deleted)
        if due:
            for line in listed(due):
                self._report(f"deleting {line}")
            await self._delete_all(due)
            await self._refresh()
        return self._awaited()

    async def _refresh(self) -> None:
        """List the objects and record them before anything else can fail."""
        self._found = await self.find()
        self._waiter.awaiting(self._awaited())

    def _remaining(self) -> list[Found]:
        return next_step(self._found, self._deleted)[1]

    def _awaited(self) -> str | None:
        left = self._remaining()
        return f"left: {'; '.join(listed(left))}" if left else None

    async def _list(self, kind: Resource[Any]) -> list[Found]:
        found = await find_objects(self._client, kind, self._namespaces)
        if found is None:
            return []
        self.any_kind_served = True
        return found

    async def _delete_all(self, due: Iterable[Found]) -> None:
        """Delete objects concurrently; the next list returns those that could not be deleted."""
        waiting, errors = iter(due), list[KubeError]()

        async def work() -> None:
            try:
                for each in waiting:
                    await self._delete(each)
            except KubeError as error:
                errors.append(error)

        async with asyncio.TaskGroup() as group:
            for number in range(CONCURRENCY):
                group.create_task(work(), name=f"purge-{number}")
        if errors:
            raise errors[0]

    async def _delete(self, found: Found) -> None:
        # Foreground: a TrainJob must not disappear while its JobSet still runs.
        foreground = found.kind is TRAIN_JOBS
        try:
            await self._client.delete(
                found.kind,
                found.key,
                uid=found.metadata.uid,
                propagation="Foreground" if foreground else "Background",
            )
        except (ConflictError, NotFoundError):  # it was replaced or deleted
            return
        self._deleted[found.identity] = found.metadata.uid

    def _report_progress(self, text: str) -> None:
        before, at = self._reported
        now = self._clock.monotonic()
        if text != before or now - at >= REPORT_EVERY:
            self._reported = text, now
            self._report(text)
