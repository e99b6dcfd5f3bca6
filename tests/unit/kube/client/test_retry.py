import pytest

from kftrainer.kube.client.errors import RequestTimeoutError, TransportError
from kftrainer.kube.client.retry import (
    RETRIES_REQUESTED,
    Again,
    ConnectionBrokenError,
    Retries,
    after_failure,
    after_response,
)

FIRST = Retries()
LONG = 60.0
RETRY_AFTER = {"Retry-After": "2"}


@pytest.mark.parametrize("status", [429, 500, 503, 504])
def test_request_is_retried_after_retry_after(status: int) -> None:
    assert after_response(status, RETRY_AFTER, FIRST, LONG) == Again(2.0, Retries(requested=1))


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("headers", [{}, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}])
def test_error_without_retry_after_is_not_retried(status: int, headers: dict[str, str]) -> None:
    assert after_response(status, headers, FIRST, LONG) is None


@pytest.mark.parametrize("status", [200, 201, 301, 401, 403, 404, 409, 410, 422])
def test_other_responses_are_not_retried(status: int) -> None:
    assert after_response(status, RETRY_AFTER, FIRST, LONG) is None


def test_retries_are_limited() -> None:
    last = Retries(requested=RETRIES_REQUESTED - 1)
    again = after_response(503, RETRY_AFTER, last, LONG)
    assert again is not None
    assert after_response(503, RETRY_AFTER, again.retries, LONG) is None


def test_retry_does_not_exceed_the_deadline() -> None:
    assert after_response(429, RETRY_AFTER, FIRST, 2.5) is not None
    assert after_response(429, RETRY_AFTER, FIRST, 2.0) is None
    assert after_response(429, {"Retry-After": "inf"}, FIRST, LONG) is None
    assert after_failure("GET", ConnectionBrokenError(), FIRST, 1.0) is None


def test_a_read_whose_connection_broke_is_repeated_once() -> None:
    again = after_failure("GET", ConnectionBrokenError(), FIRST, LONG)
    assert again == Again(1.0, Retries(broken=1))
    assert after_failure("GET", ConnectionBrokenError(), again.retries, LONG) is None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_write_whose_connection_broke_is_not_repeated(method: str) -> None:
    assert after_failure(method, ConnectionBrokenError(), FIRST, LONG) is None


@pytest.mark.parametrize("error", [TransportError("refused"), RequestTimeoutError("late")])
def test_a_read_that_failed_in_another_way_is_not_repeated(error: TransportError) -> None:
    assert after_failure("GET", error, FIRST, LONG) is None
