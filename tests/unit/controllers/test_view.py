"""What the manager knows while the cache is behind what the server has answered."""

from typing import Any

import pytest

from kftrainer.controllers.view import View
from kftrainer.kube.resource import Manifest, ObjectKey, Resource, as_it_is

THINGS = Resource("", "v1", "Thing", "things", namespaced=True, decode=as_it_is)
KEY = ObjectKey("team", "thing")


def thing(version: int) -> Manifest:
    metadata = {"namespace": "team", "name": "thing", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Thing", "metadata": metadata}


class LaggingCache:
    """A cache that has come to a version, and knows the object as it was then."""

    has_synced = True

    def __init__(self) -> None:
        self.reached = 5
        self.held: Manifest | None = None

    def informer(self, _: Resource[Any]) -> "LaggingCache":
        return self

    def version_in(self, _: str) -> str:
        return str(self.reached)

    def get(self, _: Resource[Any], key: ObjectKey) -> Manifest | None:
        assert key == KEY
        return self.held


@pytest.fixture
def cache() -> LaggingCache:
    return LaggingCache()


@pytest.fixture
def view(cache: LaggingCache) -> View:
    return View(cache, [THINGS], {})  # type: ignore[arg-type]


def test_what_was_seen_is_known_until_the_cache_has_come_that_far(
    view: View, cache: LaggingCache
) -> None:
    assert view.get(THINGS, KEY) is None
    view.saw(THINGS, thing(10))
    assert view.get(THINGS, KEY) == thing(10)
    cache.reached, cache.held = 9, thing(9)
    assert view.get(THINGS, KEY) == thing(10)
    cache.reached, cache.held = 11, None
    assert view.get(THINGS, KEY) is None, "it was deleted, and the cache knows better"


@pytest.mark.parametrize("order", [(10, 12), (12, 10)])
def test_of_two_answers_the_newer_is_remembered_in_whatever_order_they_come(
    view: View, cache: LaggingCache, order: tuple[int, int]
) -> None:
    for version in order:
        view.saw(THINGS, thing(version))
    cache.reached = 11
    assert view.get(THINGS, KEY) == thing(12)
