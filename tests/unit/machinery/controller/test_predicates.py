from dataclasses import dataclass, field
from typing import Any

import pytest

from kftrainer.kube.objects.resource import ObjectKey
from kftrainer.machinery.controller.events import ObjectEvent
from kftrainer.machinery.controller.predicates import (
    Predicate,
    annotations_changed,
    any_of,
    content_changed,
    generation_changed,
    labels_changed,
)

KEY = ObjectKey("ns", "a")
BUILT_IN = [generation_changed, labels_changed, annotations_changed]


@dataclass
class Object:
    """An object of which only the metadata matter."""

    metadata: dict[str, Any] = field(default_factory=dict)
    object: Any = None


def change(old: dict[str, Any], new: dict[str, Any]) -> ObjectEvent[Any]:
    return ObjectEvent(KEY, Object({"uid": "1", **old}), Object({"uid": "1", **new}))


NOTHING = change({"generation": 1}, {"generation": 1})


def yes(_: ObjectEvent[Any]) -> bool:
    return True


def no(_: ObjectEvent[Any]) -> bool:
    return False


@pytest.mark.parametrize(
    ("predicate", "field_name", "old", "new"),
    [
        (generation_changed, "generation", 1, 2),
        (labels_changed, "labels", {"a": "1"}, {"a": "2"}),
        (annotations_changed, "annotations", {"a": "1"}, None),
    ],
)
def test_predicate_passes_only_changes_of_its_field(
    predicate: Predicate, field_name: str, old: Any, new: Any
) -> None:
    differing = change({field_name: old}, {field_name: new})
    assert [each for each in BUILT_IN if each(differing)] == [predicate]


@pytest.mark.parametrize("predicate", BUILT_IN)
def test_unchanged_object_does_not_pass(predicate: Predicate) -> None:
    same = {"generation": 1, "resourceVersion": "7", "labels": {"a": "1"}, "annotations": {}}
    assert not predicate(change(same, dict(same)))


@pytest.mark.parametrize("predicate", BUILT_IN)
@pytest.mark.parametrize(
    "one", [ObjectEvent(KEY, None, Object()), ObjectEvent(KEY, Object(), None)]
)
def test_creations_and_deletions_pass(predicate: Predicate, one: ObjectEvent[Any]) -> None:
    assert predicate(one)


@pytest.mark.parametrize("predicate", BUILT_IN)
def test_another_object_of_the_same_name_passes(predicate: Predicate) -> None:
    assert predicate(change({"uid": "1", "generation": 1}, {"uid": "2", "generation": 1}))


@pytest.mark.parametrize(
    ("old", "new", "passes"),
    [
        ({"generation": 1}, {"generation": 2}, True),
        ({}, {"labels": {"a": "b"}}, True),
        ({}, {"annotations": {"a": "b"}}, True),
        ({"resourceVersion": "1"}, {"resourceVersion": "2", "finalizers": ["x"]}, False),
    ],
)
def test_content_changed_ignores_fields_of_the_server(
    old: dict[str, Any], new: dict[str, Any], passes: bool
) -> None:
    assert content_changed(change(old, new)) == passes


def test_no_labels_are_the_same_as_empty_labels() -> None:
    assert not labels_changed(change({}, {"labels": {}}))


@pytest.mark.parametrize(
    ("predicate", "passes"),
    [
        (any_of(no, yes), True),
        (any_of(no, no), False),
        (any_of(), False),
    ],
)
def test_predicates_combine(predicate: Predicate, passes: bool) -> None:
    assert predicate(NOTHING) is passes
