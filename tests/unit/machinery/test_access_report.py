"""Refused reads are reported once, and so is their end."""

from typing import Any

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kftrainer.kube.client.errors import ForbiddenError, KindNotFoundError
from kftrainer.kube.objects.resource import Manifest, Resource, unstructured
from kftrainer.machinery.access_report import AccessReport

FORBIDDEN = ForbiddenError(403, "Forbidden", "lamps is forbidden")
MISSING = KindNotFoundError(404, "", "404 page not found")


def kind(name: str) -> Resource[Manifest]:
    return Resource("", "v1", name, f"{name.lower()}s", namespaced=True, decode=unstructured)


LAMPS, CHAIRS = kind("Lamp"), kind("Chair")


class Reported:
    """A report, and what it has logged and exported."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._report = AccessReport(self._registry, ["a", "b"])

    def __call__(self, *about: Any) -> list[tuple[str, ...]]:
        """Report this; what is logged."""
        with capture_logs() as logged:
            self._report(*about)
        keys = ("event", "namespace", "kind")
        return [tuple(each[key] for key in keys if key in each) for each in logged]

    def unavailable(self) -> list[str]:
        """The namespaces that are exported as unavailable."""
        name = "kftrainer_namespace_unavailable"
        values = {each: self._registry.get_sample_value(name, {"namespace": each}) for each in "ab"}
        return [namespace for namespace, value in values.items() if value]


def test_namespace_is_reported_with_the_first_kind_and_when_all_kinds_can_be_read() -> None:
    report = Reported()
    assert report(LAMPS, "a", FORBIDDEN) == [("namespace_unavailable", "a", "Lamp")]
    assert report(CHAIRS, "a", FORBIDDEN) == []
    assert report.unavailable() == ["a"]
    assert report(LAMPS, "a", None) == []
    assert report.unavailable() == ["a"]
    assert report(CHAIRS, "a", None) == [("namespace_available", "a")]
    assert report.unavailable() == []


def test_kind_that_is_not_installed_is_reported_once_for_all_namespaces() -> None:
    report = Reported()
    assert report(LAMPS, "a", MISSING) == [("kind_not_installed", "Lamp")]
    assert report(LAMPS, "b", MISSING) == []
    assert report.unavailable() == [], "no right is missing there"
    assert report(LAMPS, "b", None) == []
    assert report(LAMPS, "a", None) == [("kind_installed", "Lamp")]


def test_kind_that_is_read_everywhere_is_reported_by_itself() -> None:
    report = Reported()
    assert report(LAMPS, None, FORBIDDEN) == [("kind_forbidden", "Lamp")]
    assert report(CHAIRS, None, FORBIDDEN) == [("kind_forbidden", "Chair")]
    assert report(LAMPS, None, None) == [("kind_permitted", "Lamp")]


def test_removal_after_a_missing_right_replaces_it() -> None:
    report = Reported()
    report(LAMPS, "a", FORBIDDEN)
    assert report(LAMPS, "a", MISSING) == [
        ("namespace_available", "a"),
        ("kind_not_installed", "Lamp"),
    ]
    assert report(LAMPS, "a", FORBIDDEN) == [
        ("kind_installed", "Lamp"),
        ("namespace_unavailable", "a", "Lamp"),
    ]
