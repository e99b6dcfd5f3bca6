from typing import Any

import orjson
import pytest

from kftrainer.kube.client.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    Cause,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    KindNotFoundError,
    NamespaceTerminatingError,
    NotFoundError,
    ResourceVersionTooNewError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    error_from_response,
    error_from_status,
)


@pytest.mark.parametrize(
    ("code", "reason", "wanted"),
    [
        (400, "BadRequest", BadRequestError),
        (401, "Unauthorized", UnauthorizedError),
        (403, "Forbidden", ForbiddenError),
        (404, "NotFound", KindNotFoundError),
        (404, "", KindNotFoundError),
        (409, "AlreadyExists", AlreadyExistsError),
        (409, "Conflict", ConflictError),
        (410, "Expired", ExpiredError),
        (410, "Gone", ExpiredError),
        (410, "", ExpiredError),
        (422, "Invalid", InvalidError),
        (429, "TooManyRequests", TooManyRequestsError),
        (500, "InternalError", ServerError),
        (503, "ServiceUnavailable", ServerError),
        (504, "Timeout", ServerError),
        (302, "", ApiError),
        (415, "UnsupportedMediaType", ApiError),
    ],
)
def test_the_kind_of_an_error(code: int, reason: str, wanted: type[ApiError]) -> None:
    assert type(error_from_status({"code": code, "reason": reason})) is wanted


def test_a_404_that_names_an_object_is_about_the_object() -> None:
    status = {"code": 404, "reason": "NotFound", "details": {"name": "a", "kind": "jobsets"}}
    assert type(error_from_status(status)) is NotFoundError


def test_a_404_in_plain_text_is_about_the_kind() -> None:
    error = error_from_response(404, {}, b"404 page not found\n")
    assert type(error) is KindNotFoundError
    assert str(error) == "404 page not found"


@pytest.mark.parametrize(
    ("code", "cause", "wanted"),
    [
        (403, "NamespaceTerminating", NamespaceTerminatingError),
        (504, "ResourceVersionTooLarge", ResourceVersionTooNewError),
    ],
)
def test_cause_has_precedence_over_the_reason(
    code: int, cause: str, wanted: type[ApiError]
) -> None:
    status = {"code": code, "reason": "x", "details": {"causes": [{"reason": cause}]}}
    assert type(error_from_status(status)) is wanted


@pytest.mark.parametrize("status", [{}, {"details": None}, {"details": {"causes": None}}])
def test_empty_status_is_handled(status: dict[str, Any]) -> None:
    error = error_from_status(status)
    assert type(error) is ServerError
    assert str(error) == "HTTP 500"


def test_status_contains_message_causes_and_retry_after() -> None:
    status = {
        "kind": "Status",
        "code": 422,
        "reason": "Invalid",
        "message": "spec is wrong",
        "details": {
            "retryAfterSeconds": 3,
            "causes": [{"reason": "FieldValueRequired", "message": "is missing", "field": "spec"}],
        },
    }
    error = error_from_response(422, {}, orjson.dumps(status))
    assert isinstance(error, InvalidError)
    assert (str(error), error.status, error.reason) == ("spec is wrong", 422, "Invalid")
    assert error.causes == (Cause("FieldValueRequired", "is missing", "spec"),)
    assert error.retry_after == 3


def test_retry_after_header_has_precedence_over_the_body() -> None:
    body = b'{"kind": "Status", "details": {"retryAfterSeconds": 3}}'
    assert error_from_response(429, {"Retry-After": "7"}, body).retry_after == 7
    assert error_from_response(429, {"Retry-After": "soon"}, body).retry_after == 3


@pytest.mark.parametrize("body", [b"Too many requests, please try again later.\n", b"[1]", b""])
def test_a_body_may_be_anything(body: bytes) -> None:
    error = error_from_response(429, {"Retry-After": "1"}, body)
    assert isinstance(error, TooManyRequestsError)
    assert error.message == body.decode().strip()
    assert error.retry_after == 1
