from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.schema.defaulting import defaulted

ONE = {"type": "integer", "default": 1}
SCHEMA = {
    "properties": {
        "number": ONE,
        "nullable": {"type": "string", "nullable": True, "default": "x"},
        "plain": {"type": "string"},
        "inner": {"type": "object", "properties": {"number": ONE}},
        "made": {"type": "object", "default": {"a": 1}, "properties": {"number": ONE}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"number": ONE}}},
        "ones": {"type": "array", "items": ONE},
        "texts": {"type": "array", "items": {"type": "string"}},
        "map": {
            "type": "object",
            "additionalProperties": {"type": "object", "properties": {"number": ONE}},
        },
        "map of ones": {"type": "object", "additionalProperties": ONE},
    }
}
ALWAYS = {"number": 1, "nullable": "x", "made": {"a": 1, "number": 1}}


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        pytest.param({}, {}, id="an object that is not there gets none"),
        pytest.param({"number": 2}, {"number": 2}, id="an explicit value is kept"),
        pytest.param({"number": 0}, {"number": 0}, id="zero is something"),
        pytest.param({"number": None}, {"number": 1}, id="null is nothing"),
        pytest.param({"plain": None}, {}, id="null without a default goes"),
        pytest.param({"nullable": None}, {"nullable": None}, id="null that may be stays"),
        pytest.param({"inner": {}}, {"inner": {"number": 1}}, id="inside of what is there"),
        pytest.param({"inner": None}, {}, id="not inside of null"),
        pytest.param(
            {"made": {"b": 2}}, {"made": {"b": 2, "number": 1}}, id="in the place of a default"
        ),
        pytest.param(
            {"list": [{}, {"number": 3}]}, {"list": [{"number": 1}, {"number": 3}]}, id="in lists"
        ),
        pytest.param({"ones": [None, 2]}, {"ones": [1, 2]}, id="null items with a default"),
        pytest.param({"texts": [None, "a"]}, {"texts": [None, "a"]}, id="null items keep places"),
        pytest.param({"map": {"a": {}}}, {"map": {"a": {"number": 1}}}, id="in maps"),
        pytest.param({"map": {"a": None}}, {"map": {}}, id="null in a map goes"),
        pytest.param(
            {"map of ones": {"a": None}}, {"map of ones": {"a": 1}}, id="null in a map gives way"
        ),
        pytest.param({"unknown": {"x": None}}, {"unknown": {"x": None}}, id="unknown fields stay"),
        pytest.param({"list": "text", "inner": 3}, {"list": "text", "inner": 3}, id="wrong types"),
    ],
)
def test_defaults(document: Any, wanted: Any) -> None:
    assert defaulted(document, SCHEMA) == {**ALWAYS, **wanted}


def test_the_document_is_not_changed() -> None:
    document = {"inner": {}, "list": [{}]}
    defaulted(document, SCHEMA)
    assert document == {"inner": {}, "list": [{}]}


def test_defaults_are_not_shared() -> None:
    first, second = defaulted({}, SCHEMA), defaulted({}, SCHEMA)
    first["made"]["a"] = 2
    assert second["made"] == {"a": 1, "number": 1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*SCHEMA["properties"], "a", "b"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_defaults_are_filled_in_once(document: Any) -> None:
    once = defaulted(document, SCHEMA)
    assert defaulted(once, SCHEMA) == once
