"""Decode AdmissionReview v1 requests and encode responses. Pure."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from kftrainer.kube.objects.duration import duration_seconds
from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.webhook.admission import AdmissionRequest, AdmissionResponse

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
# The objects that each operation requires.
OBJECTS: Mapping[str, Sequence[str]] = {
    "CREATE": ("object",),
    "UPDATE": ("object", "oldObject"),
    "DELETE": ("oldObject",),
    "CONNECT": (),
}
# Kubernetes objects are nested less than half as deep. Validators recurse with several frames per
# level, so this limit prevents RecursionErrors.
DEEPEST = 100
# No valid object has more values: the largest that an API server stores would need one every few
# bytes. In memory each value takes a multiple of that.
MOST_VALUES = 200_000
# One of these characters precedes each value. The limit is higher than MOST_VALUES because they
# also occur in strings, and because a review has two objects with managedFields.
MARKS = (b",", b"[", b"{")
MOST_MARKS = 1_000_000
# Objects and lists take the most time to decode. Two objects at the API's limits have less than a
# tenth of this number, their statuses a fifth, and their managedFields as many as the objects for
# each manager.
OPENINGS = (b"[", b"{")
MOST_OPENINGS = 100_000
LONGEST_UID = 128
LONGEST_TEXT = 253  # of names, namespaces and other identifiers

TIMEOUT = 10.0  # the API server's default
LONGEST_TIMEOUT = 30.0  # the maximum in a webhook configuration
HEADROOM = 0.5  # so that the response arrives before the API server times out


class MalformedReviewError(Exception):
    """The body is not a valid AdmissionReview; the message is one line."""


def decoded(body: bytes) -> AdmissionRequest:
    """Return the request in a review; raise MalformedReviewError if the body is invalid."""
    if len(body) > MOST_MARKS and sum(map(body.count, MARKS)) > MOST_MARKS:
        raise MalformedReviewError(f"The body has more than {MOST_MARKS} values.")
    if len(body) > MOST_OPENINGS and sum(map(body.count, OPENINGS)) > MOST_OPENINGS:
        raise MalformedReviewError(f"The body has more than {MOST_OPENINGS} objects and lists.")
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:  # includes invalid UTF-8 and deep nesting
        raise MalformedReviewError(f"The body is not valid JSON: {error}") from None
    if not isinstance(review, dict) or not isinstance(review.get("request"), dict):
        raise MalformedReviewError("The body is not an AdmissionReview with a request.")
    if (review.get("apiVersion"), review.get("kind")) != (API_VERSION, KIND):
        raise MalformedReviewError(f"The body is not an {KIND} of {API_VERSION}.")
    return _request(review["request"])


def _request(request: Manifest) -> AdmissionRequest:
    uid, operation = _text(request, "uid", LONGEST_UID), _text(request, "operation")
    if not uid:
        raise MalformedReviewError("request.uid is missing.")
    if operation not in OBJECTS:
        raise MalformedReviewError("request.operation is not one of " + ", ".join(OBJECTS) + ".")
    for field in OBJECTS[operation]:
        if request.get(field) is None:
            raise MalformedReviewError(f"request.{field} is missing from this {operation}.")
    kind = _object(request, "kind")
    if kind is None:
        raise MalformedReviewError("request.kind is missing.")
    return AdmissionRequest(
        uid=uid,
        operation=operation,
        group=_text(kind, "group"),
        version=_text(kind, "version"),
        kind=_text(kind, "kind"),
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        object=_limited_object(request, "object"),
        old_object=_limited_object(request, "oldObject"),
        dry_run=request.get("dryRun") is True,
    )


def _text(of: Manifest, field: str, longest: int = LONGEST_TEXT) -> str:
    value = of.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedReviewError(f"{field} is not a string.")
    if len(value) > longest:
        raise MalformedReviewError(f"{field} is longer than {longest} characters.")
    return value


def _object(of: Manifest, field: str) -> Manifest | None:
    value = of.get(field)
    if value is not None and not isinstance(value, dict):
        raise MalformedReviewError(f"{field} is not an object.")
    return value


def _limited_object(request: Manifest, field: str) -> Manifest | None:
    """Return an object for validators, without managedFields, which no rule reads."""
    found = _object(request, field)
    if found is None:
        return None
    metadata = found.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    if excess := excess_of(found):
        raise MalformedReviewError(f"request.{field} {excess}.")
    return found


def excess_of(value: object, *, deepest: int = DEEPEST, most: int = MOST_VALUES) -> str | None:
    """Return which limit the value exceeds, nesting depth or number of values, or None.

    Empty objects and lists do not count as a level. Not recursive.
    """
    level: list[Any] = [value]
    values = 0
    for _ in range(deepest):
        values += sum(map(len, level))
        if values > most:
            return f"has more than {most} values"
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if inner and (type(inner) is dict or type(inner) is list)
        ]
        if not level:
            return None
    return f"is nested deeper than {deepest} levels"


def encoded(uid: str, response: AdmissionResponse) -> bytes:
    """Return the review that answers the request with this uid."""
    status: dict[str, Any] = {"code": response.code}
    if not response.allowed:
        status |= {"status": "Failure", "reason": response.reason, "message": response.message}
    if response.details is not None:
        status["details"] = response.details
    content: dict[str, Any] = {"uid": uid, "allowed": response.allowed, "status": status}
    if response.warnings:
        content["warnings"] = list(response.warnings)
    if response.patch:
        # The API server rejects a patch without operations.
        content |= {
            "patchType": "JSONPatch",
            "patch": b64encode(orjson.dumps(response.patch)).decode(),
        }
    return orjson.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": content})


def response_timeout(timeout: str | None) -> float:
    """Return the seconds a response may take; the timeout is a Go duration such as `10s`."""
    seconds = duration_seconds(timeout or "")
    if not seconds:
        seconds = TIMEOUT
    seconds = min(seconds, LONGEST_TIMEOUT)
    return max(seconds - HEADROOM, seconds / 2)
