"""When a request may be sent again, as client-go has it. Pure.

A server that says `Retry-After` has not carried the request out, so any request may follow its
wish. Where no answer came back only a read may be repeated: a write was carried out or not, and
only its sender knows what that means.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kftrainer.kube.client.errors import TransportError

RETRIES_ASKED_FOR = 10  # by the server, with Retry-After
RETRIES_OF_BROKEN_READS = 1
PAUSE_AFTER_BREAK = 1.0
TOO_MANY_REQUESTS = 429
FIRST_SERVER_ERROR = 500


class ConnectionBrokenError(TransportError):
    """The connection was there, and ended before the answer did."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often one request has been sent again so far, and why."""

    asked_for: int = 0
    broken: int = 0


@dataclass(frozen=True, slots=True)
class Again:
    """Send it again after a pause."""

    pause: float
    retries: Retries


def after_answer(
    status: int, headers: Mapping[str, str], so_far: Retries, time_left: float
) -> Again | None:
    """What to do with this answer; None lets it stand."""
    if status != TOO_MANY_REQUESTS and status < FIRST_SERVER_ERROR:
        return None
    pause = retry_after(headers)
    # An answer now is worth more to the caller than running out of time while waiting.
    if pause is None or pause >= time_left or so_far.asked_for >= RETRIES_ASKED_FOR:
        return None
    return Again(pause, Retries(so_far.asked_for + 1, so_far.broken))


def after_failure(
    method: str, error: TransportError, so_far: Retries, time_left: float
) -> Again | None:
    """What to do when no answer came back; None lets the error stand."""
    if method != "GET" or not isinstance(error, ConnectionBrokenError):
        return None
    if so_far.broken >= RETRIES_OF_BROKEN_READS or time_left <= PAUSE_AFTER_BREAK:
        return None
    return Again(PAUSE_AFTER_BREAK, Retries(so_far.asked_for, so_far.broken + 1))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that the server asks for; the API server never writes a date here."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None
