"""Admission of TrainJobs, on creation and update."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import structlog

from kftrainer.api.limits import exceeded
from kftrainer.api.resources import JOB_SETS, TRAIN_JOBS
from kftrainer.api.schema.defaults import schema_problems
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.client.client import Client
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.kube.objects.model import InvalidDocumentError, Problem
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.webhook.admission import (
    ALLOWED,
    AdmissionRequest,
    AdmissionResponse,
    denied,
    response_for,
)
from kftrainer.runtime.cluster_reader import ClusterReader
from kftrainer.runtime.errors import PluginFailedError
from kftrainer.runtime.info import key_of_job
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.runtime.validation.large_updates import Spec, large_change_errors
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.updates import is_fixed_by_job_set
from kftrainer.webhooks.live_reads import (
    MOST_READ,
    WITHIN,
    Asked,
    ReducedObjects,
    Refreshed,
    Remembering,
    nothing_reduced,
    read_now,
)
from kftrainer.webhooks.malformed import metadata_of, misshapen, spec_of, too_large

log = structlog.get_logger(__name__)

INTERNAL_ERROR, UNAVAILABLE = 500, 503


LargeUpdate = tuple[Spec, Spec]  # the old spec, which exceeds a limit, and the new one

JOB_SET_UNREADABLE = "the JobSet or the runtime of the TrainJob cannot be read: try again"


class JobSetUnreadableError(Exception):
    """A response depends on a JobSet or a large runtime that was not read in time."""


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
        if is_beyond_review(request.old_object, manifest):
            return ALLOWED
        return too_large(request) or await self._judged(request, manifest)

    async def _judged(self, request: AdmissionRequest, manifest: Manifest) -> AdmissionResponse:
        try:
            # `too_large` has checked the limits, so they are not checked again.
            return await self._verdict(request, decoded(manifest, request, TrainJob.parse))
        except InvalidDocumentError as error:
            return misshapen(TRAIN_JOBS.kind, error.problems, _problems_before(request))
        except JobSetUnreadableError:
            rule = Rule.JOBSET_UNREADABLE
            return denied(UNAVAILABLE, "ServiceUnavailable", JOB_SET_UNREADABLE, rule=rule)
        except Exception as error:
            before = _schema_problems(request.old_object)
            if problems := [*_schema_problems(manifest)]:
                # The API server rejects this itself, unless the stored object already violated the
                # schema.
                return misshapen(TRAIN_JOBS.kind, problems, [*before])
            if any(before):
                # The stored object is invalid; the new one is validated as if it were created.
                return await self._judged(replace(request, old_object=None), manifest)
            if not isinstance(error, PluginFailedError):
                raise
            log.exception("admission.plugin_failed", namespace=request.namespace, job=request.name)
            return denied(INTERNAL_ERROR, "InternalError", str(error), rule=Rule.PLUGIN_FAILED)

    async def _verdict(self, request: AdmissionRequest, job: TrainJob) -> AdmissionResponse:
        old, new = request.old_object, request.object
        findings = await self._findings(request, _old(request), job)
        if old and new and old.get("spec") == new.get("spec"):
            findings.warnings.clear()  # an update of metadata repeats no warnings
        return response_for(findings, request)

    def _is_ours(self, request: AdmissionRequest) -> bool:
        return not self._namespaces or request.namespace in self._namespaces

    async def _findings(
        self, request: AdmissionRequest, old: TrainJob | None, new: TrainJob
    ) -> ValidationResult:
        """Validate the TrainJob; validate again if it is denied because of a stale object.

        Before it is denied, the objects that the result depends on are read from the API server. If
        they are the same as in the cache, the result is final. A changed runtime may name other
        PriorityClasses, which are then read as well. Raises JobSetUnreadableError if an update
        depends on a JobSet that cannot be read.
        """
        until = asyncio.get_running_loop().time() + WITHIN
        live = await self._large(request, new, until)
        large = None if old is not None else _large_update(request)
        decisive = _decisive(old, new) if large is None else [(JOB_SETS, key_of_job(new))]
        live |= await self._read(request, [each for each in decisive if each not in live], until)
        read = {*live}
        existing = Refreshed(self._existing, live)
        while True:
            seen = Remembering(existing)
            findings = self._runtimes.validate(old, new, seen)
            if large is not None:
                findings.refuse(*large_change_errors(*large, new, seen))
            unread = [each for each in seen.asked if each not in read]
            if not findings.errors or not unread or len(read) >= MOST_READ:
                break
            live = await self._read(request, unread, until)
            read |= live.keys()
            outdated = seen.outdated(live)
            if not outdated:
                break
            existing.update(outdated)
        if not findings.errors and self._client is not None and not read.issuperset(decisive):
            raise JobSetUnreadableError
        return findings

    async def _large(
        self, request: AdmissionRequest, new: TrainJob, until: float
    ) -> dict[Asked, Manifest | None]:
        """Read the large objects of which the cache holds only parts.

        Raises JobSetUnreadableError on failure: a runtime that cannot be read exists and must not
        be reported as missing.
        """
        reference = new.spec.runtime_ref
        asked = [*self._reduced(key_of_job(new), reference.kind, reference.name)]
        read = await self._read(request, asked, until)
        if len(read) < len(asked):
            raise JobSetUnreadableError
        return read

    async def _read(
        self, request: AdmissionRequest, asked: Sequence[Asked], until: float
    ) -> dict[Asked, Manifest | None]:
        """Read objects from the API server and wait for a turn; without a client read nothing."""
        if not asked or self._client is None:
            return {}
        read = await read_now(self._client, asked, until)
        await request.turn()
        return read


def _decisive(old: TrainJob | None, new: TrainJob) -> Sequence[Asked]:
    """Return the objects to read before the update is admitted, as the cache may be stale."""
    if old is None or not is_fixed_by_job_set(old, new):
        return ()
    return [(JOB_SETS, key_of_job(old))]


def is_beyond_review(old: Manifest | None, new: Manifest) -> bool:
    """Return whether the update needs no validation: a deletion, or bookkeeping only.

    Controllers remove finalizers in this way, whatever the state of the runtime.
    """
    if old is None:
        return False
    return bool(metadata_of(new).get("deletionTimestamp")) or _content(old) == _content(new)


def decoded(
    manifest: Manifest,
    request: AdmissionRequest,
    decode: Callable[[Manifest], TrainJob] = TRAIN_JOBS.decode,
) -> TrainJob:
    """Decode the TrainJob; missing metadata is taken from the request."""
    whole = {**manifest, "apiVersion": TRAIN_JOBS.api_version, "kind": TRAIN_JOBS.kind}
    if isinstance(metadata := manifest.get("metadata"), dict):
        known = {"name": request.name, "namespace": request.namespace}
        said = {key: value for key, value in metadata.items() if value or key not in known}
        whole["metadata"] = {**known, **said}
    return decode(whole)


def _old(request: AdmissionRequest) -> TrainJob | None:
    """Return the old TrainJob; None if it is invalid, so that it can be fixed."""
    if request.old_object is None:
        return None
    try:
        return decoded(request.old_object, request)
    except InvalidDocumentError as error:
        log.warning("admission.old_not_understood", problems=list(map(str, error.problems)))
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


def _problems_before(request: AdmissionRequest) -> Sequence[Problem]:
    """Return why the old object cannot be decoded, if so."""
    if request.old_object is None:
        return ()
    try:
        decoded(request.old_object, request)
    except InvalidDocumentError as error:
        return error.problems
    return ()


def _schema_problems(manifest: Manifest | None) -> Iterator[Problem]:
    """Yield the schema violations lazily."""
    return iter(()) if manifest is None else schema_problems({**manifest, "kind": TRAIN_JOBS.kind})
