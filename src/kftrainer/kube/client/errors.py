"""What can go wrong on the wire.

KubeError
├── TransportError                  no answer came back: the request was carried out or not
│   ├── RequestTimeoutError         … within its time
│   └── MalformedStreamError        … that can be read, nor would asking for the same again help
└── ApiError                        the API server answered with an error
    ├── BadRequestError             400
    ├── UnauthorizedError           401  who are you?
    ├── ForbiddenError              403
    │   └── NamespaceTerminatingError    … because the namespace is going away: do not try again
    ├── NotFoundError               404
    │   └── KindNotFoundError           … because the kind is not installed
    ├── AlreadyExistsError          409  on create
    ├── ConflictError               409  somebody else was faster, or owns the field
    ├── ExpiredError                410  the resourceVersion or continue token is too old
    ├── InvalidError                422
    ├── TooManyRequestsError        429
    ├── ResourceVersionTooNewError  504  the server has not seen this resourceVersion yet
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
    """Anything that went wrong between us and the API server."""


class TransportError(KubeError):
    """No answer came back."""


class RequestTimeoutError(TransportError):
    """No answer came back in time."""


class MalformedStreamError(TransportError):
    """A watch sent what cannot be read; resumed at the same place, it would send it again."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One of several reasons, with the field that it is about."""

    reason: str
    message: str
    field: str


class ApiError(KubeError):
    """The API server answered with an error."""

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
    """The request makes no sense to the server."""


class UnauthorizedError(ApiError):
    """The server does not know who we are."""


class ForbiddenError(ApiError):
    """We may not do this."""


class NamespaceTerminatingError(ForbiddenError):
    """Nothing can be created in a namespace that is going away."""


class NotFoundError(ApiError):
    """There is no such object, or no such kind."""


class KindNotFoundError(NotFoundError):
    """The API server does not serve the kind, or not in this version.

    The server names the object in every other 404. `resource` is set by the client.
    """

    resource: "Resource[Any] | None" = None


class AlreadyExistsError(ApiError):
    """There is an object of this name."""


class ConflictError(ApiError):
    """The object has changed, is another one, or a field belongs to somebody else."""


class ExpiredError(ApiError):
    """The resourceVersion or continue token is too old."""


class InvalidError(ApiError):
    """The object is not valid; `causes` say which fields."""


class TooManyRequestsError(ApiError):
    """The server wants us to wait."""


class ResourceVersionTooNewError(ApiError):
    """The server has not seen this resourceVersion yet."""


class ServerError(ApiError):
    """The server failed."""


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
    """The error that a `Status` object tells of; any of its fields may be missing."""
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
    """The error that an HTTP answer tells of; its body may be a Status, or plain text."""
    retry_after = _seconds(headers.get("Retry-After"))
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict) or told.get("kind") != "Status":
        told = {"message": body.decode(errors="replace").strip()[:1000]}
    return error_from_status({**told, "code": status}, retry_after)


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
