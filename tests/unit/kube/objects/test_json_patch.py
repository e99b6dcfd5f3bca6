"""JSON patches, applied by another implementation."""

from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.objects.json_patch import json_patch

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("a", "b/c", "~", "~1", "")), inner, max_size=3)
    ),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(("a", "b", "b/c", "~0")), VALUES, max_size=4)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": "1"}, [{"op": "replace", "path": "/a", "value": "1"}]),
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ({"a": []}, {}, [{"op": "remove", "path": "/a"}]),
        ({}, {"a/~": 1}, [{"op": "add", "path": "/a~1~0", "value": 1}]),
        (
            {"a": [{"b": 1}, {"c": 2, "d": []}]},
            {"a": [{"b": 1}, {"c": "2"}]},
            [
                {"op": "replace", "path": "/a/1/c", "value": "2"},
                {"op": "remove", "path": "/a/1/d"},
            ],
        ),
        ({"a": [1, 2]}, {"a": [2]}, [{"op": "replace", "path": "/a", "value": [2]}]),
    ],
)
def test_patch_has_only_the_changes(
    before: dict[str, Any], after: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    assert json_patch(before, after) == expected


@given(DOCUMENTS, DOCUMENTS)
def test_patch_changes_one_document_into_the_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    patched = jsonpatch.apply_patch(before, [*json_patch(before, after)])
    assert json_patch(patched, after) == []
    assert patched == after
