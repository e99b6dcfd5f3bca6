"""Which requests are retried, by client-go's rules. Pure.

A server that sends `Retry-After` has not carried out the request, so any request may be retried.
Without a response only a read may be retried: a write may have been carried out, and only the
caller can decide what to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kftrainer.kube.client.errors import TransportError

RETRIES_REQUESTED = 10  # requested by the server with Retry-After
RETRIES_OF_BROKEN_READS = 1
PAUSE_AFTER_BREAK = 1.0
TOO_MANY_REQUESTS = 429
FIRST_SERVER_ERROR = 500


class ConnectionBrokenError(TransportError):
    """The connection was established, but ended before the response was complete."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often one request has been retried so far, by cause."""

    requested: int = 0
    broken: int = 0


@dataclass(frozen=True, slots=True)
class Again:
    """Retry after a pause."""

    pause: float
    retries: Retries


def after_response(
    status: int, headers: Mapping[str, str], so_far: Retries, time_left: float
) -> Again | None:
    """Return how to retry after this response, or None to return it to the caller."""
    if status != TOO_MANY_REQUESTS and status < FIRST_SERVER_ERROR:
        return None
    pause = retry_after(headers)
    # A response now is more useful to the caller than a timeout while waiting.
    if pause is None or pause >= time_left or so_far.requested >= RETRIES_REQUESTED:
        return None
    return Again(pause, Retries(so_far.requested + 1, so_far.broken))


def after_failure(
    method: str, error: TransportError, so_far: Retries, time_left: float
) -> Again | None:
    """Return how to retry when no response was received, or None to raise the error."""
    if method != "GET" or not isinstance(error, ConnectionBrokenError):
        return None
    if so_far.broken >= RETRIES_OF_BROKEN_READS or time_left <= PAUSE_AFTER_BREAK:
        return None
    return Again(PAUSE_AFTER_BREAK, Retries(so_far.requested, so_far.broken + 1))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After; the API server never sends a date."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None
