"""Errors of API requests.

KubeError
├── TransportError                  no response: the request may or may not have been carried out
│   ├── RequestTimeoutError         no response in time
│   └── MalformedStreamError        an unreadable watch event; resuming would yield it again
└── ApiError                        the API server returned an error
    ├── BadRequestError             400
    ├── UnauthorizedError           401
    ├── ForbiddenError              403
    │   └── NamespaceTerminatingError    the namespace is terminating: do not retry
    ├── NotFoundError               404
    │   └── KindNotFoundError           the kind is not installed
    ├── AlreadyExistsError          409  on create
    ├── ConflictError               409  changed meanwhile, or the field has another owner
    ├── ExpiredError                410  the resourceVersion or continue token is too old
    ├── InvalidError                422
    ├── TooManyRequestsError        429
    ├── ResourceVersionTooNewError  504  the server has not reached this resourceVersion yet
    └── ServerError                 any other 5xx
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from kftrainer.kube.redaction import redacted

if TYPE_CHECKING:
    from kftrainer.kube.objects.resource import Resource


class KubeError(Exception):
    """Base class of all errors of API requests."""


class TransportError(KubeError):
    """No response was received."""


class RequestTimeoutError(TransportError):
    """No response was received in time."""


class MalformedStreamError(TransportError):
    """A watch sent an unreadable event; resuming at the same version would yield it again."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One of several causes, with the field that it is about."""

    reason: str
    message: str
    field: str


class ApiError(KubeError):
    """The API server returned an error."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        causes: Sequence[Cause] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message or reason or f"HTTP {status}")
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)
        self.retry_after = retry_after


class BadRequestError(ApiError):
    """The server could not process the request (400)."""


class UnauthorizedError(ApiError):
    """The server could not authenticate the request (401)."""


class ForbiddenError(ApiError):
    """The request is not permitted (403)."""


class NamespaceTerminatingError(ForbiddenError):
    """Nothing can be created in a terminating namespace."""


class NotFoundError(ApiError):
    """The object or the kind does not exist (404)."""


class KindNotFoundError(NotFoundError):
    """The API server does not serve the kind, or not in this version.

    Recognized by the missing object name, which every other 404 contains. `resource` is set by the
    client.
    """

    resource: "Resource[Any] | None" = None


class AlreadyExistsError(ApiError):
    """An object with this name already exists."""


class ConflictError(ApiError):
    """The object has changed or was replaced, or another manager owns a field (409)."""


class ExpiredError(ApiError):
    """The resourceVersion or continue token is too old (410)."""


class InvalidError(ApiError):
    """The object is not valid (422); `causes` lists the fields."""


class TooManyRequestsError(ApiError):
    """The server requests a delay (429)."""


class ResourceVersionTooNewError(ApiError):
    """The server has not reached this resourceVersion yet."""


class ServerError(ApiError):
    """The server failed (5xx)."""


_BY_REASON: Mapping[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExistsError,
    "Expired": ExpiredError,
    "Gone": ExpiredError,
}
_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
    422: InvalidError,
    429: TooManyRequestsError,
}
_BY_CAUSE: Mapping[str, type[ApiError]] = {
    "NamespaceTerminating": NamespaceTerminatingError,
    "ResourceVersionTooLarge": ResourceVersionTooNewError,
}
FIRST_SERVER_ERROR = 500


def error_from_status(status: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    """Return the error for a `Status` object; any of its fields may be missing."""
    code = status.get("code") or FIRST_SERVER_ERROR
    details = status.get("details") or {}
    causes = [
        Cause(each.get("reason", ""), redacted(each.get("message", "")), each.get("field", ""))
        for each in details.get("causes") or ()
    ]
    if retry_after is None and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    found = _class_of(code, status.get("reason") or "", causes)
    if found is NotFoundError and not details.get("name"):
        found = KindNotFoundError
    return found(
        code,
        status.get("reason") or "",
        redacted(status.get("message") or ""),
        causes=causes,
        retry_after=retry_after,
    )


def _class_of(code: int, reason: str, causes: Sequence[Cause]) -> type[ApiError]:
    for cause in causes:
        if cause.reason in _BY_CAUSE:
            return _BY_CAUSE[cause.reason]
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    return _BY_STATUS.get(code, ServerError if code >= FIRST_SERVER_ERROR else ApiError)


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error for an HTTP response, whose body is a Status or plain text."""
    retry_after = _seconds(headers.get("Retry-After"))
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = None
    if not isinstance(content, dict) or content.get("kind") != "Status":
        content = {"message": body.decode(errors="replace").strip()[:1000]}
    return error_from_status({**content, "code": status}, retry_after)


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
