"""Admission of both kinds of runtimes, on creation and when their spec changes."""

from collections.abc import Mapping, Sequence

import structlog

from kftrainer.api import names
from kftrainer.api.resources import AnyResource
from kftrainer.api.schema.defaults import schema_problems
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
from kftrainer.runtime.errors import PluginFailedError
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.runtime import runtime_findings
from kftrainer.runtime.validation.runtime_warnings import framework_hints
from kftrainer.runtime.validation.updates import news
from kftrainer.runtime.validation.warnings import deprecation
from kftrainer.webhooks.malformed import metadata_of, misshapen, too_large

log = structlog.get_logger(__name__)

INTERNAL_ERROR = 500
# Labels of runtimes that cause warnings, also if nothing else changes.
REVIEWED_LABELS = (names.LABEL_SUPPORT, names.LABEL_FRAMEWORK)


class RuntimeAdmission:
    """Validator for one kind: TrainingRuntime or ClusterTrainingRuntime."""

    def __init__(self, resource: AnyResource, framework: Framework) -> None:
        self._resource = resource
        self._framework = framework

    async def __call__(self, request: AdmissionRequest) -> AdmissionResponse:
        """Validate a runtime.

        An update that does not change the spec is never denied: whatever is wrong with a runtime,
        its finalizer and labels must remain writable.
        """
        new, old = request.object, request.old_object
        if new is None or (old is not None and metadata_of(new).get("deletionTimestamp")):
            return ALLOWED
        if old is None or old.get("spec") != new.get("spec"):
            return too_large(request) or self._verdict(request, new, old)
        if _reviewed_labels(new) != _reviewed_labels(old):
            return response_for(self._remarks(new), request)
        return ALLOWED

    def _verdict(
        self, request: AdmissionRequest, new: Manifest, old: Manifest | None
    ) -> AdmissionResponse:
        try:
            findings = runtime_findings(self._framework, self._decoded(new))
            if findings.errors and old is not None:
                findings = news(findings, self._findings_before(old))
        except InvalidDocumentError as error:
            return misshapen(self._resource.kind, error.problems, self._problems_before(old))
        except Exception as error:
            problems = self._schema_problems(new)
            if problems:
                # The API server rejects this itself, unless the stored object already violated the
                # schema.
                return misshapen(self._resource.kind, problems, self._schema_problems(old))
            if not isinstance(error, PluginFailedError):
                raise
            log.exception(
                "admission_plugin_failed",
                kind=self._resource.kind,
                namespace=request.namespace,
                name=request.name,
            )
            return denied(INTERNAL_ERROR, "InternalError", str(error), rule=Rule.PLUGIN_FAILED)
        return response_for(findings, request)

    def _decoded(self, manifest: Manifest) -> AnyRuntime:
        """Decode the runtime; its kind is given by the path of the request."""
        head = {"apiVersion": self._resource.api_version, "kind": self._resource.kind}
        runtime: AnyRuntime = self._resource.decode({**manifest, **head})
        return runtime

    def _findings_before(self, old: Manifest) -> ValidationResult:
        """Return the errors of the old object; it may have been stored without validation."""
        try:
            return runtime_findings(self._framework, self._decoded(old))
        except InvalidDocumentError:
            return ValidationResult()

    def _problems_before(self, old: Manifest | None) -> Sequence[Problem]:
        if old is None:
            return ()
        try:
            self._decoded(old)
        except InvalidDocumentError as error:
            return error.problems
        return ()

    def _schema_problems(self, manifest: Manifest | None) -> Sequence[Problem]:
        if manifest is None:
            return ()
        return [*schema_problems({**manifest, "kind": self._resource.kind})]

    def _remarks(self, manifest: Manifest) -> ValidationResult:
        """Return the warnings for a runtime of which only labels have changed."""
        try:
            runtime = self._decoded(manifest)
        except InvalidDocumentError:
            return ValidationResult()
        deprecated = deprecation(runtime)
        return ValidationResult(warnings=[*filter(None, [deprecated]), *framework_hints(runtime)])


def _reviewed_labels(manifest: Manifest) -> Sequence[object]:
    """Return the values of the labels that cause warnings."""
    labels = metadata_of(manifest).get("labels")
    found = labels if isinstance(labels, Mapping) else {}
    return [found.get(label) for label in REVIEWED_LABELS]
