import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kftrainer.kube.parsing import ParseError, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1e3", 1000.0),
        ("0644", 420),
        ("0o644", 420),
        ("0x1F", 31),
        ("1_000", 1000),
        ("089", 89.0),
        ("-1.5", -1.5),
        ("1.2.3", "1.2.3"),
        ("y", True),
        ("off", False),
        ("~", None),
        ("", None),
        ("'3'", "3"),
        ("=", "="),
    ],
)
def test_yaml_keywords_are_parsed_as_by_kubectl(text: str, value: Any) -> None:
    [parsed] = parse(f"a: {text}")
    assert parsed.value == {"a": value}
    assert type(parsed.value["a"]) is type(value)


def test_documents_have_start_lines() -> None:
    text = "# first\n\na: 1\n---\n# second\nb: 2\n---\n---\n[3]\n"
    assert [(each.line, each.value) for each in parse(text) if each.value] == [
        (3, {"a": 1}),
        (6, {"b": 2}),
        (9, [3]),
    ]


def test_items_have_start_lines() -> None:
    [parsed] = parse("kind: List\nitems:\n- a: 1\n-\n  b: 2\n")
    assert [parsed.position.nearest(f"items[{n}]").line for n in range(2)] == [3, 5]


def test_json_documents_may_follow_each_other() -> None:
    found = parse('{"a":\t1}\n{"b": "\\ud83d\\ude00"}')
    assert [(each.value, each.line) for each in found] == [({"a": 1}, 1), ({"b": "😀"}, 2)]


def test_yaml_may_look_like_json() -> None:
    assert [(each.value, each.line) for each in parse("{a: 1}")] == [({"a": 1}, 1)]


def test_keys_are_text() -> None:
    [parsed] = parse("1: a\non: b\nnull: c\n")
    assert parsed.value == {"1": "a", "on": "b", "null": "c"}


def test_merge_keys_are_overridden_by_explicit_keys() -> None:
    [parsed] = parse("a: &a {x: 1, y z: 2}\nb:\n  <<: *a\n  x: 3\n")
    assert parsed.value["b"] == {"y z": 2, "x": 3}


def test_aliased_values_are_not_shared() -> None:
    [parsed] = parse("a: &a {x: 1}\nb: *a\n")
    parsed.value["a"]["x"] = 2
    assert parsed.value["b"] == {"x": 1}


NESTED_ALIASES = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
# Each line doubles the keys that PyYAML would copy: it would never come to an end.
NESTED_MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 65)
)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        pytest.param("a: 1\na: 2\n", 2, "duplicate key 'a'", id="a key twice"),
        pytest.param("a:\n  b: 1\n  b: 1\n", 3, "duplicate key 'b'", id="further in"),
        pytest.param("a: [\n", 2, "did not find expected node content", id="no end"),
        pytest.param("a: b: c\n", 1, "mapping values are not allowed", id="two colons"),
        pytest.param("\ta: 1\n", 1, "cannot start any token", id="tab"),
        pytest.param("a: *b\n", 1, "undefined alias", id="alias of nothing"),
        pytest.param("a: &a [*a]\n", 1, "a value that contains the alias", id="itself"),
        pytest.param(NESTED_ALIASES, 7, "expand to more than 400000 values", id="bomb"),
        pytest.param(NESTED_MERGES, 17, "expand to more than 400000 values", id="merge bomb"),
        pytest.param("[" * 100_000, 1, "nested too deeply", id="deep"),
        pytest.param("{a: " * 200 + "}" * 200, 1, "nested too deeply", id="200 deep"),
        pytest.param("? [a]\n: 1\n", 1, "a key must be a string", id="a list for a key"),
        pytest.param(
            "a: !!binary aGk=\n", 1, "contains !!binary, which JSON cannot represent", id="bytes"
        ),
        pytest.param(
            "a: !!binary ä\n", 1, "contains !!binary, which JSON cannot represent", id="no bytes"
        ),
        pytest.param("a: 1\nb:\n- .inf\n", 3, "which JSON cannot represent", id="infinity"),
        pytest.param("a: 99999999999999999999\n", 1, "which exceeds 64 bits", id="large"),
        pytest.param("a: !what x\n", 1, "could not determine a constructor", id="tag"),
        pytest.param("\na: 0x_\n", 2, "'0x_' is not an integer", id="no number"),
        pytest.param("a: !!int ''\n", 1, "'' is not an integer", id="empty number"),
        pytest.param("a: !!float 1:x\n", 1, "'1:x' is not a number", id="no float"),
        pytest.param("a: !!timestamp x\n", 1, "'x' is not a time", id="no time"),
        pytest.param("a: !!timestamp 2024-99-99\n", 1, "is not a time", id="no date"),
        pytest.param("a:\n  !!map x\n", 2, "must be an object", id="no object"),
        pytest.param(f"a:\n- {'9' * 5000}\n", 2, f"'{'9' * 40}…' is not an int", id="endless"),
        pytest.param("b: ä\na: \x07\n", 2, "control characters are not allowed: U+0007", id="bell"),
    ],
)
def test_unreadable_input_is_reported_in_one_line(
    text: str, line: int | None, message: str
) -> None:
    with pytest.raises(ParseError) as raised:
        list(parse(text))
    assert raised.value.line == line
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        pytest.param("a: 1", 1, "not valid JSON: Expecting value", id="YAML"),
        pytest.param('{"a": 1,\n "b" 2}', 2, "not valid JSON: Expecting ':'", id="no colon"),
        pytest.param('\n{"a": 1,\n"a": 2}', 2, "duplicate key 'a'", id="a key twice"),
        pytest.param('{"a": NaN}', 1, "NaN is not a JSON value", id="NaN"),
        pytest.param('{"a":\n[\n1e999]}', 3, "which JSON cannot represent", id="infinity"),
        pytest.param('{"a": "\\ud83d"}', 1, "which JSON cannot represent", id="half a character"),
        pytest.param('{"\\ud83d": 1}', 1, "which JSON cannot represent", id="half a key"),
        pytest.param("[" * 100_000, 1, "nested too deeply", id="deep"),
        pytest.param(f'\n{{"a": {"9" * 5000}}}', 2, f"'{'9' * 40}…' is not an int", id="endless"),
        pytest.param('{"a": "', 1, "not valid JSON: Unterminated string starting", id="open"),
    ],
)
def test_invalid_json_is_reported_in_one_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ParseError) as raised:
        list(parse(text, only_json=True))
    assert raised.value.line == line
    assert message in str(raised.value)
    assert not str(raised.value).endswith(" at")


TAGS = st.sampled_from(["int", "float", "bool", "null", "timestamp", "binary", "map", "seq", "str"])
WORDS = st.sampled_from(["", "''", "x", "1:x", "0b_", ".", "-", "+", "2024-1-99", "[1]", "{a: 1}"])


@given(TAGS, WORDS)
def test_value_not_matching_its_tag_is_a_parse_error(tag: str, word: str) -> None:
    with contextlib.suppress(ParseError):
        list(parse(f"a: !!{tag} {word}\n"))
