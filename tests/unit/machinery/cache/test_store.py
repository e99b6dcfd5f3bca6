"""The store: what each news changes, and that it never goes back in time."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.objects.resource import Manifest, ObjectKey, Resource, unstructured
from kftrainer.machinery.cache.cached_object import CachedObject, CachedObjectFactory
from kftrainer.machinery.cache.store import Contents, Store, UnknownIndexError, is_older
from kftrainer.machinery.controller.events import ObjectEvent, ObservedObject

ROOT = Path(__file__).parents[4]
THINGS: Resource[Manifest] = Resource(
    "", "v1", "Thing", "things", namespaced=True, decode=unstructured
)


def color_of(seen: ObservedObject[Manifest]) -> list[str]:
    return [seen.object["color"]]


INDEXES = {"color": color_of}
FACTORY = CachedObjectFactory(THINGS, None, INDEXES)


def thing(
    name: str, version: int, color: str = "red", uid: str = "u", namespace: str = "n"
) -> CachedObject[Manifest]:
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return FACTORY.create({"metadata": metadata, "color": color})


def contents_of(*entries: CachedObject[Manifest]) -> Contents[Manifest]:
    contents: Contents[Manifest] = Contents(INDEXES)
    for entry in entries:
        contents.put(entry)
    return contents


def store_of(*entries: CachedObject[Manifest], version: str = "1") -> Store[Manifest]:
    store: Store[Manifest] = Store(INDEXES)
    list(store.replace(contents_of(*entries), version, initial=True))
    return store


def versions(change: ObjectEvent[Manifest] | None) -> tuple[Any, Any] | None:
    if change is None:
        return None
    old, new = change.old, change.new
    return (
        old and old.metadata["resourceVersion"],
        new and new.metadata["resourceVersion"],
    )


def test_managed_fields_are_stripped_and_the_rest_is_unchanged() -> None:
    metadata = {"name": "a", "resourceVersion": "1", "labels": {"x": "y"}}
    manifest = {"kind": "Thing", "metadata": {**metadata, "managedFields": [{"manager": "m"}]}}
    entry = CachedObjectFactory(THINGS, None, {}).create(manifest)
    assert (entry.metadata, entry.object) == (metadata, {"kind": "Thing", "metadata": metadata})
    assert entry.key == ObjectKey("", "a")


def test_changing_an_object_after_reading_does_not_affect_the_next_read() -> None:
    entry = thing("a", 1)
    mutated: Any = entry.object
    mutated["metadata"]["name"] = "b"
    assert entry.object["metadata"]["name"] == "a"


def test_an_object_of_a_rare_kind_is_decoded_once_until_it_changes() -> None:
    factory = CachedObjectFactory(replace(THINGS, keep_decoded=True), None, {})
    manifest = {"metadata": {"name": "a", "resourceVersion": "1"}}
    entry = factory.create(manifest)
    assert entry.object == manifest
    assert entry.object is entry.object
    assert factory.create(manifest).object is not entry.object


def test_undecodable_object_of_a_kept_kind_raises_on_each_read() -> None:
    def refuse(_: Manifest) -> Manifest:
        raise ValueError("no thing")

    rare = replace(THINGS, decode=refuse, keep_decoded=True)
    entry = CachedObjectFactory(rare, None, {}).create({"metadata": {"name": "a"}})
    for _ in range(2):
        with pytest.raises(ValueError, match="no thing"):
            entry.object  # noqa: B018


def test_transform_changes_the_object_but_not_its_key() -> None:
    factory = CachedObjectFactory(THINGS, lambda _: {"metadata": {"uid": "u"}}, {})
    entry = factory.create(
        {"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {"large": True}}
    )
    assert (entry.key, entry.resource_version) == (ObjectKey("", "a"), "7")
    assert entry.object == {"metadata": {"uid": "u"}}


MEASURE = """
from pathlib import Path
import orjson
from tests.unit.machinery.cache.test_store import FACTORY, contents_of

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def line(n: int) -> bytes:
    values = {f"KEY_{each}": f"value-{n}-{each}" for each in range(40)}
    metadata = {"name": f"thing-{n}", "namespace": "n", "uid": "u", "resourceVersion": str(n)}
    return orjson.dumps({"metadata": metadata, "color": "red", "values": values})

contents, size, before = contents_of(), 0, resident()
for n in range(1, 5001):
    encoded = line(n)
    size += len(encoded)
    contents.put(FACTORY.create(orjson.loads(encoded)))
print((resident() - before) / size)
"""


def test_entries_take_less_than_twice_their_json_in_memory() -> None:
    # In a process of its own, whose memory nothing else has made holes in.
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 2


def test_older_version_of_the_same_object_is_ignored() -> None:
    store = store_of(thing("a", 10))
    assert store.upsert(thing("a", 9)) is None
    assert store.delete(thing("a", 9)) is None
    assert store.contents.get(ObjectKey("n", "a")) is not None


def test_older_version_of_a_recreated_object_is_stored() -> None:
    store = store_of(thing("a", 10, uid="before"))
    assert versions(store.upsert(thing("a", 9, uid="after"))) == ("10", "9")


def test_unchanged_version_delivers_no_event() -> None:
    assert store_of(thing("a", 10)).upsert(thing("a", 10)) is None


def test_objects_without_a_version_always_count_as_changed() -> None:
    store: Store[Manifest] = Store()
    entry = CachedObjectFactory(THINGS, None, {}).create({"metadata": {"name": "a"}})
    assert store.upsert(entry) is not None
    assert store.upsert(entry) is not None


def test_delete_is_delivered_once_with_the_last_state() -> None:
    store = store_of(thing("a", 10))
    assert versions(store.delete(thing("a", 11))) == ("11", None)
    assert store.delete(thing("a", 11)) is None


def test_dropped_object_is_delivered_once_with_its_cached_state() -> None:
    store = store_of(thing("a", 10))
    assert store.drop(ObjectKey("n", "a"), "9") is None
    assert versions(store.drop(ObjectKey("n", "a"), "11")) == ("10", None)
    assert store.drop(ObjectKey("n", "a"), "12") is None
    assert (len(store.contents), store.resource_version) == (0, "12")


def test_versions_are_compared_as_numbers_of_any_length() -> None:
    assert is_older("9", "10")
    assert not is_older("10", "9")
    assert not is_older("10", "10")
    assert not is_older("", "10")
    assert not is_older("abc", "abd")


@given(st.integers(min_value=1), st.integers(min_value=1))
def test_versions_are_ordered_as_their_numbers_are(one: int, other: int) -> None:
    assert is_older(str(one), str(other)) == (one < other)


def test_the_watermark_only_rises_but_for_a_new_list() -> None:
    store = store_of(version="10")
    store.upsert(thing("a", 12))
    store.advance("11")
    assert store.resource_version == "12"
    list(store.replace(contents_of(), "5"))
    assert store.resource_version == "5"


def test_relist_delivers_missed_deletes_first_and_skips_unchanged_objects() -> None:
    store = store_of(thing("same", 1), thing("changed", 2), thing("gone", 3), thing("z-gone", 4))
    listed = contents_of(thing("added", 6), thing("same", 1), thing("changed", 5))
    changes = store.replace(listed, "7")
    # Readers get the new state before the first handler is called.
    assert store.contents is listed
    events = [(each.key.name, versions(each), each.initial) for each in changes]
    assert events == [
        ("gone", ("3", None), False),
        ("z-gone", ("4", None), False),
        ("added", (None, "6"), False),
        ("changed", ("2", "5"), False),
    ]


def test_an_index_follows_its_objects() -> None:
    store = store_of(thing("a", 1, "red"), thing("b", 2, "red"))
    store.upsert(thing("a", 3, "blue"))
    store.delete(thing("b", 4, "green"))
    assert store.contents.by_index("color", "red") == []
    assert store.contents.by_index("color", "green") == []
    assert [each.key.name for each in store.contents.by_index("color", "blue")] == ["a"]
    assert [store.contents.has_index("color", each) for each in ("red", "blue")] == [False, True]


def test_unknown_index_error_lists_the_existing_indexes() -> None:
    with pytest.raises(UnknownIndexError, match=r"no index 'size'.*\['color'\]"):
        store_of().contents.by_index("size", "1")
    with pytest.raises(UnknownIndexError):
        store_of().contents.has_index("size", "1")


NAMES, COLORS = st.sampled_from("abcd"), st.sampled_from(["red", "blue"])
NAMESPACES = st.sampled_from(["m", "n"])
WRITES = st.lists(st.tuples(st.sampled_from(["put", "delete", "drop"]), NAMESPACES, NAMES, COLORS))


def drop(store: Store[Manifest], entry: CachedObject[Manifest]) -> ObjectEvent[Manifest] | None:
    return store.drop(entry.key, entry.resource_version)


@given(WRITES, st.integers(min_value=0, max_value=20))
def test_store_matches_a_dict_under_random_operations(
    writes: list[tuple[str, str, str, str]], relist_at: int
) -> None:
    store = store_of()
    model: dict[tuple[str, str], str] = {}
    fields: dict[tuple[str, str], str] = {}
    for version, (verb, namespace, name, color) in enumerate(writes, start=2):
        entry = thing(name, version, color, namespace=namespace)
        if verb == "put":
            model[namespace, name] = color
        else:
            model.pop((namespace, name), None)
        if version == relist_at:
            listed = contents_of(
                *(thing(n, version, c, namespace=ns) for (ns, n), c in model.items())
            )
            changes = list(store.replace(listed, str(version)))
        else:
            write_methods = {
                "put": store.upsert,
                "delete": store.delete,
                "drop": partial(drop, store),
            }
            changes = [write_methods[verb](entry)]  # type: ignore[list-item]
        for change in filter(None, changes):
            where = change.key.namespace, change.key.name
            assert (change.old is None) == (where not in fields) or change.new is None
            if change.new is None:
                del fields[where]
            else:
                fields[where] = change.new.object["color"]
    held = {(each.key.namespace, each.key.name): each.object["color"] for each in store.contents}
    assert held == model == fields
    assert len(store.contents) == len(model)
    assert store.contents.bytes_held == sum(each.size for each in store.contents)
    for color in ("red", "blue"):
        found = {(e.key.namespace, e.key.name) for e in store.contents.by_index("color", color)}
        assert found == {where for where, each in model.items() if each == color}
    for namespace in ("m", "n"):
        names = {each.key.name for each in store.contents.in_namespace(namespace)}
        assert names == {name for where, name in model if where == namespace}
