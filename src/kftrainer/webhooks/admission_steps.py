"""The steps of admission that all webhooks share: size limits, schema, validation, response."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from kftrainer.api.limits import CLIENT_METADATA, MAX_PROPERTIES, exceeded
from kftrainer.api.resources import AnyResource
from kftrainer.api.schema.offline import schema_problems
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.kube.objects.model import InvalidDocumentError, Problem
from kftrainer.kube.objects.nested import mapping_or_empty
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.webhook.admission import (
    AdmissionRequest,
    AdmissionResponse,
    denied,
    response_for,
)
from kftrainer.runtime.errors import PluginFailedError
from kftrainer.runtime.validation.large_updates import keeps_content
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.updates import STORED_ERROR
from kftrainer.webhooks.live_reads import UnreadableError

log = structlog.get_logger(__name__)

MOST_PROBLEMS = 10  # in one response
BAD_REQUEST, INTERNAL_ERROR, UNAVAILABLE = 400, 500, 503
EXCEEDED_BEFORE = (
    "it exceeded a limit before: only spec.suspend, labels and annotations can be changed"
)
UNREADABLE = "the JobSet or the runtime of the TrainJob cannot be read: try again"

# Returns the result for the request's object. Raises InvalidDocumentError if it cannot be decoded.
Validate = Callable[[AdmissionRequest], Awaitable[ValidationResult]]


async def admission_response(
    request: AdmissionRequest, resource: AnyResource, validate: Validate
) -> AdmissionResponse:
    """Return the response to a request that creates or changes an object of this kind."""
    response = limit_response(request)
    return response or await _validated_response(request, resource, validate)


async def _validated_response(
    request: AdmissionRequest, resource: AnyResource, validate: Validate
) -> AdmissionResponse:
    try:
        return response_for(await validate(request), request)
    except InvalidDocumentError as error:
        before = _decoding_problems(request, resource)
        return schema_response(resource.kind, error.problems, before)
    except UnreadableError:
        rule = Rule.JOBSET_UNREADABLE
        return denied(UNAVAILABLE, "ServiceUnavailable", UNREADABLE, rule=rule)
    except Exception as error:  # validation relies on the schema, which the object may violate
        before = _schema_problems(request.old_object, resource)
        if problems := _schema_problems(request.object, resource):
            # The API server rejects this itself, unless the stored object already violated the
            # schema.
            return schema_response(resource.kind, problems, before)
        if before:
            # The stored object is invalid; the new one is validated as if it were created.
            created = replace(request, old_object=None)
            return await _validated_response(created, resource, validate)
        if not isinstance(error, PluginFailedError):
            raise
        log.exception(
            "admission_plugin_failed",
            kind=resource.kind,
            namespace=request.namespace,
            name=request.name,
        )
        return denied(INTERNAL_ERROR, "InternalError", str(error), rule=Rule.PLUGIN_FAILED)


def limit_response(request: AdmissionRequest) -> AdmissionResponse | None:
    """Return a response if the object exceeds a limit; nothing else is done with it then.

    An object that exceeded a limit before can be suspended and labelled: such an update is admitted
    with a warning, and the controller does not plan the object. Any other update must bring it
    within all limits, so its content cannot change or grow while it exceeds one.
    """
    new, old = request.object, request.old_object
    error = None if new is None else exceeded(new, rule=Rule.TOO_LARGE)
    if new is None or error is None:
        return None
    if old is not None and exceeded(old) is not None:
        if keeps_content(spec_of(old), spec_of(new)) and _keeps_labels(old, new):
            return AdmissionResponse(allowed=True, warnings=[STORED_ERROR.format(error)])
        error = replace(error, detail=f"{error.detail}; {EXCEEDED_BEFORE}")
    return response_for(ValidationResult([error]), request)


def schema_response(
    kind: str, problems: Sequence[Problem], before: Sequence[Problem]
) -> AdmissionResponse:
    """Deny an object that violates the schema, unless the old object had the same problems.

    The old object may have been stored under a different schema. A client that only suspends or
    labels it must not be denied; the API server does not deny this either. The response contains no
    values.
    """
    if set(problems) <= set(before):
        warnings = [STORED_ERROR.format(each) for each in problems[:MOST_PROBLEMS]]
        return AdmissionResponse(allowed=True, warnings=warnings)
    messages = [*map(str, problems[:MOST_PROBLEMS])]
    if (more := len(problems) - len(messages)) > 0:
        messages.append(f"and {more} more")
    message = f"not a {kind}: {'; '.join(messages)}"
    return denied(BAD_REQUEST, "BadRequest", message, rule=Rule.SCHEMA)


def completed(
    manifest: Manifest, request: AdmissionRequest, resource: AnyResource
) -> dict[str, Any]:
    """Return the manifest with the kind of the webhook, and the request's name and namespace.

    Name and namespace in the manifest take precedence.
    """
    whole = {**manifest, "apiVersion": resource.api_version, "kind": resource.kind}
    if isinstance(metadata := manifest.get("metadata"), dict):
        known = {"name": request.name, "namespace": request.namespace}
        given = {key: value for key, value in metadata.items() if value or key not in known}
        whole["metadata"] = {**known, **given}
    return whole


def _decoding_problems(request: AdmissionRequest, resource: AnyResource) -> Sequence[Problem]:
    """Return why the old object cannot be decoded; empty if it can."""
    if request.old_object is None:
        return ()
    try:
        resource.decode(completed(request.old_object, request, resource))
    except InvalidDocumentError as error:
        return error.problems
    return ()


def _schema_problems(manifest: Manifest | None, resource: AnyResource) -> Sequence[Problem]:
    return [] if manifest is None else [*schema_problems({**manifest, "kind": resource.kind})]


def _keeps_labels(old: Manifest, new: Manifest) -> bool:
    """Return whether labels and annotations are within the limit or no more than before.

    The API server limits their size.
    """
    return all(
        _count(new, field) <= max(_count(old, field), MAX_PROPERTIES[field])
        for field in CLIENT_METADATA
    )


def _count(manifest: Manifest, field: str) -> int:
    found = metadata_of(manifest).get(field)
    return len(found) if isinstance(found, Mapping) else 0


def spec_of(manifest: Manifest) -> Mapping[str, Any]:
    """Return the spec if it is an object, else an empty mapping."""
    return mapping_or_empty(manifest.get("spec"))


def metadata_of(manifest: Manifest) -> Mapping[str, Any]:
    """Return the metadata if it is an object, else an empty mapping."""
    return mapping_or_empty(manifest.get("metadata"))
