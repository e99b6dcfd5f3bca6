"""Responses for objects that violate the schema or exceed a size limit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kftrainer.api.limits import CLIENT_METADATA, MAX_PROPERTIES, exceeded
from kftrainer.kube.objects.field_errors import ValidationResult
from kftrainer.kube.objects.model import Problem
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.webhook.admission import (
    AdmissionRequest,
    AdmissionResponse,
    denied,
    response_for,
)
from kftrainer.runtime.validation.large_updates import keeps_content
from kftrainer.runtime.validation.rules import Rule
from kftrainer.runtime.validation.updates import NOT_NEW

MOST_PROBLEMS = 10  # in one response
BAD_REQUEST = 400
EXCEEDED_BEFORE = (
    "it exceeded a limit before: only spec.suspend, labels and annotations can be changed"
)


def misshapen(
    kind: str, problems: Sequence[Problem], before: Sequence[Problem]
) -> AdmissionResponse:
    """Deny an object that violates the schema, unless the old object had the same problems.

    The old object may have been stored under a different schema. A client that only suspends or
    labels it must not be denied; the API server does not deny this either. The response contains no
    values.
    """
    if set(problems) <= set(before):
        told = [NOT_NEW.format(each) for each in problems[:MOST_PROBLEMS]]
        return AdmissionResponse(allowed=True, warnings=told)
    told = [*map(str, problems[:MOST_PROBLEMS])]
    if (more := len(problems) - len(told)) > 0:
        told.append(f"and {more} more")
    message = f"not a {kind}: {'; '.join(told)}"
    return denied(BAD_REQUEST, "BadRequest", message, rule=Rule.SCHEMA)


def too_large(request: AdmissionRequest) -> AdmissionResponse | None:
    """Deny an object that exceeds a limit before anything else is done with it.

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
            return AdmissionResponse(allowed=True, warnings=[NOT_NEW.format(error)])
        error = replace(error, detail=f"{error.detail}; {EXCEEDED_BEFORE}")
    return response_for(ValidationResult([error]), request)


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
    spec = manifest.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def metadata_of(manifest: Manifest) -> Mapping[str, Any]:
    """Return the metadata if it is an object, else an empty mapping."""
    metadata = manifest.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
