"""Objects that the manager reads while the cache is older than the server's responses."""

from typing import Any

import pytest

from kftrainer.controllers.overlay_cache import CachedParts, OverlayCache, ReducedObjectError
from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.cached_object import CachedObject, CachedObjectFactory
from kftrainer.machinery.cache.reduction import Reduction

THINGS = Resource("", "v1", "Thing", "things", namespaced=True, decode=unstructured)
KEY = ObjectKey("team", "thing")
REDUCTION = Reduction(spec=("suspend",))
FACTORY: CachedObjectFactory[Any] = CachedObjectFactory(THINGS, None, {}, reduction=REDUCTION)


def thing(version: int) -> Manifest:
    metadata = {"namespace": "team", "name": "thing", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Thing", "metadata": metadata}


def large(version: int) -> Manifest:
    spec = {"suspend": True, "args": ["x" * 2 * REDUCTION.above]}
    return {**thing(version), "spec": spec}


class LaggingCache:
    """A cache at a resource version, which holds the object of that version."""

    has_synced = True

    def __init__(self) -> None:
        self.reached = 5
        self.held: Manifest | None = None

    def informer(self, _: Resource[Any]) -> "LaggingCache":
        return self

    def version_in(self, _: str) -> str:
        return str(self.reached)

    def cached_object(self, key: ObjectKey) -> CachedObject[Any] | None:
        assert key == KEY
        return None if self.held is None else FACTORY.create(self.held)


@pytest.fixture
def cache() -> LaggingCache:
    return LaggingCache()


@pytest.fixture
def view(cache: LaggingCache) -> OverlayCache:
    return OverlayCache(cache, [THINGS], {}, {THINGS: REDUCTION}, complete_kinds=[THINGS])  # type: ignore[arg-type]


def test_response_is_used_until_the_cache_has_its_version(
    view: OverlayCache, cache: LaggingCache
) -> None:
    assert view.get(THINGS, KEY) is None
    view.record(THINGS, thing(10))
    assert view.get(THINGS, KEY) == thing(10)
    cache.reached, cache.held = 9, thing(9)
    assert view.get(THINGS, KEY) == thing(10)
    cache.reached, cache.held = 11, None
    assert view.get(THINGS, KEY) is None, "the cache is newer: it was deleted"


@pytest.mark.parametrize("order", [(10, 12), (12, 10)])
def test_newer_of_two_responses_is_kept_in_any_order(
    view: OverlayCache, cache: LaggingCache, order: tuple[int, int]
) -> None:
    for version in order:
        view.record(THINGS, thing(version))
    cache.reached = 11
    assert view.get(THINGS, KEY) == thing(12)


def test_large_object_without_a_scope_is_not_read_as_if_it_were_whole(
    view: OverlayCache, cache: LaggingCache
) -> None:
    cache.held = large(5)
    assert view.is_reduced(THINGS, KEY)
    for read in (view.get, view.manifest):
        with pytest.raises(ReducedObjectError):
            read(THINGS, KEY)
    assert view.cached_part(THINGS, KEY) == {**thing(5), "spec": {"suspend": True}}
    assert CachedParts(view).get(THINGS, KEY) == view.cached_part(THINGS, KEY)


def test_large_object_is_read_whole_in_its_scope_and_then_released(
    view: OverlayCache, cache: LaggingCache
) -> None:
    cache.held = large(5)
    with view.scope(KEY) as scope:
        scope.load(THINGS, KEY, large(5))
        assert not view.is_reduced(THINGS, KEY)
        assert view.get(THINGS, KEY) == large(5)
    assert view.is_reduced(THINGS, KEY)


def test_large_object_that_no_longer_exists_is_not_read(
    view: OverlayCache, cache: LaggingCache
) -> None:
    cache.held = large(5)
    with view.scope(KEY) as scope:
        scope.load(THINGS, KEY, None)
        assert view.get(THINGS, KEY) is None


def test_scope_reads_its_own_write_of_a_large_object(
    view: OverlayCache, cache: LaggingCache
) -> None:
    with view.scope(KEY):
        view.record(THINGS, large(7))
        assert view.get(THINGS, KEY) == large(7)
        view.record(THINGS, large(9))
        view.record(THINGS, large(8))
        assert view.get(THINGS, KEY) == large(9)
    assert view.is_reduced(THINGS, KEY), "of own writes, too, only a part is held"
    cache.reached, cache.held = 9, thing(9)
    assert view.get(THINGS, KEY) == thing(9)


def test_object_that_grows_while_it_is_worked_on_stays_as_it_was_read(
    view: OverlayCache, cache: LaggingCache
) -> None:
    cache.held = thing(5)
    with view.scope(KEY):
        assert view.get(THINGS, KEY) == thing(5)
        cache.held = large(6)
        assert view.get(THINGS, KEY) == thing(5)
    with pytest.raises(ReducedObjectError):
        view.get(THINGS, KEY)


def test_objects_loaded_by_two_scopes_stay_until_both_are_left(
    view: OverlayCache, cache: LaggingCache
) -> None:
    cache.held = large(5)
    other = ObjectKey("team", "other")
    with view.scope(KEY) as first:
        first.load(THINGS, KEY, large(5))
        with view.scope(other) as second:
            second.load(THINGS, KEY, large(5))
        assert view.get(THINGS, KEY) == large(5)
    assert view.is_reduced(THINGS, KEY)


def test_large_object_that_was_read_for_a_scope_is_complete_until_the_scope_is_left(
    view: OverlayCache,
) -> None:
    owner = ObjectKey("team", "owner")
    with view.scope(owner):
        view.record_for(owner, THINGS, large(7))
        assert view.manifest(THINGS, KEY) == large(7)
    with pytest.raises(ReducedObjectError):
        view.manifest(THINGS, KEY)
