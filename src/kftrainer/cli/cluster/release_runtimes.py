"""`kftrainer purge --release-runtimes`: removes the finalizer from unused runtimes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kftrainer.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from kftrainer.cli.cluster.remaining_objects import IN_USE, Found, listed
from kftrainer.controllers.runtime_finalizer import remove_finalizer
from kftrainer.controllers.trainjob_index import index_value, runtime_of_manifest
from kftrainer.kube.client.client import Client
from kftrainer.kube.client.errors import ConflictError, NotFoundError
from kftrainer.kube.objects.meta import ObjectMeta
from kftrainer.kube.objects.resource import Resource

MAX_ROUNDS = 5  # runtimes that change in the meantime are checked again
Places = Sequence[str | None]


async def find_objects(
    client: Client, kind: Resource[Any], namespaces: Sequence[str]
) -> list[Found] | None:
    """List the objects of a kind, in all namespaces if none is given; None if it is not served."""
    places: Places = (namespaces if kind.namespaced else ()) or (None,)
    found: list[Found] | None = None
    for place in places:
        try:
            page = await client.list(kind.only_metadata(), namespace=place)
        except NotFoundError:  # without the CRD there are no objects
            continue
        objects = [Found(kind, ObjectMeta.parse(item["metadata"])) for item in page.items]
        found = [*(found or ()), *objects]
    return found


@dataclass(frozen=True, slots=True)
class RuntimesWithFinalizer:
    """The runtimes that have the finalizer."""

    unused: Sequence[Found]
    used: Sequence[Found]


class Release:
    """Finds runtimes with our finalizer that no TrainJob refers to, and removes it.

    It uses live lists and deletes nothing. A runtime that is being deleted disappears with its last
    finalizer.
    """

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str],
        *,
        cluster_runtimes: bool,
        report: Callable[[str], None],
    ) -> None:
        self._client = client
        self._namespaces = namespaces  # all namespaces if empty
        self._kinds: Sequence[Resource[Any]] = (
            (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
            if cluster_runtimes or not namespaces
            else (TRAINING_RUNTIMES,)
        )
        self._report = report

    async def find(self) -> RuntimesWithFinalizer:
        """Return the runtimes with the finalizer."""
        found = [
            each
            for kind in self._kinds
            for each in await find_objects(self._client, kind, self._namespaces) or ()
            if IN_USE in (each.metadata.finalizers or ())
        ]
        used = await self._used() if found else frozenset()
        is_used = [index_value(each.kind, each.key) in used for each in found]
        return RuntimesWithFinalizer(
            unused=[each for each, use in zip(found, is_used, strict=True) if not use],
            used=[each for each, use in zip(found, is_used, strict=True) if use],
        )

    async def run(self) -> RuntimesWithFinalizer:
        """Remove the finalizer from unused runtimes; return the runtimes that still have it."""
        runtimes = await self.find()
        for _ in range(MAX_ROUNDS):
            if not runtimes.unused:
                break
            for line in listed(runtimes.unused):
                self._report(f"removing {IN_USE} from {line}")
            for each in runtimes.unused:
                await self._release(each)
            runtimes = await self.find()
        return runtimes

    async def _release(self, found: Found) -> None:
        try:
            await remove_finalizer(self._client, found.kind, found.key, found.metadata)
        except (ConflictError, NotFoundError):  # it has changed; the next round checks it again
            return

    async def _used(self) -> frozenset[str]:
        """Return the runtimes that TrainJobs refer to; for cluster runtimes, in all namespaces."""
        everywhere = CLUSTER_TRAINING_RUNTIMES in self._kinds
        places: Places = (None,) if everywhere else self._namespaces
        used: set[str] = set()
        for place in places:
            try:
                async for page in self._client.list_pages(TRAIN_JOBS, namespace=place):
                    used.update(map(runtime_of_manifest, page.items))
            except NotFoundError:
                continue
        return frozenset(used)
