"""Scrapes metrics of a manager and selects single series."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from kftrainer.devcluster import cache_paths
from kftrainer.devcluster.client import ApiClient, UnreachableError
from kftrainer.devcluster.errors import ApiError
from kftrainer.devcluster.processes.ports import LOOPBACK, PortReservations

Series = dict[tuple[str, ...], float]


class Scraper:
    """The metrics endpoint of a manager with these flags."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"
        self.flags = ("--no-metrics-secure", "--metrics-bind-address", address)

    async def text(self) -> str:
        """All metrics; empty while the manager is unreachable."""
        async with ApiClient(self._url, None) as metrics:
            try:
                return (await metrics.fetch("GET", "/metrics")).decode()
            except (ApiError, UnreachableError):
                return ""

    async def series(self, name: str, *labels: str, **of: str) -> Series:
        """The series of one name: values by those labels, where the others are as they should be.

        Series that differ only in other labels are added up.
        """
        found: Series = {}
        for family in text_string_to_metric_families(await self.text()):
            for sample in family.samples:
                if sample.name == name and _is_of(sample.labels, of):
                    place = tuple(sample.labels[label] for label in labels)
                    found[place] = found.get(place, 0) + sample.value
        return found


def _is_of(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())


@asynccontextmanager
async def scraper() -> AsyncIterator[Scraper]:
    """An address that is free for as long as the block lasts."""
    ports = PortReservations(cache_paths.ports(cache_paths.cache_home()))
    try:
        yield Scraper(f"{LOOPBACK}:{ports.reserve()}")
    finally:
        ports.release_all()
