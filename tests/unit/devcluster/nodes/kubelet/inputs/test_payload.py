"""The files of configMap, secret and downwardAPI volumes, and fields of pods as text."""

import pytest

from kftrainer.devcluster.nodes.kubelet.inputs.atomic_files import File
from kftrainer.devcluster.nodes.kubelet.inputs.downward_api import metadata_field
from kftrainer.devcluster.nodes.kubelet.inputs.errors import InputError
from kftrainer.devcluster.nodes.kubelet.inputs.payload import (
    clean_path,
    files_of_keys,
    files_of_pod,
)
from tests.support.node_pods import config_map, container, pod, secret


@pytest.mark.parametrize(
    ("path", "cleaned"),
    [("a", "a"), ("a/b", "a/b"), ("./a//b", "a/b"), ("a/..b", "a/..b"), (".hidden", ".hidden")],
)
def test_path_is_normalized(path: str, cleaned: str) -> None:
    assert clean_path(path) == cleaned


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "must not be empty"),
        ("/etc/passwd", "must be relative path: /etc/passwd"),
        ("../x", "must not contain '..': ../x"),
        ("a/../../x", "must not contain '..'"),
        ("..data", "must not start with '..': ..data"),
        ("./..data/x", "must not start with '..'"),
        ("a" * 256, "filenames must be less than or equal to 255 characters"),
        ("a/" * 2100 + "a", "must be less than or equal to 4096 characters"),
        (".", "must be the path of a file"),
        ("a\0b", "must be the path of a file"),
    ],
)
def test_path_that_leaves_the_volume_is_rejected(path: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        clean_path(path)
    assert message in str(raised.value)


def test_all_keys_become_files_with_the_default_mode() -> None:
    found = {**config_map("c", text="1"), "binaryData": {"binary": "/w=="}}
    assert files_of_keys("configmap", found, {"name": "c"}, 0o640) == {
        "text": File(b"1", 0o640),
        "binary": File(b"\xff", 0o640),
    }


def test_items_select_keys_paths_and_modes() -> None:
    items = [{"key": "a", "path": "x/y", "mode": 0}, {"key": "b", "path": "z"}]
    found = secret("s", a=b"\xff", b=b"2", c=b"3")
    assert files_of_keys("secret", found, {"secretName": "s", "items": items}, 0o600) == {
        "x/y": File(b"\xff", 0),
        "z": File(b"2", 0o600),
    }


@pytest.mark.parametrize(
    ("kind", "source", "exists", "message"),
    [
        ("configmap", {"name": "o"}, False, 'configmap "o" not found'),
        ("secret", {"secretName": "o"}, False, 'secret "o" not found'),
        (
            "configmap",
            {"name": "o", "items": [{"key": "k", "path": "p"}]},
            True,
            "configmap references non-existent config key: k",
        ),
        (
            "secret",
            {"name": "o", "items": [{"key": "k", "path": "p"}]},
            True,
            "references non-existent secret key: k",
        ),
    ],
)
def test_missing_object_or_key_is_an_error_unless_optional(
    kind: str, source: dict[str, object], exists: bool, message: str
) -> None:
    found = config_map("o") if exists else None
    with pytest.raises(InputError, match=f"^{message}$"):
        files_of_keys(kind, found, source, 0o644)
    assert files_of_keys(kind, found, {**source, "optional": True}, 0o644) == {}


def test_item_path_must_not_leave_the_volume() -> None:
    source = {"name": "c", "items": [{"key": "a", "path": "../../etc/passwd"}]}
    with pytest.raises(InputError, match="must not contain"):
        files_of_keys("configmap", config_map("c", a="1"), source, 0o644)


def test_fields_and_resources_of_the_pod_become_files() -> None:
    own = container(resources={"limits": {"memory": "64Mi"}})
    memory = {"containerName": "node", "resource": "limits.memory", "divisor": "1Mi"}
    cpu = {"containerName": "node", "resource": "limits.cpu"}
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 0o400},
        {"path": "sizes/memory", "resourceFieldRef": memory},
        {"path": "sizes/cpu", "resourceFieldRef": cpu},
    ]
    assert files_of_pod(pod(own), items, 0o644, {"cpu": "8"}) == {
        "labels": File(b'a/x="1"\nb="2"', 0o400),
        "sizes/memory": File(b"64", 0o644),
        "sizes/cpu": File(b"8", 0o644),
    }


def test_maps_are_quoted_as_in_go() -> None:
    found = pod()
    found["metadata"]["annotations"] = {"k": 'é\t"\\\x00\x7f\u200b\U000e0001'}
    expected = 'k="é\\t\\"\\\\\\x00\\x7f\\u200b\\U000e0001"'
    assert metadata_field(found, "metadata.annotations") == expected


def test_subscript_of_another_field_is_an_error() -> None:
    with pytest.raises(InputError, match="does not support subscript"):
        metadata_field(pod(), "metadata.name['x']")
