from typing import Any

import pytest

from kftrainer.kube.schema.metadata import generated_name, key_problem, metadata_errors

OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}


def paths(*, namespaced: bool = True, **metadata: Any) -> list[str]:
    return [error.path for error in metadata_errors(metadata, namespaced=namespaced)]


@pytest.mark.parametrize("name", ["a", "1", "a.b", "a-b.c", "x" * 253])
def test_names_that_any_object_can_have(name: str) -> None:
    assert paths(name=name) == []


@pytest.mark.parametrize("name", ["A", "a_b", "-a", "a-", "a..b", ".a", "ü", "a\n", "x" * 254])
def test_names_that_no_object_can_have(name: str) -> None:
    assert paths(name=name) == ["metadata.name"]


def test_name_or_generate_name_is_required() -> None:
    [error] = metadata_errors({"name": "", "generateName": None}, namespaced=True)
    assert str(error) == ("metadata.name: Required value: name or generateName is required")
    assert paths(generateName="a-") == []
    assert paths(generateName="a.") == ["metadata.generateName"]
    assert paths(generateName="a.-") == ["metadata.generateName"]
    assert paths(generateName="-") == ["metadata.generateName"]
    assert paths(generateName="A", name="a") == ["metadata.generateName"]


def test_a_long_prefix_is_cut() -> None:
    assert generated_name("a-") == "a-xxxxx"
    assert len(generated_name("a" * 100)) == 63


def test_a_namespace_is_one_label_where_there_is_one() -> None:
    assert paths(name="a", namespace="a.b") == ["metadata.namespace"]
    assert paths(name="a", namespace="x" * 64) == ["metadata.namespace"]
    assert paths(name="a", namespace="a.b", namespaced=False) == []


@pytest.mark.parametrize("key", ["a", "A_b.c-d", "a.b/c", "a/B", "x" * 63])
def test_keys_of_labels(key: str) -> None:
    assert key_problem(key) is None


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "must be letters, digits, -, _ and ."),
        ("a b", "must be letters"),
        ("x" * 64, "must be letters"),
        ("a/", "the part after the / must be letters"),
        ("/a", "the part before the / must be lower-case letters"),
        ("A/b", "the part before the / must be lower-case letters"),
        ("a/b/c", "the part before the / must be lower-case letters"),
    ],
)
def test_invalid_keys_are_rejected(key: str, message: str) -> None:
    assert (key_problem(key) or "").startswith(message)


def test_labels_annotations_and_finalizers() -> None:
    assert paths(name="a", labels={"a": "", "b": None, "a.b/c": "X_1"}) == []
    assert paths(name="a", labels={"a b": "x"}) == ["metadata.labels"]
    assert paths(name="a", labels={"a.b/c": "x y"}) == ["metadata.labels[a.b/c]"]
    assert paths(name="a", labels={"a": "x" * 64}) == ["metadata.labels.a"]
    assert paths(name="a", annotations={"Host.Name/Key": "any thing\n"}) == []
    assert paths(name="a", annotations={"a b": ""}) == ["metadata.annotations"]
    assert paths(name="a", annotations={"a": "x" * 2**18}) == ["metadata.annotations"]
    assert paths(name="a", annotations={"a": "ü" * (2**17 - 1)}) == []
    assert paths(name="a", finalizers=["a/b", "c", "d e"]) == ["metadata.finalizers[2]"]


def test_owners() -> None:
    in_charge = {**OWNER, "controller": True}
    assert paths(name="a", ownerReferences=[OWNER, in_charge]) == []
    assert paths(name="a", ownerReferences=[{**OWNER, "uid": ""}, {}]) == [
        "metadata.ownerReferences[0].uid",
        *(f"metadata.ownerReferences[1].{each}" for each in ("apiVersion", "kind", "name", "uid")),
    ]
    assert paths(name="a", ownerReferences=[in_charge, in_charge]) == [
        "metadata.ownerReferences[1].controller"
    ]
    event = {**OWNER, "kind": "Event"}
    assert paths(name="a", ownerReferences=[event]) == ["metadata.ownerReferences[0]"]
