"""What a cache holds of large objects, and that this is bounded whatever they contain."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.cached_object import CachedObject, CachedObjectFactory, Decoded
from kftrainer.machinery.cache.reduction import LARGE, Reduction

THINGS = Resource("", "v1", "Thing", "things", namespaced=True, decode=unstructured)
REDUCTION = Reduction(spec=("suspend", "runtimeRef"), status=("rows",), prefix="example.com/")
KIB = 1024


def cached(manifest: Manifest) -> CachedObject[Any]:
    factory: CachedObjectFactory[Any] = CachedObjectFactory(THINGS, None, {}, reduction=REDUCTION)
    return factory.create(manifest)


def thing(*, metadata: Manifest | None = None, **fields: Any) -> dict[str, Any]:
    identity = {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "1"}
    whole = {**identity, **(metadata or {})}
    return {"apiVersion": "v1", "kind": "Thing", "metadata": whole, **fields}


def test_object_below_the_bound_is_held_whole() -> None:
    manifest = thing(spec={"args": ["x" * (LARGE // 2)]})
    entry = cached(manifest)
    assert not entry.is_reduced
    assert entry.manifest == manifest


def test_large_object_is_held_by_its_identity_and_the_named_fields() -> None:
    entry = cached(
        thing(
            metadata={"generation": 3, "labels": {"app": "x"}},
            spec={"suspend": True, "runtimeRef": {"name": "torch"}, "args": ["x" * LARGE]},
            status={"conditions": [{"type": "Complete", "status": "True"}]},
        )
    )
    assert entry.is_reduced
    assert entry.full_size > LARGE > entry.size
    assert entry.manifest == thing(
        metadata={"generation": 3, "labels": {"app": "x"}},
        spec={"suspend": True, "runtimeRef": {"name": "torch"}},
        status={"conditions": [{"type": "Complete", "status": "True"}]},
    )


def test_own_metadata_of_a_large_object_takes_less_than_an_object_held_whole() -> None:
    """Values are bounded by bytes: a character can have four of them."""
    keys = [f"example.com/{number:063}" for number in range(100)]
    metadata = {
        "labels": dict.fromkeys(keys, "x" * 63),
        "annotations": dict.fromkeys(keys, "\N{GRINNING FACE}" * 253),
        "finalizers": keys,
    }
    entry = cached(thing(metadata=metadata, spec={"args": ["x" * LARGE]}))
    assert entry.is_reduced
    assert entry.size < LARGE // 4


def test_index_functions_receive_the_complete_large_object() -> None:
    manifest = thing(spec={"args": ["x" * LARGE]})
    factory: CachedObjectFactory[Any] = CachedObjectFactory(
        THINGS,
        None,
        {"size": lambda seen: [str(len(seen.manifest["spec"]["args"][0]))]},
        reduction=REDUCTION,
    )
    assert factory.create(manifest).index_values == ((str(LARGE),),)


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_change_of_omitted_metadata_is_still_seen(field: str) -> None:
    values = {f"key-{n}": "x" * 60 for n in range(1000)}
    kept = {"example.com/plan": "1"}
    before = cached(thing(metadata={field: {**values, **kept}})).metadata[field]
    after = cached(thing(metadata={field: {**values, **kept, "key-7": "y"}})).metadata[field]
    assert before != after
    assert before["example.com/plan"] == after["example.com/plan"] == "1"


def test_own_finalizer_and_controller_of_a_large_object_are_held() -> None:
    owners = [{"kind": "Thing", "name": f"n-{n}", "uid": f"{n}"} for n in range(1000)]
    owners[500] = {**owners[500], "controller": True}  # type: ignore[dict-item]
    finalizers = [*(f"other.com/{n}" for n in range(1000)), "example.com/in-use"]
    held = cached(thing(metadata={"ownerReferences": owners, "finalizers": finalizers})).metadata
    assert held["ownerReferences"] == [owners[500]]
    assert "example.com/in-use" in held["finalizers"]


# A number stands for a text of that length, a pair for a list of that many equal items, as far as
# they fit into a mebibyte.
MOST = 1024 * KIB
SHAPES: st.SearchStrategy[Any] = st.recursive(
    st.integers(0, 30 * KIB),
    lambda inner: st.one_of(
        st.tuples(st.integers(0, 300), inner),
        st.dictionaries(st.sampled_from(["type", "status", "name", "a", "b"]), inner),
    ),
    max_leaves=5,
)


def grown(shape: Any) -> Any:
    if isinstance(shape, tuple):
        item = grown(shape[1])
        return [item] * min(shape[0], MOST // len(orjson.dumps(item)))
    if isinstance(shape, dict):
        return {key: grown(each) for key, each in shape.items()}
    return "ü" * shape


@settings(max_examples=60, deadline=None)
@given(SHAPES, SHAPES, SHAPES, SHAPES, st.integers(0, 30 * KIB))
def test_entries_of_any_objects_are_bounded(
    suspend: Any, reference: Any, rows: Any, conditions: Any, label: int
) -> None:
    labels = {f"example.com/{n}": "x" * label for n in range(20)}
    entry = cached(
        thing(
            metadata={"labels": {**labels, "example.com/" + "x" * label: "b"}},
            spec={"suspend": grown(suspend), "runtimeRef": grown(reference), "a": "x" * LARGE},
            status={"rows": grown(rows), "conditions": grown(conditions)},
        )
    )
    assert entry.is_reduced
    assert entry.size < 1.5 * LARGE
    assert entry.key == ObjectKey("team", "a")
    orjson.dumps(entry.manifest)


def test_decoded_objects_are_cached_up_to_a_size_and_evicted_by_last_use() -> None:
    entries = [cached(thing(metadata={"name": f"n{n}"})) for n in range(3)]
    decoded: Decoded[Any] = Decoded(most=2 * entries[0].size)
    first, second, third = ([f"object {n}"] for n in range(3))
    assert decoded.of(entries[0], lambda: first) is first
    assert decoded.of(entries[1], lambda: second) is second
    assert decoded.of(entries[0], lambda: third) is first, "it is still held"
    assert decoded.of(entries[2], lambda: third) is third
    assert len(decoded) == 2
    again = ["again"]
    assert decoded.of(entries[1], lambda: again) is again, "it was used longest ago"


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("reduction", [REDUCTION, None])
def test_object_nested_too_deeply_is_held_reduced_and_reported_once(
    reduction: Reduction | None,
) -> None:
    factory: CachedObjectFactory[Any] = CachedObjectFactory(THINGS, None, {}, reduction=reduction)
    deep = thing(metadata={"labels": {"app": "x"}}, data=nested(1000))
    with capture_logs() as logs:
        entries = [factory.create(deep), factory.create(deep)]
    assert all(each.is_reduced and each.full_size is None for each in entries)
    assert entries[0].manifest == thing(metadata={"labels": {"app": "x"}})
    assert [each["event"] for each in logs] == ["object_nested_too_deeply"]


def test_fields_nested_too_deeply_are_omitted() -> None:
    entry = cached(thing(spec={"suspend": True, "runtimeRef": nested(300)}, status=nested(300)))
    assert entry.is_reduced
    assert entry.manifest["spec"]["suspend"] is True
    assert entry.size < KIB
