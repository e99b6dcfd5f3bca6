"""Limits of a server: sizes of bodies, numbers of connections and requests, timeouts.

The rate of live reads on behalf of a client is limited in `per_client_rate_limiter`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what clients may send, and on how long they may take."""

    body: int = 7 * 1024 * 1024  # as in controller-runtime; two objects of maximum size fit
    small_body: int = 256 * 1024  # bodies up to this size do not count towards `bodies`
    bodies: int = 64 * 1024 * 1024  # total size of the larger bodies in progress
    # Until the first byte. In a burst the API server opens connections that it then does not use
    # and keeps them for 90 s; like idle connections below, they must not be closed by the server
    # first.
    silent_within: float = 100.0
    headers_within: float = 10.0  # from the first byte of the headers
    body_within: float = 10.0
    # Time to read a response; also the idle timeout of connections without a successful response.
    response_within: float = 10.0
    connections: int = 1000
    # Longer than clients keep an idle connection (API server 90 s, Prometheus 300 s): if the server
    # closed it first, a request sent at that moment would fail.
    idle_within: float = 330.0
    drain_within: float = 2.0  # for a body that the handler does not read
    drain_quiet: float = 0.2  # seconds without a byte of such a body before draining stops
    # Per client, that is, per source address. Excess work waits; nothing is rejected immediately.
    handshakes: int = 32  # in progress at a time, each for a few seconds at most
    large_bodies: int = 4  # being read or processed at a time
    # Requests processed at a time: of all clients, and of one client. An API server sends up to 200
    # at a time by default. Clients are served in turn, so one client cannot delay another for long.
    requests: int = 480
    requests_per_client: int = 240
    start_within: float = 10.0
