"""`kftrainer purge`: deletes all TrainJobs and runtimes, for an operator that is to leave."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.api import names
from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.cli.arguments import add_connection, add_timeout
from kftrainer.cli.cluster import Patience, connected, run_on_cluster, say
from kftrainer.kube.client import Client
from kftrainer.kube.errors import ConflictError, KubeError, NotFoundError
from kftrainer.kube.meta import ObjectMeta
from kftrainer.kube.resource import ObjectKey, Resource
from kftrainer.machinery.clock import Clock, SystemClock

MISUSED = 2
SECONDS = 300.0
TELL_EVERY = 10.0  # seconds, if nothing has changed
MOST_NAMED = 5
AT_ONCE = 20  # deletions
KINDS = (TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
DESCRIPTION = """\
Delete all TrainJobs with what was made for them, wait until they are gone, then do the same with
TrainingRuntimes and ClusterTrainingRuntimes. The manager must run meanwhile: it gives runtimes free
that were in use. What it is told by --runtimes to keep there it applies again at once; that is not
waited for, and goes with the CustomResourceDefinitions.
"""
EPILOG = """\
exit code:
  0  nothing is left, or the API server does not know the kinds any more
  1  it failed; the last line on standard error says what is left and why
  2  bad usage; or --yes is missing, and standard output says what would be deleted
It needs the right to list and delete the three kinds.
"""


@dataclass(frozen=True, slots=True)
class Found:
    """An object that is there."""

    kind: Resource[Any]
    metadata: ObjectMeta

    @property
    def key(self) -> ObjectKey:
        """Which one it is."""
        return ObjectKey(self.metadata.namespace or "", self.metadata.name)

    @property
    def identity(self) -> "Identity":
        """Its kind and key, which another one may have after it."""
        return self.kind.kind, self.key

    @property
    def is_going(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    def __str__(self) -> str:
        kept = ", ".join(self.metadata.finalizers or ()) if self.is_going else ""
        return f"{self.key} (kept by {kept})" if kept else str(self.key)


Identity = tuple[str, ObjectKey]
Deleted = Mapping[Identity, str | None]  # uids of what we have deleted


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `purge`."""
    parser = commands.add_parser(
        "purge",
        help="delete all TrainJobs and runtimes of a cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_connection(parser)
    parser.add_argument(
        "--namespace",
        dest="namespaces",
        action="append",
        default=[],
        metavar="NAME",
        help="TrainJobs and TrainingRuntimes of this namespace only; may be said several times. "
        "ClusterTrainingRuntimes are for all namespaces, and are deleted too",
    )
    parser.add_argument("--yes", action="store_true", help="delete; without it, only say what")
    add_timeout(parser, SECONDS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Delete, or say what would be deleted."""
    return run_on_cluster("purge", _purge(arguments))


async def _purge(arguments: argparse.Namespace) -> int:
    clock = SystemClock()
    async with connected(arguments) as client:
        namespaces = list(dict.fromkeys(arguments.namespaces))
        purge = Purge(client, namespaces, arguments.timeout, clock=clock)
        if arguments.yes:
            await purge.run()
            return 0
        if not (found := await purge.find()):
            say("there is nothing to delete")
            return 0
    for line in listed(found):
        say(f"would delete {line}")
    print("kftrainer purge: nothing was deleted: say --yes if you mean it", file=sys.stderr)
    return MISUSED


class Purge:
    """Deletes what is there, and what comes meanwhile, until nothing is left."""

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str],
        seconds: float,
        *,
        clock: Clock,
        tell: Callable[[str], None] = say,
    ) -> None:
        self._client = client
        self._namespaces = namespaces
        self._clock = clock
        self._patience = Patience(clock, seconds)
        self._tell = tell
        self._told = ("", 0.0)  # what, and when
        self._deleted: dict[Identity, str | None] = {}

    async def find(self) -> list[Found]:
        """All that there is; nothing of a kind that the API server does not know."""
        return [each for kind in KINDS for each in await self._found(kind)]

    async def run(self) -> None:
        """Delete it all; raises OutOfTimeError, which says what is left, or KubeError."""
        await self._patience.until_fine(self._step, self._tell_now_and_then)
        self._tell("no TrainJobs and no runtimes are left")

    async def _step(self) -> str | None:
        """Delete what can be deleted now; what is left, if anything is."""
        found = await self.find()
        due, left = next_step(found, self._deleted)
        if due:
            for line in listed(due):
                self._tell(f"deleting {line}")
            await self._delete_all(due)
            left = next_step(await self.find(), self._deleted)[1]
        return f"left: {'; '.join(listed(left))}" if left else None

    async def _found(self, kind: Resource[Any]) -> list[Found]:
        found: list[Found] = []
        for namespace in (self._namespaces if kind.namespaced else ()) or (None,):
            try:
                page = await self._client.list(kind.only_metadata(), namespace=namespace)
            except NotFoundError:  # the CustomResourceDefinition is gone, and all objects with it
                continue
            found += [Found(kind, ObjectMeta.parse(item["metadata"])) for item in page.items]
        return found

    async def _delete_all(self, due: Iterable[Found]) -> None:
        """Several at once; those that could not be deleted will be found again."""
        waiting, errors = iter(due), list[KubeError]()

        async def work() -> None:
            try:
                for each in waiting:
                    await self._delete(each)
            except KubeError as error:
                errors.append(error)

        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(work(), name=f"purge-{number}")
        if errors:
            raise errors[0]

    async def _delete(self, found: Found) -> None:
        # A TrainJob whose JobSet still runs is not gone: nobody could collect that later.
        foreground = found.kind is TRAIN_JOBS
        try:
            await self._client.delete(
                found.kind,
                found.key,
                uid=found.metadata.uid,
                propagation="Foreground" if foreground else "Background",
            )
        except (ConflictError, NotFoundError):  # it is another one, or gone
            return
        self._deleted[found.identity] = found.metadata.uid

    def _tell_now_and_then(self, text: str) -> None:
        before, at = self._told
        now = self._clock.monotonic()
        if text != before or now - at >= TELL_EVERY:
            self._told = text, now
            self._tell(text)


def next_step(found: Iterable[Found], deleted: Deleted) -> tuple[list[Found], list[Found]]:
    """What to delete now, and what is left; pure.

    Runtimes come when the last TrainJob is gone. What the manager has applied again is not left:
    it has no finalizers, so that it goes with its CustomResourceDefinition.
    """
    left = [each for each in found if not _is_back(each, deleted)]
    jobs = [each for each in left if each.kind is TRAIN_JOBS]
    return [each for each in jobs or left if not each.is_going], left


def _is_back(found: Found, deleted: Deleted) -> bool:
    metadata = found.metadata
    is_shipped = (metadata.labels or {}).get(names.LABEL_MANAGED_BY) == names.MANAGED_BY_KFTRAINER
    is_free = not metadata.finalizers and not found.is_going
    return is_shipped and is_free and deleted.get(found.identity, metadata.uid) != metadata.uid


def listed(found: Iterable[Found]) -> list[str]:
    """What was found, in a few words for each kind."""
    by_kind: Mapping[str, list[Found]] = {kind.kind: [] for kind in KINDS}
    for each in found:
        by_kind[each.kind.kind].append(each)
    return [_line(kind, those) for kind, those in by_kind.items() if those]


def _line(kind: str, found: Sequence[Found]) -> str:
    named = ", ".join(map(str, found[:MOST_NAMED]))
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{len(found)} {kind}{'' if len(found) == 1 else 's'}: {named}{more}"
