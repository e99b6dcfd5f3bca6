"""The process_* metrics of Go's client; prometheus_client provides only some of them."""

import resource
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

NETSTAT = Path("/proc/self/net/netstat")
UNLIMITED = 2.0**64  # Go's client writes this for no limit


def octets(netstat: str) -> tuple[int, int] | None:
    """Parse the bytes received and sent by this network namespace from /proc/net/netstat."""
    lines = [line.split()[1:] for line in netstat.splitlines() if line.startswith("IpExt:")]
    if len(lines) != 2:  # noqa: PLR2004  a line of names and a line of values
        return None
    values = dict(zip(*lines, strict=False))
    if not {"InOctets", "OutOctets"} <= values.keys():
        return None
    return int(values["InOctets"]), int(values["OutOctets"])


class ProcessMetrics(Collector):
    """CPU time, memory, open files and network traffic, read at each scrape."""

    def __init__(self) -> None:
        # Has its own registry; in the scraped one the metrics would appear twice.
        self._known = ProcessCollector(registry=CollectorRegistry())

    def collect(self) -> Iterator[Metric]:
        """Read all metrics."""
        yield from self._known.collect()
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        yield GaugeMetricFamily(
            "process_virtual_memory_max_bytes",
            "Maximum amount of virtual memory available in bytes.",
            UNLIMITED if limit == resource.RLIM_INFINITY else limit,
        )
        yield from _network()


def _network() -> Iterator[Metric]:
    try:
        traffic = octets(NETSTAT.read_text())
    except OSError:  # not on Linux
        return
    if traffic is None:
        return
    received, sent = traffic
    yield CounterMetricFamily(
        "process_network_receive_bytes_total", "Number of bytes received.", received
    )
    yield CounterMetricFamily("process_network_transmit_bytes_total", "Number of bytes sent.", sent)
