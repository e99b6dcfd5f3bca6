from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kftrainer.kube.objects.resource import ObjectKey, Resource, unstructured
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.handlers import enqueue_mapped, enqueue_owner, enqueue_self
from kftrainer.machinery.controller.reconcile import Request

JOBS = Resource("batch", "v1", "Job", "jobs", namespaced=True, decode=unstructured)
NODES = Resource("", "v1", "Node", "nodes", namespaced=False, decode=unstructured)
KEY = ObjectKey("ns", "pod")


@dataclass
class Pod:
    """A pod as it was seen: its owners, and whatever a test makes of it."""

    owners: list[dict[str, Any]] = field(default_factory=list)
    object: Any = None

    @property
    def metadata(self) -> dict[str, Any]:
        return {"name": "pod", "namespace": "ns", "ownerReferences": self.owners}


@dataclass
class Bare:
    """An object without owner."""

    metadata: dict[str, Any] = field(default_factory=lambda: {"name": "pod"})
    object: Any = None


def owner(name: str = "job", **other: Any) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "controller": True, **other}


def requests(found: Iterable[Request | None]) -> list[str]:
    return [str(each) for each in found if each is not None]


@pytest.mark.parametrize("change", [ObjectEvent(KEY, None, Pod()), ObjectEvent(KEY, Pod(), None)])
def test_enqueue_self_handles_creation_and_deletion(
    change: ObjectEvent[Any],
) -> None:
    assert requests(enqueue_self(change)) == ["ns/pod"]


def test_an_object_calls_for_its_owner_in_its_own_namespace() -> None:
    change = ObjectEvent(KEY, None, Pod([owner()]))
    assert requests(enqueue_owner(JOBS)(change)) == ["ns/job"]


def test_deleted_object_enqueues_its_last_owner() -> None:
    change = ObjectEvent(KEY, Pod([owner()]), None)
    assert requests(enqueue_owner(JOBS)(change)) == ["ns/job"]


def test_object_with_a_new_owner_enqueues_both_owners() -> None:
    change = ObjectEvent(KEY, Pod([owner("old")]), Pod([owner("new")]))
    assert requests(enqueue_owner(JOBS)(change)) == ["ns/old", "ns/new"]


def test_an_owner_before_and_after_is_called_for_once() -> None:
    change = ObjectEvent(KEY, Pod([owner()]), Pod([owner()]))
    assert requests(enqueue_owner(JOBS)(change)) == ["ns/job"]


def test_the_version_in_the_reference_does_not_matter() -> None:
    change = ObjectEvent(KEY, None, Pod([owner(apiVersion="batch/v1beta1")]))
    assert requests(enqueue_owner(JOBS)(change)) == ["ns/job"]


@pytest.mark.parametrize(
    "other",
    [{"apiVersion": "other.io/v1"}, {"apiVersion": "v1"}, {"kind": "CronJob"}],
)
def test_an_owner_of_another_group_or_kind_is_not_called_for(other: dict[str, str]) -> None:
    change = ObjectEvent(KEY, None, Pod([owner(**other)]))
    assert requests(enqueue_owner(JOBS)(change)) == []


def test_owner_that_is_not_controller_is_enqueued_only_on_request() -> None:
    change = ObjectEvent(KEY, None, Pod([owner("a"), owner("b", controller=False)]))
    assert requests(enqueue_owner(JOBS)(change)) == ["ns/a"]
    assert requests(enqueue_owner(JOBS, controller_only=False)(change)) == ["ns/a", "ns/b"]


def test_an_owner_outside_of_namespaces_is_called_for_without_one() -> None:
    change = ObjectEvent(KEY, None, Pod([owner("node-1", apiVersion="v1", kind="Node")]))
    assert requests(enqueue_owner(NODES)(change)) == ["node-1"]


@pytest.mark.parametrize("references", [{}, {"ownerReferences": None}, {"ownerReferences": []}])
def test_object_without_owner_enqueues_nothing(references: dict[str, Any]) -> None:
    change = ObjectEvent(KEY, None, Bare({"name": "pod", **references}))
    assert requests(enqueue_owner(JOBS)(change)) == []


def test_enqueue_mapped_uses_the_old_and_the_new_object() -> None:
    handler = enqueue_mapped(lambda names: [Request("ns", name) for name in names])
    change = ObjectEvent(KEY, Pod(object=["a", "b"]), Pod(object=["b", "c", "c"]))
    assert requests(handler(change)) == ["ns/a", "ns/b", "ns/c"]
