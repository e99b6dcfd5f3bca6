"""Calls a webhook over kept TLS connections, as an API server does, as fast as it answers.

Arguments: port, path, connections, seconds and a file with the bodies, one to a line. Tells how
many were answered in all, and of those after a moment to get warm how many there were in a second,
how many of them allowed it, and how long they took.
"""

import asyncio
import itertools
import json
import ssl
import sys
import time
from pathlib import Path

import uvloop

WARM = 1.0  # seconds that are not counted


def request(path: str, body: bytes) -> bytes:
    """What an API server sends."""
    return (
        f"POST {path}?timeout=10s HTTP/1.1\r\nHost: webhook\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Reviewer:
    """One run."""

    def __init__(self, port: int, requests: list[bytes], seconds: float) -> None:
        self._port = port
        self._requests = itertools.cycle(requests)
        # The event loop's own clock counts whole milliseconds only.
        self._counts_from = time.perf_counter() + WARM
        self._ends = self._counts_from + seconds
        self.latencies: list[float] = []
        self.allowed = 0
        self.requests = 0

    async def send_reviews(self) -> None:
        """Over one connection."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=context)
        while (began := time.perf_counter()) < self._ends:
            writer.write(next(self._requests))
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length))
            ended = time.perf_counter()
            self.requests += 1
            if self._counts_from <= began and ended <= self._ends:
                self.latencies.append(ended - began)
                self.allowed += b'"allowed":true' in body
        writer.transport.abort()


async def run(port: int, path: str, connections: int, seconds: float, bodies: list[bytes]) -> None:
    """Send the requests, then report."""
    reviewer = Reviewer(port, [request(path, body) for body in bodies], seconds)
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(reviewer.send_reviews())
    took = sorted(reviewer.latencies)
    fields = {
        "requests": reviewer.requests,
        "per_second": len(took) / seconds,
        "allowed": reviewer.allowed / len(took),
        "p50": took[len(took) // 2],
        "p99": took[len(took) * 99 // 100],
        "worst": took[-1],
    }
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    port, path, connections, seconds, file = sys.argv[1:]
    bodies = Path(file).read_bytes().splitlines()
    uvloop.run(run(int(port), path, int(connections), float(seconds), bodies))
