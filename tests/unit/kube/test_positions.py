import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.parsing import parse
from kftrainer.kube.positions import Position

YAML = """\
# a comment
kind: X
metadata:
  labels:
    a.b/c: d
list:
- name: x
  value: 1

-
  name: y
flow: {a: 1,
  b: [1, 2,
      3]}
shared: &s
  deep:
    er: 1
alias: *s
merged:
  <<: *s
  own: 1
"""


def position_of(text: str, **options: bool) -> Position:
    [parsed] = parse(text, **options)
    return parsed.position


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 2),
        ("kind", 2),
        ("metadata", 3),
        ("metadata.labels[a.b/c]", 5),
        ("metadata.name", 3),
        ("metadata.labels.nonesuch.deeper", 4),
        ("list", 6),
        ("list[0]", 7),
        ("list[0].value", 8),
        ("list[1]", 11),
        ("list[1].name", 11),
        ("list[2].name", 6),
        ("list.name", 6),
        ("flow.b", 13),
        ("flow.b[2]", 14),
        ("shared.deep.er", 17),
        ("alias", 18),
        ("alias.deep.er", 17),
        ("merged.own", 21),
        ("merged.deep.er", 17),
        ("nonesuch[", 2),
    ],
)
def test_fields_of_yaml_are_found_or_the_nearest_around_them(path: str, line: int) -> None:
    assert position_of(YAML).nearest(path).line == line


JSON = """\

{"kind": "X", "list": [
    {"na\\u006de": "a \\" {[", "value": 1},
    {
      "name": null,
      "deep": {"a": [true, {"b": 1.5e3}],

        "c": []}
    }
  ],
  "empty": {}
}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 2),
        ("list", 2),
        ("list[0].name", 3),
        ("list[0].value", 3),
        ("list[1]", 4),
        ("list[1].name", 5),
        ("list[1].deep.a[1].b", 6),
        ("list[1].deep.c", 8),
        ("list[1].nonesuch", 4),
        ("empty.x", 11),
    ],
)
def test_fields_of_json_are_found_or_the_nearest_around_them(path: str, line: int) -> None:
    assert position_of(JSON, only_json=True).nearest(path).line == line
    assert position_of(JSON).nearest(path).line == line


def test_consecutive_documents_have_line_numbers() -> None:
    for text in ('{"a": 1}\n{"a":\n1}\n\n{"a": 1}', "a: 1\n---\na:\n  1\n---\na: 1\n"):
        lines = [each.position.nearest("a").line for each in parse(text)]
        assert lines == ([1, 2, 5] if text.startswith("{") else [1, 3, 6])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"a":\n"\\ud83d\\ude00\x7f\u2028",\n"b": 1}', id="characters"),
        pytest.param(f'{{"{"k" * 2000}":\n1,\n"b": 1}}', id="long key"),
        pytest.param('{"a"\n:\t1,\n"b": 1}', id="line break before the colon"),
    ],
)
def test_json_that_is_not_yaml_has_line_numbers(text: str) -> None:
    assert position_of(text).nearest("b").line == 3


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else None


def shape_of(position: Position) -> Any:
    children = position.children
    if isinstance(children, dict):
        return {key: shape_of(each) for key, each in children.items()}
    return None if children is None else [shape_of(each) for each in children]


@given(st.dictionaries(st.text(max_size=5), VALUES))
def test_every_value_has_a_position(value: Any) -> None:
    assert shape_of(position_of(json.dumps(value, indent=1), only_json=True)) == shape(value)
    assert shape_of(position_of("# YAML\n" + yaml.safe_dump(value))) == shape(value)
