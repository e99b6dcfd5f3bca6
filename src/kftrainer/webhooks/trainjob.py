"""Admission of TrainJobs, on creation and update."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import structlog

from kftrainer.api.limits import exceeded
from kftrainer.api.resources import JOB_SETS, TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.kube.objects.model import InvalidDocumentError
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.webhook.admission import ALLOWED, AdmissionRequest, AdmissionResponse
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.info import key_of_job
from kftrainer.runtime.revisions import recorded_revision
from kftrainer.runtime.runtimes import Runtimes, referenced_runtime
from kftrainer.runtime.validation.large_updates import Spec, large_change_errors
from kftrainer.runtime.validation.updates import changes_immutable_part
from kftrainer.webhooks.admission_steps import admission_response, completed, metadata_of, spec_of
from kftrainer.webhooks.live_reads import (
    MOST_READS,
    READ_TIMEOUT,
    LiveReader,
    ObjectRef,
    ReducedObjects,
    UnreadableError,
    nothing_reduced,
    read_live,
)

log = structlog.get_logger(__name__)

LargeUpdate = tuple[Spec, Spec]  # the old spec, which exceeds a limit, and the new one


class TrainJobAdmission:
    """Validator for TrainJobs; reads from the API server before it denies one.

    `existing` is a cache and may lack a runtime that was applied just before its TrainJob. It may
    also lack a JobSet that was created a moment ago: an update that this JobSet could not follow is
    admitted only after the JobSet was read, and denied if it cannot be read, because an update that
    is stored by mistake could not be reverted. Without a client nothing is read.
    """

    def __init__(
        self,
        runtimes: Runtimes,
        existing: ClusterReader,
        client: Client | None,
        *,
        namespaces: Collection[str] = (),
        reduced: ReducedObjects = nothing_reduced,
    ) -> None:
        self._reduced = reduced
        self._runtimes = runtimes
        self._existing = existing
        self._client = client
        self._namespaces = frozenset(namespaces)  # all namespaces if empty

    async def __call__(self, request: AdmissionRequest) -> AdmissionResponse:
        """Validate a TrainJob."""
        manifest = request.object
        if manifest is None or not self._is_ours(request):
            return ALLOWED
        if needs_no_validation(request.old_object, manifest):
            return ALLOWED
        return await admission_response(request, TRAIN_JOBS, self._validate)

    def _is_ours(self, request: AdmissionRequest) -> bool:
        return not self._namespaces or request.namespace in self._namespaces

    async def _validate(self, request: AdmissionRequest) -> ValidationResult:
        manifest, old = request.object or {}, request.old_object
        # `admission_response` has checked the limits, so they are not checked again.
        job = TrainJob.parse(completed(manifest, request, TRAIN_JOBS))
        result = await self._validate_with_live_objects(request, _old(request), job)
        if old and old.get("spec") == manifest.get("spec"):
            result.warnings.clear()  # an update of metadata repeats no warnings
        return result

    async def _validate_with_live_objects(
        self, request: AdmissionRequest, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Validate the TrainJob; validate again if it is denied because of a stale object.

        Before it is denied, the objects that the result depends on are read from the API server. If
        they are the same as in the cache, the result is final. A changed runtime may name other
        PriorityClasses, which are then read as well. Raises UnreadableError if an update depends on
        a JobSet that cannot be read.
        """
        until = asyncio.get_running_loop().time() + READ_TIMEOUT
        live = await self._read_reduced(request, new, until)
        large = None if old is not None else _large_update(request)
        required = _required_reads(old, new) if large is None else [(JOB_SETS, key_of_job(new))]
        live |= await self._read(request, [each for each in required if each not in live], until)
        read = {*live}
        reader = LiveReader(self._existing, live)
        while True:
            reader.reads.clear()
            result = self._runtimes.validate(old, new, reader)
            if large is not None:
                result.add_errors(*large_change_errors(*large, new, reader))
            unread = [each for each in reader.reads if each not in read]
            if not result.errors or not unread or len(read) >= MOST_READS:
                break
            live = await self._read(request, unread, until)
            read |= live.keys()
            outdated = reader.outdated(live)
            if not outdated:
                break
            reader.update(outdated)
        if not result.errors and self._client is not None and not read.issuperset(required):
            raise UnreadableError
        return result

    async def _read_reduced(
        self, request: AdmissionRequest, new: TrainJob, until: float
    ) -> dict[ObjectRef, Manifest | None]:
        """Read the large objects of which the cache holds only parts.

        Raises UnreadableError on failure: a runtime that cannot be read exists and must not be
        reported as missing.
        """
        recorded = recorded_revision(new)
        reduced = [*self._reduced(key_of_job(new), referenced_runtime(new), recorded)]
        live = await self._read(request, reduced, until)
        if len(live) < len(reduced):
            raise UnreadableError
        return live

    async def _read(
        self, request: AdmissionRequest, references: Sequence[ObjectRef], until: float
    ) -> dict[ObjectRef, Manifest | None]:
        """Read objects from the API server and wait for a turn; without a client read nothing."""
        if not references or self._client is None:
            return {}
        live = await read_live(self._client, references, until)
        await request.turn()
        return live


def _required_reads(old: TrainJob | None, new: TrainJob) -> Sequence[ObjectRef]:
    """Return the objects to read before the update is admitted, as the cache may be stale."""
    if old is None or not changes_immutable_part(old, new):
        return ()
    return [(JOB_SETS, key_of_job(old))]


def needs_no_validation(old: Manifest | None, new: Manifest) -> bool:
    """Return whether the update needs no validation: a deletion, or bookkeeping only.

    Controllers remove finalizers in this way, whatever the state of the runtime.
    """
    if old is None:
        return False
    return bool(metadata_of(new).get("deletionTimestamp")) or _content(old) == _content(new)


def _old(request: AdmissionRequest) -> TrainJob | None:
    """Return the old TrainJob; None if it is invalid, so that it can be fixed."""
    if request.old_object is None:
        return None
    try:
        return TRAIN_JOBS.decode(completed(request.old_object, request, TRAIN_JOBS))
    except InvalidDocumentError as error:
        log.warning("admission_old_object_invalid", problems=list(map(str, error.problems)))
        return None


def _large_update(request: AdmissionRequest) -> LargeUpdate | None:
    """Return the old and new spec as written if the old TrainJob exceeds a limit."""
    old, new = request.old_object, request.object
    if old is None or new is None or exceeded(old) is None:
        return None
    return spec_of(old), spec_of(new)


def _content(manifest: Manifest) -> tuple[Any, ...]:
    """Return the parts of the object that rules may read."""
    metadata = metadata_of(manifest)
    kept = (metadata.get(field) or {} for field in ("labels", "annotations"))
    return (manifest.get("spec"), *kept)
