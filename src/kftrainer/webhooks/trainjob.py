"""TrainJobs at admission: may this one be created, or changed in this way?"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import structlog

from kftrainer.api.defaults import stored
from kftrainer.api.resources import TRAIN_JOBS
from kftrainer.api.trainjob import TrainJob
from kftrainer.kube.client import Client
from kftrainer.kube.field import Findings
from kftrainer.kube.model import InvalidDocumentError, Problem
from kftrainer.kube.resource import Manifest
from kftrainer.machinery.admission import (
    ALLOWED,
    AdmissionRequest,
    Verdict,
    refused,
    verdict_of,
)
from kftrainer.runtime.errors import PluginFailedError
from kftrainer.runtime.existing import Existing
from kftrainer.runtime.rule_names import Rule
from kftrainer.runtime.runtimes import Runtimes
from kftrainer.webhooks.misshapen import metadata_of, misshapen
from kftrainer.webhooks.second_look import (
    MOST_READ,
    WITHIN,
    Asked,
    Refreshed,
    Remembering,
    read_now,
)

log = structlog.get_logger(__name__)

INTERNAL_ERROR = 500


class TrainJobAdmission:
    """Answers for TrainJobs; takes a second look, at the server, before it refuses one.

    `existing` is a cache, which may not have heard yet of a runtime that was applied just before
    its TrainJob. Without a client there is no second look.
    """

    def __init__(
        self,
        runtimes: Runtimes,
        existing: Existing,
        client: Client | None,
        *,
        namespaces: Collection[str] = (),
    ) -> None:
        self._runtimes = runtimes
        self._existing = existing
        self._client = client
        self._namespaces = frozenset(namespaces)  # all, if there are none

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """Whether the TrainJob may be written as it is."""
        manifest = request.object
        if manifest is None or not self._is_ours(request):
            return ALLOWED
        if is_beyond_review(request.old_object, manifest):
            return ALLOWED
        return await self._judged(request, manifest)

    async def _judged(self, request: AdmissionRequest, manifest: Manifest) -> Verdict:
        try:
            return await self._verdict(request, decoded(manifest, request))
        except InvalidDocumentError as error:
            return misshapen(TRAIN_JOBS.kind, error.problems, _problems_before(request))
        except Exception as error:
            before = _schema_problems(request.old_object)
            if problems := _schema_problems(manifest):
                # The API server would not have let it come so far, unless it was so before.
                return misshapen(TRAIN_JOBS.kind, problems, before)
            if before:
                # It has become so before we were asked; what replaces it is looked at as if new.
                return await self(replace(request, old_object=None))
            if not isinstance(error, PluginFailedError):
                raise
            log.exception("admission.plugin_failed", namespace=request.namespace, job=request.name)
            return refused(INTERNAL_ERROR, "InternalError", str(error), rule=Rule.PLUGIN_FAILED)

    async def _verdict(self, request: AdmissionRequest, job: TrainJob) -> Verdict:
        old, new = request.old_object, request.object
        findings = await self._findings(_old(request), job)
        if old and new and old.get("spec") == new.get("spec"):
            findings.warnings.clear()  # who changes a label has written nothing of this
        return verdict_of(findings, request)

    def _is_ours(self, request: AdmissionRequest) -> bool:
        return not self._namespaces or request.namespace in self._namespaces

    async def _findings(self, old: TrainJob | None, new: TrainJob) -> Findings:
        """What there is to say; before anything is refused, what it hangs on is read at the server.

        What is read may hang on something else: a runtime names PriorityClasses.
        """
        until = asyncio.get_running_loop().time() + WITHIN
        read: dict[Asked, Manifest | None] = {}
        while True:
            seen = Remembering(Refreshed(self._existing, read) if read else self._existing)
            findings = self._runtimes.validate(old, new, seen)
            unread = [each for each in seen.asked if each not in read]
            if not findings.errors or not unread or self._client is None or len(read) >= MOST_READ:
                return findings
            found = await read_now(self._client, unread, until)
            if not found:
                return findings
            read |= found


def is_beyond_review(old: Manifest | None, new: Manifest) -> bool:
    """Whether the update can do no harm: the object goes, or only its bookkeeping changes.

    Controllers remove finalizers in this way, whatever has become of the runtime since.
    """
    if old is None:
        return False
    return bool(metadata_of(new).get("deletionTimestamp")) or _content(old) == _content(new)


def decoded(manifest: Manifest, request: AdmissionRequest) -> TrainJob:
    """The TrainJob; what the object leaves out is in the request."""
    whole = {**manifest, "apiVersion": TRAIN_JOBS.api_version, "kind": TRAIN_JOBS.kind}
    if isinstance(metadata := manifest.get("metadata"), dict):
        known = {"name": request.name, "namespace": request.namespace}
        said = {key: value for key, value in metadata.items() if value or key not in known}
        whole["metadata"] = {**known, **said}
    return TRAIN_JOBS.decode(whole)


def _old(request: AdmissionRequest) -> TrainJob | None:
    """What was there; None if that is no TrainJob as we know them, so that it can be mended."""
    if request.old_object is None:
        return None
    try:
        return decoded(request.old_object, request)
    except InvalidDocumentError as error:
        log.warning("admission.old_not_understood", problems=list(map(str, error.problems)))
        return None


def _content(manifest: Manifest) -> tuple[Any, ...]:
    """What rules can be about."""
    metadata = metadata_of(manifest)
    kept = (metadata.get(field) or {} for field in ("labels", "annotations"))
    return (manifest.get("spec"), *kept)


def _problems_before(request: AdmissionRequest) -> Sequence[Problem]:
    """Why the object that was there could not be read, if it could not."""
    if request.old_object is None:
        return ()
    try:
        decoded(request.old_object, request)
    except InvalidDocumentError as error:
        return error.problems
    return ()


def _schema_problems(manifest: Manifest | None) -> Sequence[Problem]:
    if manifest is None:
        return ()
    return stored({**manifest, "kind": TRAIN_JOBS.kind}).problems
