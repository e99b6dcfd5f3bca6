import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.cli.manifests.parsing import parse
from kftrainer.cli.manifests.positions import Spot

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


def spot_of(text: str, **options: bool) -> Spot:
    [markup] = parse(text, with_spots=True, **options)
    assert markup.spot is not None
    return markup.spot


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
    assert spot_of(YAML).nearest(path).line == line


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
def test_the_same_of_json(path: str, line: int) -> None:
    assert spot_of(JSON, only_json=True).nearest(path).line == line
    assert spot_of(JSON).nearest(path).line == line


def test_documents_that_follow_each_other_know_their_lines() -> None:
    for text in ('{"a": 1}\n{"a":\n1}\n\n{"a": 1}', "a: 1\n---\na:\n  1\n---\na: 1\n"):
        lines = [each.spot.nearest("a").line for each in parse(text, with_spots=True) if each.spot]
        assert lines == ([1, 2, 5] if text.startswith("{") else [1, 3, 6])


def test_spots_are_made_only_if_asked_for() -> None:
    assert [each.spot for text in (YAML, JSON) for each in parse(text)] == [None, None]


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


def shape_of(spot: Spot) -> Any:
    if isinstance(spot.inner, dict):
        return {key: shape_of(each) for key, each in spot.inner.items()}
    return None if spot.inner is None else [shape_of(each) for each in spot.inner]


@given(st.dictionaries(st.text(max_size=5), VALUES))
def test_there_is_a_spot_for_everything(value: Any) -> None:
    assert shape_of(spot_of(json.dumps(value, indent=1), only_json=True)) == shape(value)
    assert shape_of(spot_of("# YAML\n" + yaml.safe_dump(value))) == shape(value)
