"""Admission of both kinds of runtimes, on creation and when their spec changes."""

from collections.abc import Mapping, Sequence

from kftrainer.api import names
from kftrainer.api.resources import AnyResource
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.kube.objects.model import InvalidDocumentError
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.webhook.admission import (
    ALLOWED,
    AdmissionRequest,
    AdmissionResponse,
    response_for,
)
from kftrainer.runtime.errors import PluginFailedError
from kftrainer.runtime.framework.framework import Framework
from kftrainer.runtime.info import AnyRuntime
from kftrainer.runtime.validation.runtime_warnings import deprecation, framework_hints
from kftrainer.runtime.validation.training_runtime import runtime_findings
from kftrainer.runtime.validation.updates import with_stored_errors_as_warnings
from kftrainer.webhooks.admission_steps import admission_response, completed, metadata_of

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
            return await admission_response(request, self._resource, self._validate)
        if _reviewed_labels(new) != _reviewed_labels(old):
            return response_for(self._label_warnings(request, new), request)
        return ALLOWED

    async def _validate(self, request: AdmissionRequest) -> ValidationResult:
        new, old = request.object or {}, request.old_object
        result = runtime_findings(self._framework, self._decoded(new, request))
        if not result.errors or old is None:
            return result
        try:
            before = runtime_findings(self._framework, self._decoded(old, request))
        except (InvalidDocumentError, PluginFailedError):  # it may have been stored unvalidated
            return result
        return with_stored_errors_as_warnings(result, before)

    def _decoded(self, manifest: Manifest, request: AdmissionRequest) -> AnyRuntime:
        """Decode the runtime; its kind is given by the path of the request."""
        runtime: AnyRuntime = self._resource.decode(completed(manifest, request, self._resource))
        return runtime

    def _label_warnings(self, request: AdmissionRequest, manifest: Manifest) -> ValidationResult:
        """Return the warnings for a runtime of which only labels have changed."""
        try:
            runtime = self._decoded(manifest, request)
        except InvalidDocumentError:
            return ValidationResult()
        deprecated = deprecation(runtime)
        return ValidationResult(warnings=[*filter(None, [deprecated]), *framework_hints(runtime)])


def _reviewed_labels(manifest: Manifest) -> Sequence[object]:
    """Return the values of the labels that cause warnings."""
    labels = metadata_of(manifest).get("labels")
    found = labels if isinstance(labels, Mapping) else {}
    return [found.get(label) for label in REVIEWED_LABELS]
