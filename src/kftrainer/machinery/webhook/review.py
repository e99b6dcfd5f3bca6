"""AdmissionReview v1 as bytes: the question in, the answer out (pure)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from kftrainer.kube.objects.resource import Manifest
from kftrainer.machinery.webhook.admission import AdmissionRequest, AdmissionResponse

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
# The objects that each operation is about, which are there or it is not that operation.
OBJECTS: Mapping[str, Sequence[str]] = {
    "CREATE": ("object",),
    "UPDATE": ("object", "oldObject"),
    "DELETE": ("oldObject",),
    "CONNECT": (),
}
# No object of Kubernetes is nested even half as deep. Validators walk through objects recursively
# and need several frames for a level, so this is what keeps them from running out of them.
DEEPEST = 100
# Nor does any hold so many: the largest that an API server stores would have one every few bytes.
# In memory each takes a multiple of that.
MOST_VALUES = 200_000
# Before each value there is one of these. That they may stand in texts as well, and that there are
# two objects and who wrote which field of them, is why there may be so many more.
MARKS = (b",", b"[", b"{")
MOST_MARKS = 1_000_000
# Of these, objects and lists are the ones that take time to decode. Two objects at the limits of
# the API have less than a tenth of them, their statuses a fifth, and the managedFields of both as
# many as the objects again for each manager.
OPENINGS = (b"[", b"{")
MOST_OPENINGS = 100_000
LONGEST_UID = 128
LONGEST_TEXT = 253  # of a name, a namespace, and whatever else Kubernetes names

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
PART = r"([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(h|ms|m|s|us|µs|ns)"
GO_DURATION = re.compile(f"(?:{PART})+")
PARTS = re.compile(PART)
TIMEOUT = 10.0  # the API server's own, where a webhook's configuration says nothing else
LONGEST_TIMEOUT = 30.0  # that a configuration may ask for
HEADROOM = 0.5  # so that our answer comes before the API server gives up


class MalformedReviewError(Exception):
    """These bytes are no question that can be answered; the text is one line."""


def decoded(body: bytes) -> AdmissionRequest:
    """The request in a review; raises MalformedReviewError where there is none."""
    if len(body) > MOST_MARKS and sum(map(body.count, MARKS)) > MOST_MARKS:
        raise MalformedReviewError(f"The body holds more than {MOST_MARKS} values.")
    if len(body) > MOST_OPENINGS and sum(map(body.count, OPENINGS)) > MOST_OPENINGS:
        raise MalformedReviewError(f"The body holds more than {MOST_OPENINGS} objects and lists.")
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:  # bytes that are no text, and deep nesting, among them
        raise MalformedReviewError(f"The body is no JSON: {error}") from None
    if not isinstance(review, dict) or not isinstance(review.get("request"), dict):
        raise MalformedReviewError("The body is no AdmissionReview with a request.")
    if (review.get("apiVersion"), review.get("kind")) != (API_VERSION, KIND):
        raise MalformedReviewError(f"The body is no {KIND} of {API_VERSION}.")
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
        object=_judged(request, "object"),
        old_object=_judged(request, "oldObject"),
        dry_run=request.get("dryRun") is True,
    )


def _text(of: Manifest, field: str, longest: int = LONGEST_TEXT) -> str:
    value = of.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedReviewError(f"{field} is no text.")
    if len(value) > longest:
        raise MalformedReviewError(f"{field} is longer than {longest} characters.")
    return value


def _object(of: Manifest, field: str) -> Manifest | None:
    value = of.get(field)
    if value is not None and not isinstance(value, dict):
        raise MalformedReviewError(f"{field} is no object.")
    return value


def _judged(request: Manifest, field: str) -> Manifest | None:
    """An object that validators will walk through; no rule is about who wrote which field."""
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
    """What is too much about it: objects and lists within each other, or values in all of them.

    Only those that hold something count as a level. It needs no stack of its own to find out.
    """
    level: list[Any] = [value]
    values = 0
    for _ in range(deepest):
        values += sum(map(len, level))
        if values > most:
            return f"holds more than {most} values"
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if inner and (type(inner) is dict or type(inner) is list)
        ]
        if not level:
            return None
    return f"is nested deeper than {deepest} levels"


def encoded(uid: str, verdict: AdmissionResponse) -> bytes:
    """The review that answers the request with this uid."""
    status: dict[str, Any] = {"code": verdict.code}
    if not verdict.allowed:
        status |= {"status": "Failure", "reason": verdict.reason, "message": verdict.message}
    if verdict.details is not None:
        status["details"] = verdict.details
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.allowed, "status": status}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    return orjson.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def answer_within(timeout: str | None) -> float:
    """Seconds that an answer may take when the caller waits that long, in Go's words (`10s`)."""
    seconds = seconds_in(timeout or "")
    if not seconds:
        seconds = TIMEOUT
    seconds = min(seconds, LONGEST_TIMEOUT)
    return max(seconds - HEADROOM, seconds / 2)


def seconds_in(duration: str) -> float | None:
    """The seconds in `1m30s` and the like; None if it is no such thing."""
    if GO_DURATION.fullmatch(duration) is None:
        return None
    return sum(float(count) * UNITS[unit] for count, unit in PARTS.findall(duration))
