"""Reports the namespaces and kinds that cannot be read, and when reads succeed again.

Informers retry by themselves; everything else keeps running meanwhile.
"""

from collections.abc import Iterable
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Gauge

from kftrainer.kube.client.errors import ForbiddenError, KindNotFoundError
from kftrainer.kube.objects.resource import Resource

log = structlog.get_logger(__name__)

EVERYWHERE = ""  # instead of a namespace


class AccessReport:
    """Logs each loss and each recovery of access once, and exports a gauge per namespace."""

    def __init__(self, registry: CollectorRegistry, namespaces: Iterable[str]) -> None:
        self._forbidden: dict[str, set[str]] = {}  # kinds, by namespace
        self._missing: dict[str, set[str]] = {}  # namespaces, by kind that is not installed
        self._unavailable = Gauge(
            "kftrainer_namespace_unavailable",
            "Whether a watched namespace cannot be read, because permission is missing or the "
            "namespace does not exist. Reads are retried.",
            ("namespace",),
            registry=registry,
        )
        for namespace in namespaces:
            self._unavailable.labels(namespace).set(0)

    def __call__(
        self,
        resource: Resource[Any],
        namespace: str | None,
        refusal: ForbiddenError | KindNotFoundError | None,
    ) -> None:
        """Record that reads of a kind are refused, or with None that they succeed again."""
        kind, place = resource.group_kind, namespace or EVERYWHERE
        if not isinstance(refusal, KindNotFoundError):
            self._found(kind, place)
        if not isinstance(refusal, ForbiddenError):
            self._permitted(kind, place)
        if isinstance(refusal, KindNotFoundError):
            self._not_found(kind, place)
        elif refusal is not None:
            self._report_forbidden(kind, place, refusal)

    def _report_forbidden(self, kind: str, place: str, refusal: ForbiddenError) -> None:
        kinds = self._forbidden.setdefault(place, set())
        if not kinds and place:
            log.warning("namespace_unavailable", namespace=place, kind=kind, error=str(refusal))
            self._unavailable.labels(place).set(1)
        elif not place:
            log.warning("kind_forbidden", kind=kind, error=str(refusal))
        kinds.add(kind)

    def _permitted(self, kind: str, place: str) -> None:
        kinds = self._forbidden.get(place, set())
        if kind not in kinds:
            return
        kinds.remove(kind)
        if not place:
            log.info("kind_permitted", kind=kind)
        elif not kinds:
            log.info("namespace_available", namespace=place)
            self._unavailable.labels(place).set(0)

    def _not_found(self, kind: str, place: str) -> None:
        places = self._missing.setdefault(kind, set())
        if not places:
            log.warning("kind_not_installed", kind=kind)
        places.add(place)

    def _found(self, kind: str, place: str) -> None:
        places = self._missing.get(kind, set())
        if place not in places:
            return
        places.remove(place)
        if not places:
            log.info("kind_installed", kind=kind)
